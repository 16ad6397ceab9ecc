"""The states of a method between rounds: one of the server, and one of every user.

Both are made anew for every run. Users' new states count from the next round on, and only if their
updates were used. Live, a method may leave users' states on their devices; then only the server's
is here.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from salf.common.errors import SalfError
from salf.core.aggregate import Change, PerLayer, Step, UserId
from salf.core.arrivals import Closing, Ints
from salf.core.layers import Layers
from salf.core.rules import Done, State, Tensors
from salf.methods import Method
from salf.methods.base import Keeper, state_of


class Progress(NamedTuple):
    """How far a user got in a round."""

    gradients: Ints  # how many local steps' gradients it has of each layer
    rate: float  # of these steps
    weight: float  # of the user


class States:
    """The states of one run."""

    def __init__(self, method: Method, layers: Layers, weights: Mapping[str, Tensor]) -> None:
        self._method, self._index_of = method, layers.index_of
        trained = {name: w.detach() for name, w in weights.items() if w.requires_grad}
        self._trained = trained.keys() & layers.index_of.keys()
        self.server = state_of(method, "server_state", method.server_state(trained))
        self.fresh = state_of(method, "user_state", method.user_state(trained))
        self._users: dict[UserId, State] = {}
        self.used: dict[str, int] = {}  # live, the last round in which each user's update was
        self._progress: dict[UserId, Progress] = {}  # in the open round
        self._new: dict[UserId, State] = {}
        self._heard: dict[str, Tensor] = {}

    def of(self, user: UserId) -> State:
        return self._users.get(user, self.fresh)

    def begin(self, user: UserId, progress: Progress) -> None:
        """An update of this user is coming."""
        self._progress[user] = progress

    def done(self, user: UserId, update: Tensors, weights: PerLayer | None) -> Done:
        """A user's round, of the layers in which it has a weight."""
        gradients, rate, _ = self._progress[user]
        total = {
            name: value
            for name, value in update.items()
            if name in self._trained and (weights is None or weights[self._index_of[name]])
        }
        steps = {name: int(gradients[self._index_of[name]]) for name in total}
        return Done(total, steps, rate, self.server, self.of(user))

    def _hear(self, user: UserId, done: Done) -> None:
        """Add a user's round to what the server's state learns."""
        weight = self._progress[user].weight
        for name, value in state_of(self._method, "heard", self._method.heard(done)).items():
            known = self._heard.get(name)
            self._heard[name] = value * weight if known is None else known + value * weight

    def close(self, step: Step, closing: Closing, rate: float) -> Step:
        """End the round, and return the step as the method changes it."""
        learned = self._method.learned(self.server, self._heard, closing)
        new = state_of(self._method, "learned", learned)
        self.server = {**self.server, **as_declared(self._method, "learned", new, self.server)}
        self._users |= self._new
        self._new, self._heard, self._progress = {}, {}, {}
        mean = {name: value for name, value in step.values.items() if name in self._trained}
        changed = state_of(self._method, "step", self._method.step(mean, self.server, rate))
        for name, value in changed.items():
            if name not in mean or value.shape != mean[name].shape:
                raise SalfError(
                    f"{type(self._method).__name__}.step must return tensors by the names in "
                    f"`step`, of the same shape: not {name!r} of shape {tuple(value.shape)}."
                )
        return Step({**step.values, **changed}, step.held)

    def state(self) -> tuple[list[Any], dict[str, Tensor]]:
        """The users of whom something is kept, whose were used, and tensors with a row for each."""
        kept = {f"server {name}": value for name, value in self.server.items()}
        for name in self.fresh if self._users else ():
            kept[f"users {name}"] = torch.stack([own[name] for own in self._users.values()])
        return [list(self._users), self.used], kept

    def load_state(self, plain: Sequence[Any], kept: Mapping[str, Tensor]) -> None:
        users, used = plain
        self.used = dict(used)
        self.server = {n: kept[f"server {n}"].to(value) for n, value in self.server.items()}
        columns = {n: kept[f"users {n}"].to(like) for n, like in self.fresh.items() if users}
        self._users = {
            user: {name: column[row].clone() for name, column in columns.items()}
            for row, user in enumerate(users)
        }

    def learning(self, place: Keeper) -> Change | None:
        """Note what is learned from updates at this place, which stay as they are."""
        keeps = place == self._method.users_keep and self._method.defines("user_state")
        hears = place == "server" and self._method.defines("heard")

        def change(update: Tensors, weights: PerLayer | None, user: UserId) -> Tensors:
            done = self.done(user, update, weights)
            if keeps:
                self._new[user] = after(self._method, done)
            if hears:
                self._hear(user, done)
            return update

        return change if keeps or hears else None


def after(method: Method, done: Done) -> State:
    """A user's state after its round."""
    new = as_declared(method, "after", state_of(method, "after", method.after(done)), done.own)
    return {name: value.clone() for name, value in {**done.own, **new}.items()}


def as_declared(method: Method, hook: str, new: State, declared: State) -> State:
    """A new state, which a checkpoint can keep only if it is like the first one."""
    first = "server_state" if hook == "learned" else "user_state"
    for name, value in new.items():
        returned = f"{type(method).__name__}.{hook} returned {name!r}"
        if (like := declared.get(name)) is None:
            raise SalfError(f"{returned}, which {first} does not declare.")
        # Of a state that is a number, Python's own may come.
        number = not value.ndim and (like.is_floating_point() or bool(value.to(like) == value))
        if value.shape != like.shape or not (number or value.dtype == like.dtype):
            kinds = [f"of shape {tuple(one.shape)} as {one.dtype}" for one in (value, like)]
            raise SalfError(f"{returned} {kinds[0]}, which {first} declares {kinds[1]}.")
    return {name: value.to(declared[name]) for name, value in new.items()}
