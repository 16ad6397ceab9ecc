"""The stages that an update passes at the server, put together in one place.

Simulator and live server open a round here, put the updates of its users into the aggregate that
they get, and close it. An update passes, in this order,

- the attack, if its user is a simulated attacker,
- compression and decompression (live, users compress and the server decompresses: `received`),
- memory: what is new in it compared with the user's last one, or stand-ins for absent users,
- the robust rule, or the plain mean.

For some of these the server keeps something of each user from round to round. That, too, is here,
with one state for checkpoints.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from salf.common.errors import SalfError
from salf.core.aggregate import Changing, LayerwiseAggregate, UserId
from salf.core.arrivals import Bools, Floats
from salf.core.compression import Compression, unpacked
from salf.core.layers import Layers
from salf.core.rules import LocalRule, Tensors
from salf.core.server import SGD, Optimiser
from salf.methods import Method, Recalled, RoundPlan
from salf.methods.asks import Watch
from salf.stages.attacks import Attacked, Attackers
from salf.stages.compressed import Residuals
from salf.stages.participation import Participation, Users
from salf.stages.recall import Recall, Remembering, StandIns
from salf.stages.robust import USERS, Robust, Voting
from salf.stages.states import States


class Kept(Protocol):
    """Something that the server keeps of each user from round to round."""

    def state(self) -> tuple[list[Any], dict[str, Tensor]]:
        """Plain values, such as the users' names, and tensors."""

    def load_state(self, plain: Any, tensors: Mapping[str, Tensor], /) -> None:
        """Continue with the state of another one."""


@dataclass(frozen=True)
class Stages:
    """The stages of a run beside the method's own; by default there are none.

    With `count_reach`, a method that weighs users by their reach gets the share of rounds in which
    each took part.
    """

    robust: Robust | None = None
    compression: Compression | None = None
    attackers: Attackers | None = None  # simulated ones
    count_reach: bool = False

    def ready(self, optimiser: Optimiser | None) -> tuple["Stages", Optimiser | None]:
        """With users' momenta in place of the server's: with both, training diverges sooner.

        How far a gradient moves the model in the long run stays the same: 1 / (1 - momentum).
        """
        if self.robust is None or not isinstance(optimiser, SGD):
            return self, optimiser
        robust = replace(self.robust, gain=1 / (1 - optimiser.momentum))
        return replace(self, robust=robust), None


class Pipeline:
    """The stages of one run, and what they keep of its users."""

    def __init__(
        self,
        stages: Stages,
        method: Method,
        layers: Layers,
        weights: Mapping[str, Tensor],
        seed: int | None = None,
    ) -> None:
        """With the `seed` of a simulation, its users' side of compression is run here, too."""
        self.method, self.stages, self._simulated = method, stages, seed is not None
        self._layers, self._weights = layers, weights
        asks, rule, compression = method.asks, method.memory(), stages.compression
        _check(stages, method)
        counts = asks.cutoff is not None or (asks.chance and stages.count_reach)
        self.participation = Participation(len(layers), asks.cutoff) if counts else None
        self.recall = None if rule is None else Recall(layers, weights, rule)
        self.kept: dict[str, Kept] = {}  # of the users, by name
        self.forget()
        keeps = method.defines("server_state", "user_state", "step")
        self.states = States(method, layers, weights) if keeps else None
        if not asks.simulated_only:
            method.check_shares_are_own(len(layers), self.server_state)
        self.watch = Watch(method)
        self.rule_watch: Watch | None = None
        self.residuals: Residuals | None = None
        if compression is not None and seed is not None:
            self.residuals = Residuals(compression, layers, seed)
        attack = stages.attackers.attack.kind if stages.attackers else ""
        self.known = [  # by attackers of their own updates
            Recall(layers, weights, Recalled(0.0, None, USERS), 10)
            for _ in range(2 * (attack == "alie-own"))
        ]
        kept = ("participation", "recall", "residuals", "states")
        self.kept |= {name: k for name in kept if (k := getattr(self, name))}
        self.kept |= {f"attackers {power}": table for power, table in enumerate(self.known)}

    def open(self, t: int, everybody: float, own: Mapping[UserId, float]) -> LayerwiseAggregate:
        """The aggregate of round t, to which users' updates are added.

        `everybody` is the weight of all users, `own` those of users that do not weigh 1.
        """
        layers, weights = self._layers, self._weights
        found = LayerwiseAggregate(layers, weights, separate=self.recall is not None)
        if self.recall is not None:
            if self.stages.robust is not None:
                found = Voting(found, self.recall, t, own, self.stages.robust)
            elif self.recall.rule.stands_in:
                found = StandIns(found, self.recall, t, own)
            else:
                found = Remembering(found, self.recall, t, own, everybody)
        changes = [
            self.states and self.states.learning("server"),
            self.residuals and self.residuals.of_round(t),
            self.states and self._simulated and self.states.learning("device"),
        ]
        for change in changes:
            found = Changing(found, change) if change else found
        if (attackers := self.stages.attackers) is not None:
            votes = None if self.stages.robust is None else self.recall
            found = Attacked(found, attackers, layers, t, votes, self.known)
        return found

    def left(self, present: Collection[UserId]) -> list[Any]:
        """Users who are not present have no vote any more; the result is who had one."""
        return self.recall.forget_others(present) if self.recall and self.stages.robust else []

    def local_rule(self, steps: int) -> LocalRule | None:
        """The method's rule for a round, which must not keep anything in itself."""
        rule = self.method.local_rule(steps)
        self.rule_watch = None if rule is None else Watch(rule)
        return rule

    def received(self, sent: Tensors) -> Tensors:
        """A live user's update, decompressed; ValueError if it cannot be."""
        assert self.stages.compression is not None
        trained = {name: w for name, w in self._weights.items() if w.requires_grad}
        return unpacked(sent, self.stages.compression, self._layers, trained)

    def close(self, t: int, weights: Mapping[UserId, float], part: Bools) -> None:
        """Learn from round t: users of these weights were asked, who took part in [L, users]."""
        self.watch.check()
        if self.participation is not None:
            self.participation.learn([*weights], part)

    def forget(self) -> None:
        """Begin without users' votes: a live run that is over does not keep them."""
        if (robust := self.stages.robust) is not None:  # the memory of the method, too, if any
            self.recall = robust.memory(self.method, self._layers, self._weights)
            self.kept["recall"] = self.recall

    def chance(self, users: Users) -> Floats | None:
        """The reach of these users, [L, users]; None if it is not counted here."""
        known = self.participation if self.method.asks.chance else None
        return None if known is None else known.reach(users)

    def intervals(self, users: Users) -> Floats | None:
        """FedAU's intervals of these users, [L, users]; None if the method does not use them."""
        known = None if self.method.asks.cutoff is None else self.participation
        return None if known is None else known.intervals(users)

    @property
    def server_state(self) -> Mapping[str, Tensor]:
        """The method's state of the server."""
        return {} if self.states is None else self.states.server


