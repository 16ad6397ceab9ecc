"""The task that a server gives its users in a round."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from torch import Tensor

from salf.core.rules import State


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
    server: State = field(default_factory=dict)  # the method's
    users: Mapping[str, State] = field(default_factory=dict)  # where the server keeps their states
    # For users that keep theirs: the last round in which the server used an update of each.
    used: Mapping[str, int] = field(default_factory=dict)

    def of(self, user: str) -> "Task":
        """The task without what is other users'."""
        return replace(
            self,
            users={name: own for name, own in self.users.items() if name == user},
            used={name: round for name, round in self.used.items() if name == user},
        )
