"""Compression of simulated users' updates: what arrives at the server of each of them."""

from collections.abc import Mapping, Sequence

from torch import Tensor

from salf.core.aggregate import Change, PerLayer, UserId
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

    def of_round(self, t: int) -> Change:
        """Compression and decompression of what counts in updates of round t."""
        index_of = self.layers.index_of

        def change(update: Tensors, weights: PerLayer | None, user: UserId) -> Tensors:
            counts = {n: v for n, v in update.items() if weights is None or weights[index_of[n]]}
            return self.sent(counts, int(user), t)

        return change

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
