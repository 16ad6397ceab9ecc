"""What each layer costs: multiply-adds of the forward and the backward pass, and bytes sent."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

from salf.core.deadline import Backpropagation
from salf.core.inputs import tensors_in, unchanged
from salf.core.layers import Layers, sent_bytes


@dataclass(frozen=True)
class Work:
    """The work of one layer for a whole batch, and the size of its part of an update."""

    forward: int  # multiply-adds
    backward: int
    bytes: int


def work(model: nn.Module, layers: Layers, example: Tensor) -> list[Work]:
    """Count the multiply-adds of each layer for the batch `example`, and the bytes it sends.

    Matrix products, convolutions and attention are counted, all else is not. An operation of the
    forward pass belongs to the layer whose parameter it uses, or else to the one used before; of
    frozen parameters there is only the forward work and the signal that passes through.
    The backward work of layer l is all that is computed after layer l + 1 is complete and until
    layer l is: for ordinary layers the gradients of its parameters and of its input (which the
    first layer does not need). The model is left unchanged.
    """
    # The fused attention kernel of the CPU is not counted; the plain one is made of products.
    counter = FlopCounterMode(display=False)
    with unchanged(model), sdpa_kernel(SDPBackend.MATH), counter:

        def counted() -> int:
            return counter.get_total_flops() // 2

        by_layer = _ByLayer(model, layers, counted)

        def loss() -> Tensor:
            with by_layer:
                outputs = model(example)
            return torch.stack([output.sum() for output in tensors_in(outputs)]).sum()

        # Backpropagation times its layers; here its clock counts operations instead of seconds.
        backward = Backpropagation(model, layers, now=counted).within(None, loss).layers
    return [
        Work(by_layer.work[index], int(backward[index + 1]), sent_bytes(model, layer))
        for index, layer in enumerate(layers)
    ]


class _ByLayer(TorchFunctionMode):
    """Attributes what is counted during each call of a torch function to a layer."""

    def __init__(self, model: nn.Module, layers: Layers, counted: Callable[[], int]) -> None:
        super().__init__()
        self.work = [0] * len(layers)
        self._layer = 0
        self._counted = counted
        parameters = dict(model.named_parameters())
        self._layer_of = {
            id(parameters[name]): index
            for index, layer in enumerate(layers)
            for name in (*layer.parameters, *layer.frozen)
        }

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        before = self._counted()
        result = func(*args, **(kwargs or {}))
        done = self._counted() - before
        if done or isinstance(result, Tensor):  # not a look at a parameter's shape or device
            used = self._layers_in([*args, *(kwargs or {}).values()])
            self._layer = used[0] if used else self._layer
        self.work[self._layer] += done
        return result

    def _layers_in(self, values: Sequence[Any]) -> list[int]:
        """The layers of the parameters among the arguments; recurrent networks pass a list."""
        flat = [x for value in values for x in (value if isinstance(value, list) else [value])]
        return [self._layer_of[id(value)] for value in flat if id(value) in self._layer_of]
