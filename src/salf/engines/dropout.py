"""Dropout that is each user's own: masks are keyed by seed, round and user, in any pass.

So a user has the same masks alone, among others and in another process. This holds for dropout as a
module or a function; that of attention and of recurrent modules is drawn by PyTorch itself.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from salf.core.arrivals import Ints
from salf.core.draws import Keyed

# Where whole channels are dropped, the dimensions of the inputs.
KEYED = {F.dropout: None, F.dropout1d: 3, F.dropout2d: 4, F.dropout3d: 5}
OTHERS = (F.alpha_dropout, F.feature_alpha_dropout, torch.dropout)
DROPOUT = nn.modules.dropout._DropoutNd
VALUES = 2**16  # of a random number: as many probabilities there are


class Dropout(TorchFunctionMode):
    """Gives the rows of every user, one user after the other, masks of its own."""

    def __init__(self, draws: Keyed, users: Ints) -> None:
        super().__init__()
        self._draws, self._users = draws, users.tolist()
        self._calls = [0] * len(users)  # of dropout so far, for each user
        # Of the pass to come: whose rows it has, and whether it has a graph.
        self.places: Sequence[int] = range(len(users))
        self.graph = True

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func not in KEYED or not kwargs["training"] or not 0 < kwargs["p"] < 1:
            return func(*args, **kwargs)
        value, dimensions = args[0], KEYED[func]
        level = torch._C._functorch.maybe_get_level(value)  # under vmap, `value` is one user's
        if level <= 0 and self._is_recomputed():
            return func(*args, **kwargs)
        shape = value.shape if dimensions is None else value.shape[:2]
        each, left_over = divmod(shape.numel(), 1 if level > 0 else len(self.places))
        if dimensions not in (None, value.dim()) or left_over:
            return func(*args, **kwargs)
        if dimensions is None and not kwargs["inplace"]:
            value = value.contiguous()  # as the mask is
        mask = self._mask(each, kwargs["p"], value)
        full = *shape, *[1] * (value.dim() - len(shape))
        if level > 0:
            mask = torch._C._functorch._add_batch_dim(mask.view(-1, *full), 0, level)
        else:
            mask = mask.view(full)
        return value.mul_(mask) if kwargs["inplace"] else value * mask

    def _mask(self, each: int, p: float, like: Tensor) -> Tensor:
        """So many entries for each user: 0, or what keeps the mean."""
        least, numbers = min(round(p * VALUES), VALUES - 1), []
        for place in self.places:
            self._calls[place] += 1
            stream = self._draws.stream(self._users[place], self._calls[place])
            numbers.append(stream.random_raw(-(-each // 4)).view(np.int16)[:each])  # of 64 bits
        bits = np.concatenate(numbers) if len(numbers) > 1 else numbers[0]
        kept = (bits >= np.int16(least - VALUES // 2)).view(
            np.uint8
        )  # fast to convert, unlike bool
        return torch.from_numpy(kept).to(like.device, like.dtype).mul_(VALUES / (VALUES - least))

    def _is_recomputed(self) -> bool:
        """Whether this part of a model is computed again in the backward pass, without this mode.

        Such a part (torch.utils.checkpoint) restores PyTorch's own random numbers for it.
        """
        hooked: Any = torch._C._autograd._top_saved_tensors_default_hooks(True)
        return bool(hooked) or torch.is_grad_enabled() != self.graph


def seed_torch(seed: int, device: torch.device) -> None:
    """Seed what PyTorch draws itself; only it draws on an accelerator."""
    torch.default_generator.manual_seed(seed)
    if device.type != "cpu":  # this formats a traceback for every device that is not there
        torch.manual_seed(seed)


class WithoutDropout(TorchFunctionMode):
    """Dropout returns what it is given."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func in KEYED or func in OTHERS:
            return args[0]
        options = dict(kwargs or {})
        if "dropout_p" in options:  # of attention
            options["dropout_p"] = 0.0
        return func(*args, **options)
