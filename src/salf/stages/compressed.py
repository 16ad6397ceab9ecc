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
        self._kept: dict[UserId, dict[int, Tensor]] = {}  # by user and layer

    def of_round(self, t: int) -> Change:
        """Compression and decompression of what counts in updates of round t."""
        index_of = self.layers.index_of

        def change(update: Tensors, weights: PerLayer | None, user: UserId) -> Tensors:
            counts = {n: v for n, v in update.items() if weights is None or weights[index_of[n]]}
            kept = self._kept.setdefault(user, {}) if self.compression.remembers else {}
            sender = Sender(self.compression, self.layers, self.seed, int(user), kept)
            return unpacked(sender.packed(counts, t), self.compression, self.layers, counts)

        return change

    def state(self) -> tuple[list[UserId], dict[str, Tensor]]:
        rests = ((user, *rest) for user, own in self._kept.items() for rest in own.items())
        return list(self._kept), {f"{user}/{index}": rest for user, index, rest in rests}

    def load_state(self, users: Sequence[UserId], residuals: Mapping[str, Tensor]) -> None:
        self._kept = {user: {} for user in users}
        for key, rest in residuals.items():
            user, index = map(int, key.split("/"))
            self._kept[user][index] = rest
