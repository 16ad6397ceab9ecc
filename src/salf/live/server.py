"""The server's round, once, for whatever carries the messages.

`open` a round, `take` what comes, `close` it: users who were not heard by then are depth L+1.
"""

import json
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from salf.aggregate import LayerwiseAggregate
from salf.errors import SalfError, TrainingDiverged, unknown
from salf.files import write_whole
from salf.layers import Layers
from salf.live.inspection import Inspection, TooLarge
from salf.live.reach import ReachEstimate
from salf.live.update import Rejected, Update, decode, size_of
from salf.server import Schedule, Server

log = logging.getLogger("salf.live")

LiveMethod = Literal["salf", "drop", "fedavg"]


@dataclass(frozen=True)
class Row:
    """What is known after a round: who got how far, and what was not used, and why."""

    round: int
    depths: Mapping[str, int]  # of every user asked; L + 1 for those not heard in time
    reached: tuple[int, ...]  # users whose update layer l got, l = 1..L
    loss: float  # the mean over the users heard; NaN if there was none
    late: int  # updates of earlier rounds that came during this one
    rejected: Sequence[tuple[str, str]] = ()  # (user, reason)
    silent: Sequence[str] = ()  # users of whom no update came in time
    unreached: tuple[float, ...] = ()  # the p_l the step was divided by; none for other methods
    seconds: float = 0.0  # from asking the users to the new model
    limit: float | None = None  # what it was to take at most: T_max and the grace period


def saved_round(path: Path) -> int:
    """The last closed round that a server's state has; 0 without one, or if it cannot be read."""
    try:
        with safe_open(path, "pt") as stored:
            return int(json.loads(stored.metadata()["state"])["round"])
    except (FileNotFoundError, SafetensorError, KeyError, ValueError, TypeError):
        return 0


