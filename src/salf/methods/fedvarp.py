"""FedVARP: new updates correct the mean of remembered ones (Jhunjhunwala et al., 2022)."""

from dataclasses import dataclass

from salf.methods.family import WithMemory


@dataclass(frozen=True)
class FedVARP(WithMemory):
    """The mean of all users' last updates, plus the mean change in those that arrived.

    If all users arrive with equal probability, this is unbiased and has less variance than the mean
    of those that arrived.
    """