def _check(stages: Stages, method: Method) -> None:
    """Refuse what a method cannot do with these stages."""
    keeps = method.defines("user_state") and method.users_keep == "device"
    if keeps and method.asks.about_users:
        raise SalfError(
            f"{method.name}.share depends on what only the server knows of users, so their "
            "states cannot stay on their devices: set users_keep to 'server'."
        )
    if stages.robust is not None:
        stages.robust.check(method)
    compression = stages.compression
    if compression is not None and compression.remembers and method.asks.narrows:
        raise SalfError(
            f"the users' networks change in {method.name}, so they cannot add what they "
            "did not send to the next update: use compress='fp16' or qsgd."
        )


def state_of(kept: Mapping[str, Kept]) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    """A checkpoint of these: groups of tensors, and plain values."""
    states = {name: each.state() for name, each in kept.items()}
    plain = {name: values for name, (values, _) in states.items()}
    return {name: tensors for name, (_, tensors) in states.items()}, plain


def load_state(
    kept: Mapping[str, Kept], groups: dict[str, dict[str, Tensor]], plain: Mapping[str, Any]
) -> None:
    """Continue with another one's state, whose groups are taken out of `groups`."""
    for name, each in kept.items():
        each.load_state(plain[name], groups.pop(name, {}))


MOST_USERS = 10_000  # for more, no voice is kept


class Voice:
    """The weights of every user's gradients, new and remembered, summed over rounds and layers.

    If users are heard as their data ask for, their shares of it are those of the data. A method
    that hears whoever is there gives fast users more: it shows which classes are not learned.
    """

    def __init__(self, users: int) -> None:
        self.total: Floats = np.zeros(users if users <= MOST_USERS else 0)

    def hear(self, plan: RoundPlan, t: int, recall: Recall | None, everybody: float) -> None:
        """Add the weights of round t, before what is remembered changes by it."""
        if not len(self.total):
            return
        if recall is None:
            for group in plan.groups:
                # Not mean(), which takes twice as long on so few numbers.
                self.total[group.users] += group.weights.sum(axis=0) / len(group.weights)
            return
        heard = np.zeros((len(recall.layers), len(self.total)))
        for group in plan.groups:
            heard[:, group.users] = group.weights
        rows, beta = np.array(recall.remembered, np.int64), recall.rule.beta
        left = recall.left(t)[: len(rows)].T
        counts = left * recall.weight[: len(rows)]
        if recall.rule.stands_in:
            # All together weigh 1: who arrived by number, who did not by what is left.
            here, counts = np.sum(heard > 0, axis=1), np.where(heard[:, rows] > 0, 0.0, counts)
            total = np.maximum(here + counts.sum(axis=1), np.finfo(float).tiny)
            heard *= (here / total)[:, None]
            heard[:, rows] += counts / total[:, None]
        else:
            # What arrives takes the place of what is remembered of its user.
            heard[:, rows] *= 1 - left * beta
            heard[:, rows] += counts * beta / everybody
        self.total += heard.mean(axis=0)

    def parts(self) -> Floats:
        """Each user's part, which sum to 1; empty if nothing was heard or kept."""
        total = self.total.sum()
        return np.asarray(self.total / total) if total > 0 else np.empty(0)
