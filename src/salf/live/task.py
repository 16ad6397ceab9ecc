"""What a server asks of its users in a round."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Task:
    """A round as every user is asked for it. The deadline is a duration, from when it arrives."""

    round: int
    deadline: float | None
    weights: Mapping[str, Tensor]
    steps: int = 1  # local ones
    rate: float = 0.0  # of local steps
    step_seconds: float = 0.0  # that a step is to take users who choose their batch; 0 if unknown
    method: str = ""  # and its options, if it changes what users do (`salf.methods.to_wire`)
