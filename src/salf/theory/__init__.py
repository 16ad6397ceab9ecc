"""The paper's bounds as functions, with the paper's symbols."""

from salf.theory.bounds import Constants, Federation, convergence_bound, variance_bound

__all__ = ["Constants", "Federation", "convergence_bound", "variance_bound"]