class LiveServer:
    """One model, its rounds, and nothing about how messages travel.

    `unreached` are p_l; without them they are learned from the reach seen so far. `most_norm`
    bounds every layer's gradient; without it the bound is learned, too.
    """

    def __init__(
        self,
        model: nn.Module,
        layers: Layers,
        schedule: Schedule,
        *,
        method: LiveMethod = "salf",
        momentum: float = 0.0,
        unreached: Sequence[float] | None = None,
        most_norm: float | None = None,
    ) -> None:
        if method not in get_args(LiveMethod):
            raise unknown("live method", method, get_args(LiveMethod))
        self.method = method
        self.layers = layers
        self.weights: dict[str, Tensor] = {
            **dict(model.named_parameters()),
            **dict(model.named_buffers()),
        }
        self.server = Server(self.weights, schedule, momentum)
        self.inspection = Inspection(layers, self.weights, most_norm)
        if unreached is not None and (
            len(unreached) != len(layers) or not all(0 <= p < 1 for p in unreached)
        ):
            raise SalfError(f"unreached are {len(layers)} chances in [0, 1), one for each layer.")
        self.given_unreached = unreached
        self.reach = ReachEstimate(len(layers))
        self.t = 0  # rounds closed
        self._open = False
        self._size = size_of(self.weights)

    @property
    def waits(self) -> bool:
        """Whether there is no deadline."""
        return self.method == "fedavg"

    def open(self, users: Collection[str]) -> int:
        """Begin the next round with these users, and return its number."""
        if self._open:
            raise SalfError(f"round {self.t + 1} is open already.")
        self._open = True
        self._aggregate = LayerwiseAggregate(self.layers, self.weights)
        self._depths = dict.fromkeys(users, len(self.layers) + 1)
        self._answered: set[str] = set()
        self._losses: list[float] = []
        self._good = 0  # updates
        self._late = 0
        self._rejected: list[tuple[str, str]] = []
        self.failed: set[str] = set()  # users who cannot do better, until somebody mends them
        return self.t + 1

    def missing(self, present: Collection[str] | None = None) -> set[str]:
        """The users asked who have not answered; of those present, where that is known."""
        missing = self._depths.keys() - self._answered
        return missing if present is None else missing & set(present)

    def take(self, user: str, data: bytes | Update, asked: int | None = None) -> Update | None:
        """Use an update, or note why not, and return it unless it is bad. The round goes on.

        `user` is who sent it and `asked` the round it is in reply to, as whoever carries the
        messages knows (None where nobody does); what the update says must agree. One of an
        earlier round is late: it is counted, and not used.
        """
        t = self.t + 1
        try:
            update = data if isinstance(data, Update) else decode(data, self._size)
            if update.user != user:
                raise Rejected(f"signed by {update.user!r}")
            if asked is not None and update.round != asked:
                raise Rejected(f"for round {update.round}, in reply to round {asked}")
            if update.round < t:
                self._late += 1
                log.info("round %d: a late update of %s, for round %d", t, user, update.round)
                return update
            if user not in self._depths:
                raise Rejected("from a user who was not asked")
            if user in self._answered:
                raise Rejected("the second of its user in this round")
            self.inspection.check(update, t)
        except TooLarge as reason:
            self._reject(user, str(reason))
            return None
        except Rejected as reason:
            self.refuse(user, str(reason), asked)
            return None
        self._answered.add(user)
        self._use(update)
        return update

    def refuse(self, user: str, reason: str, asked: int | None = None) -> None:
        """Note why a user has no update that could be used."""
        t = self.t + 1
        if asked is not None and asked < t:  # it says nothing about this round
            self._late += 1
            log.info("round %d: late and of no use, of %s for round %d: %s", t, user, asked, reason)
            return
        self.failed.add(user)
        self._reject(user, reason)

    def _reject(self, user: str, reason: str) -> None:
        self._answered.add(user)
        self._rejected.append((user, reason))
        log.warning("round %d: no update of %s is used: %s", self.t + 1, user, reason)

    def close(self) -> Row:
        """End the round: take the step, and learn from it."""
        t, unreached = self.t + 1, self._unreached()
        with torch.no_grad():
            step = self._aggregate.average(unreached)
            self.server.apply(step, t)
        self._check_finite(step.values, t)
        reached = tuple(int(count) for count in self._aggregate.reached)
        self.inspection.learn()
        if self._good or self.missing():  # else all failed, or nobody was asked: time was enough
            self.reach.learn(reached)
        self.t, self._open = t, False
        loss = sum(self._losses) / len(self._losses) if self._losses else float("nan")
        return Row(
            t,
            self._depths,
            reached,
            loss,
            self._late,
            tuple(self._rejected),
            tuple(sorted(self.missing())),
            tuple(unreached or ()),
        )

    def save(self, path: Path) -> None:
        """Write everything a server that is started again needs to go on after this round."""
        tensors = {f"weights/{name}": tensor for name, tensor in self.weights.items()}
        tensors |= {f"velocity/{name}": tensor for name, tensor in self.server.velocity.items()}
        state = {
            "round": self.t,
            "empty": self.reach.empty.tolist(),
            "rounds": self.reach.rounds,
            "norms": self.inspection.state(),
        }
        stored = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        write_whole(path, save(stored, {"state": json.dumps(state)}))

    def restore(self, path: Path) -> None:
        """Go on after the last closed round that was saved; or leave all as it is."""
        try:
            with safe_open(path, "pt") as stored:
                state = json.loads(stored.metadata()["state"])
                tensors = {key: stored.get_tensor(key) for key in stored.keys()}  # noqa: SIM118
            weights = {name: tensors[f"weights/{name}"] for name in self.weights}
            velocity = {
                name: tensor
                for key, tensor in tensors.items()
                if (name := key.removeprefix("velocity/")) != key and name in self.weights
            }
            for name, tensor in (*weights.items(), *velocity.items()):
                if tensor.shape != self.weights[name].shape:
                    raise ValueError(f"{name!r} has another shape")
            empty = np.asarray(state["empty"], np.float64)
            if empty.shape != (len(self.layers),):
                raise ValueError("it has other layers")
            self.inspection.load_state(state["norms"])
            self.reach.rounds, self.t = float(state["rounds"]), int(state["round"])
        except (SafetensorError, KeyError, ValueError, TypeError, RuntimeError) as error:
            raise SalfError(
                f"{path} cannot be read ({error}). To start anew, delete it and the record of its "
                "rounds."
            ) from None
        self.reach.empty = empty
        with torch.no_grad():
            for name, tensor in weights.items():
                self.weights[name].copy_(tensor)
        for name, tensor in velocity.items():
            self.server.velocity[name] = tensor.to(self.weights[name].device)

    def _use(self, update: Update) -> None:
        self._good += 1
        self._depths[update.user] = update.depth
        if update.depth <= len(self.layers):
            self._losses.append(update.loss)
        # [fl_updateStr]: Drop has only those who finished; FedAvg has waited for all to.
        if self.method == "salf" or update.depth == 1:
            self._aggregate.add(update.tensors)

    def _check_finite(self, moved: Collection[str], t: int) -> None:
        """Good updates may still add up to a model that overflows."""
        for name in moved:
            weight = self.weights[name]
            if not weight.requires_grad:  # a buffer, which may be infinite by design: a mask
                continue
            # A sum that is finite tells it a hundred times faster than a look at every value.
            if not (isfinite(float(weight.detach().sum())) or bool(torch.isfinite(weight).all())):
                raise TrainingDiverged(
                    f"training diverged in round {t}: {name!r} is not finite after it. "
                    "Try a smaller learning rate."
                )

    def _unreached(self) -> Sequence[float] | None:
        if self.method != "salf":
            return None
        if self.given_unreached is not None:
            return self.given_unreached
        return [float(p) for p in self.reach.unreached()]
