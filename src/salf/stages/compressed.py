"""Compression of simulated users' updates: what arrives at the server of each of them."""

from collections.abc import Mapping, Sequence

from torch import Tensor

from salf.core.aggregate import Changing, LayerwiseAggregate, PerLayer, UserId
from salf.core.compression import Compression, Sender, unpacked
from salf.core.layers import Layers
from salf.core.rules import Tensors


class Residuals:
    """The users of a simulation as senders; those who took part, with what they have not sent."""

    def __init__(self, compression: Compression, layers: Layers, seed: int) -> None:
        self.compression, self.layers, self.seed = compression, layers, seed
        self._senders: dict[int, Sender] = {}

    def sent(self, update: Tensors, user: int, t: int) -> dict[str, Tensor]:
        """The user's update of round t as the server gets it."""
        sender = self._senders.get(user) or self._sender(user)
        if self.compression.remembers:
            self._senders[user] = sender
        return unpacked(sender.packed(update, t), self.compression, self.layers, update)

    def _sender(self, user: int) -> Sender:
        return Sender(self.compression, self.layers, self.seed, user)

    def state(self) -> tuple[list[UserId], dict[str, Tensor]]:
        return list(self._senders), {
            f"{user}/{index}": residual
            for user, sender in self._senders.items()
            for index, residual in sender.residuals.items()
        }

    def load_state(self, users: Sequence[int], residuals: Mapping[str, Tensor]) -> None:
        self._senders = {user: self._sender(user) for user in users}
        for key, residual in residuals.items():
            user, index = map(int, key.split("/"))
            self._senders[user].residuals[index] = residual


class Compressed(Changing):
    """An aggregate that gets updates as they are after compression."""

    def __init__(self, inner: LayerwiseAggregate, residuals: Residuals, t: int) -> None:
        super().__init__(inner)
        self._residuals, self._t = residuals, t

    def changed(self, update: Tensors, weights: PerLayer | None, user: UserId) -> Tensors:
        index_of = self._residuals.layers.index_of
        counting = {n: v for n, v in update.items() if weights is None or weights[index_of[n]]}
        return self._residuals.sent(counting, int(user), self._t)
