"""What each layer costs: the operations of the forward and the backward pass, and bytes sent."""

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from salf.core.arrivals import Floats
from salf.core.compression import upload_bytes
from salf.core.deadline import Backpropagation
from salf.core.inputs import Operations, tensors_in, unchanged
from salf.core.layers import Layers

LARGE, DEPTHWISE = "large", "depthwise"  # kinds of convolutions that devices are slower with
SMALL = 9  # entries of the largest kernel for which there are fast algorithms
aten = torch.ops.aten


@dataclass(frozen=True, eq=False)
class Work:
    """What a step computes in each layer 1..L, and the bytes of the layer's part of an update.

    Arrays [2, L] have the forward and the backward pass. Multiply-adds are those of one row.
    """

    forward: Floats  # multiply-adds
    backward: Floats
    bytes: Floats
    large: Floats | float = 0.0  # those in convolutions with kernels of more than 3 x 3, [2, L]
    depthwise: Floats | float = 0.0  # those in depthwise convolutions, [2, L]
    products: Floats | float = 0.0  # matrix products and convolutions that are launched, [2, L]
    trained: Floats | float = 0.0  # parameters

    @property
    def multiply_adds(self) -> Floats:
        """The multiply-adds of the forward and the backward pass, [2, L]."""
        return np.array([self.forward, self.backward])


def work(model: nn.Module, layers: Layers, example: Tensor) -> Work:
    """Count the operations of each layer, for the batch `example`, and the bytes it sends.

    Matrix products, convolutions and attention are counted, all else is not. An operation of the
    forward pass belongs to the layer whose parameter it uses, or else to the one used before; of
    frozen parameters there is only the forward work and the signal that passes through.
    The backward work of layer l is all that is computed after layer l + 1 is complete and until
    layer l is: for ordinary layers the gradients of its parameters and of its input (which the
    first layer does not need). The model is left unchanged.
    """
    done: list[Product] = []
    ahead: list[list[Product]] = [[] for _ in layers]  # of the forward pass, by layer
    weights = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    layer_of = {
        id(weights[name]): index
        for index, layer in enumerate(layers)
        for name in (*layer.parameters, *layer.frozen)
    }
    latest = 0

    def note(used: list[Tensor]) -> None:
        nonlocal latest
        latest = next((layer_of[id(each)] for each in used if id(each) in layer_of), latest)
        ahead[latest] += done[sum(map(len, ahead)) :]

    # The fused attention kernel of the CPU is not counted; the plain one is made of products.
    with unchanged(model), sdpa_kernel(SDPBackend.MATH), _Recorder(done):

        def loss() -> Tensor:
            with Operations(note):
                outputs = model(example)
            sums = [each.sum() for each in tensors_in(outputs) if each.requires_grad]
            return torch.stack(sums).sum()

        # Backpropagation times its layers; here its clock counts operations instead of seconds.
        times = Backpropagation(model, layers, now=lambda: float(len(done))).within(None, loss)
    end, behind = int(times.forward), []
    for number in range(len(layers), 0, -1):
        begin, end = end, end + int(times.layers[number])
        behind.append(done[begin:end])
    passes = ahead, behind[::-1]

    def counted(*kinds: str) -> Floats:
        counts = [[sum(n for n, k in own if k in kinds) for own in each] for each in passes]
        return np.array(counts, np.float64) / len(example)

    forward, backward = counted("", LARGE, DEPTHWISE)
    return Work(
        forward,
        backward,
        np.array(upload_bytes(layers, weights), np.float64),
        counted(LARGE),
        counted(DEPTHWISE),
        np.array([[len(own) for own in each] for each in passes], np.float64),
        np.array([layer.size for layer in layers], np.float64),
    )


Product = tuple[int, str]  # multiply-adds; "large" or "depthwise" for such convolutions, or ""


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the matrix products and convolutions that are computed."""

    def __init__(self, done: list[Product]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._done = done

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func._overloadpacket not in flop_registry:
            with self:
                parts = func.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
        out = func(*args, **kwargs)
        self._done.extend(_products(func._overloadpacket, args, kwargs, out))
        return out


def _products(kind: Any, args: Any, kwargs: Any, out: Any) -> list[Product]:
    if kind is aten.convolution_backward:
        # Of the signal and of the weight, if wanted; torch counts all pairs of channels of groups.
        gradient, value, weight, *_, transposed, _, groups, wanted = args
        count = len(value) * prod((value if transposed else gradient).shape[2:]) * weight.numel()
        return [(count, _kind(value, weight, groups))] * sum(wanted[:2])
    if kind not in flop_registry:
        return []
    convolution = kind is aten.convolution
    count = flop_registry[kind](*args, **kwargs, out_val=out) // 2
    return [(count, _kind(args[0], args[1], args[8]) if convolution else "")]


def _kind(value: Tensor, weight: Tensor, groups: int) -> str:
    """The kind of a convolution."""
    if 1 < groups == value.shape[1]:
        return DEPTHWISE
    return LARGE if prod(weight.shape[2:]) > SMALL else ""
