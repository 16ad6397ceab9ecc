"""Backpropagation that stops at a deadline, for real devices.

A round is a sequence of stages: the forward pass, the layers L, L-1, ..., 1, and the return to the
caller. `times` learns how long each takes and when to start; `backprop` stops before what does not
fit.
"""

from salf.core.deadline.backprop import Backpropagation, Partial

__all__ = ["Backpropagation", "Partial"]
