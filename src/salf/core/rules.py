"""Rules that change users' local steps, as FedProx, SCAFFOLD and FedDyn do, and what they see."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from salf.common.errors import SalfError, in_one_line

if TYPE_CHECKING:
    from torch import Tensor

Tensors = Mapping[str, "Tensor"]
State = Mapping[str, "Tensor"]  # what a method keeps, by name; a number is a tensor of no dimension


@dataclass(frozen=True)
class LocalStep:
    """A local step of one user, as a rule sees it. In step 1 the user has the server's weights."""

    number: int  # from 1
    rate: float  # of local steps
    total: Tensors  # the sum of the changed gradients so far: w - w_t is -rate times it
    server: State  # what the server sent beside the model
    own: State  # what is kept of the user


@dataclass(frozen=True)
class Done:
    """A user's round as it counts: what its own state and the server's learn from."""

    total: Tensors  # the sum of its changed gradients, by parameter, of the layers that count
    steps: Mapping[str, int]  # of how many local steps each of these is the sum
    rate: float  # of these steps
    server: State  # what the server sent
    own: State  # what was kept of the user before


class LocalRule(ABC):
    """Changes the gradients that users step along. It sees one user, and keeps nothing itself."""

    @abstractmethod
    def gradient(self, gradients: Tensors, step: LocalStep) -> Tensors:
        """The gradients to step along in place of these, of the layers the user reached."""

    def of_many(self, gradients: Tensors, step: LocalStep) -> Tensors:
        """`gradient` for stacked users: `gradients`, `total` and `own` are [users, ...]."""

        import torch

        def one(gradients: Tensors, total: Tensors, own: State) -> Tensors:
            step_of_one = replace(step, total=total, own=own)
            return checked(self, gradients, self.gradient(gradients, step_of_one))

        changed: Tensors
        try:
            changed = torch.vmap(one)(dict(gradients), dict(step.total), dict(step.own))
        except RuntimeError as error:  # an `if` on a tensor, say, or random numbers
            raise SalfError(
                f"{type(self).__name__}.gradient cannot run on stacked users "
                f"({in_one_line(error)}): use engine 'loop'."
            ) from error
        return changed


def checked(rule: LocalRule, gradients: Tensors, changed: Tensors) -> Tensors:
    """What a rule returned, or an error that says what is wrong with it."""
    wanted = {name: gradient.shape for name, gradient in gradients.items()}
    given = changed.items() if isinstance(changed, Mapping) else ()
    if {name: getattr(value, "shape", None) for name, value in given} != wanted:
        raise SalfError(
            f"{type(rule).__name__}.gradient must return a dict with a tensor for every name in "
            "`gradients`, of the same shape, and no others."
        )
    return changed


@dataclass(frozen=True)
class Proximal(LocalRule):
    """The gradient of F(w) + mu/2 ||w - w_t||^2 in place of that of F."""

    mu: float

    def gradient(self, gradients: Tensors, step: LocalStep) -> Tensors:
        if step.number == 1:
            return gradients
        pull = self.mu * step.rate
        return {name: g - pull * step.total[name] for name, g in gradients.items()}

    def of_many(self, gradients: Tensors, step: LocalStep) -> Tensors:
        """In place: a stack is large."""
        if step.number > 1:
            for name, gradient in gradients.items():
                gradient.sub_(step.total[name], alpha=self.mu * step.rate)
        return gradients
