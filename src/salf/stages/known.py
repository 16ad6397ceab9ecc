"""What the server knows of its users beyond the open round, for methods that ask for it."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from salf.core.aggregate import LayerwiseAggregate, User
from salf.core.arrivals import Bools, Floats, Ints
from salf.core.layers import Layers
from salf.methods import Method
from salf.stages.participation import Participation
from salf.stages.recall import Recall, Remembering, StandIns

Users = Sequence[User] | Ints


class KnownUsers:
    """How often users take part, and what they sent last; in the simulator and live.

    With `count_reach`, a method that weighs users by their reach gets the share of rounds in which
    each took part. What the method does not ask for is not kept.
    """

    def __init__(
        self, method: Method, layers: Layers, weights: Mapping[str, Tensor], count_reach: bool
    ) -> None:
        self.method, self.layers = method, layers
        by, rule = method.weighs_by, method.recalled
        counts = by == "intervals" or (by == "reach" and count_reach)
        self.participation = Participation(len(layers), method.longest_interval) if counts else None
        self.recall = None if rule is None else Recall(layers, weights, rule)

    def chance(self, users: Users) -> Floats | None:
        """The reach of these users, [L, users]; None if it is not counted here."""
        if self.participation is None or self.method.weighs_by != "reach":
            return None
        return self.participation.reach(users)

    def interval(self, users: Users) -> Floats | None:
        """FedAU's intervals of these users, [L, users]; None if the method does not use them."""
        if self.participation is None or self.method.weighs_by != "intervals":
            return None
        return self.participation.intervals(users)

    def aggregate(
        self,
        t: int,
        sums: LayerwiseAggregate,
        everybody: float,
        own: Mapping[User, float] | None = None,
    ) -> LayerwiseAggregate:
        """What the updates of round t go into.

        `everybody` is the weight of all users, `own` those of users that do not weigh 1.
        """
        if self.recall is None:
            return sums
        if self.recall.rule.stands_in:
            return StandIns(sums, self.recall, t, own or {})
        return Remembering(sums, self.recall, t, everybody)

    def learn(self, t: int, users: Users, part: Bools, weights: Floats | None = None) -> None:
        """Round t is over, in which these users were asked and took part in layers: [L, users]."""
        if self.participation is not None:
            self.participation.learn(users, part)
        if self.recall is not None:
            names = users.tolist() if isinstance(users, np.ndarray) else users
            by_user = {} if weights is None else dict(zip(names, weights.tolist(), strict=True))
            self.recall.learn(t, by_user)

    def state(self) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
        """What a checkpoint has to keep: groups of tensors, and plain values."""
        groups: dict[str, dict[str, Tensor]] = {}
        users: dict[str, Any] = {}
        if self.participation is not None:
            users["participation"], arrays = self.participation.state()
            groups["participation"] = {n: torch.from_numpy(array) for n, array in arrays.items()}
        if self.recall is not None:
            users["recall"], groups["recall"] = self.recall.state()
        return groups, users

    def load_state(self, groups: dict[str, dict[str, Tensor]], users: Mapping[str, Any]) -> None:
        """Continue with what another server knew; its groups are taken out of `groups`."""
        if self.participation is not None:
            arrays = {n: tensor.numpy() for n, tensor in groups.pop("participation").items()}
            self.participation.load_state(users["participation"], arrays)
        if self.recall is not None:
            self.recall.load_state(users["recall"], groups.pop("recall"))
