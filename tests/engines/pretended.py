"""A device `pretend` beside the processor, run by test_accelerators.py in a process of its own.

PyTorch dispatches to it as to an accelerator: what is on it has no memory that the host can read,
tensors of two devices do not mix, and like Apple's it has no float64. Its kernels are those of the
processor, and every copy to the host is written down.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

import salf
from salf.methods import METHODS
from salf.simulation import Simulation

HOST = torch.device("cpu")
# Strides of what is on the device are those of a contiguous tensor, whatever the host's are.
BY_STRIDES = ("aten::view", "aten::as_strided", "aten::_reshape_alias", "aten::_unsafe_view")
# PyTorch's own are right: they share the memory.
NATIVE = ("aten::detach", "aten::alias", "aten::_to_copy", "aten::copy_")
memory: dict[int, tuple[Any, Tensor]] = {}  # of each storage; kept, so that no other has its number
copies: list[str] = []  # to the host


def there(thing: Any) -> bool:
    return isinstance(thing, Tensor) and thing.device.type == "pretend"


def host(tensor: Tensor) -> Tensor:
    return memory[tensor.untyped_storage()._cdata][1]


def on_device(values: Tensor) -> Tensor:
    if values.dtype is torch.float64:
        raise TypeError("this device has no float64")
    with torch.inference_mode(False):
        tensor = torch._C._acc.create_empty_tensor(list(values.shape), values.dtype)
    storage = tensor.untyped_storage()
    memory[storage._cdata] = storage, values
    return tensor


def kernel(op: Any) -> Callable[..., Any]:
    """The device's kernel of an operation."""

    def compute(*args: Any, **kwargs: Any) -> Any:
        given = [each for each in (*args, *kwargs.values()) if there(each)]
        own, more = tree_map(lambda each: host(each) if there(each) else each, (args, kwargs))
        more = {name: HOST if name == "device" else each for name, each in more.items()}
        if op._schema.name in BY_STRIDES:
            own = own[0].contiguous(), *own[1:]
        tensors = {id(host(each)): each for each in given if op._schema.is_mutable}

        def result(each: Any) -> Any:
            tensor = tensors.get(id(each))
            if not isinstance(each, Tensor):
                return each
            if tensor is None:
                return on_device(each)
            if tensor.shape != each.shape:  # it was squeezed in place
                tensor.data = on_device(each)
            return tensor

        return tree_map(result, op(*own, **more))

    return compute


def read(tensor: Tensor) -> Any:
    copies.append("item")
    return host(tensor).item()


def copied(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    if there(source) and not there(target):
        copies.append("copy")
    values = host(source) if there(source) else source
    (host(target) if there(target) else target).copy_(values)
    return target


def convolution_backward(signal: Tensor, inputs: Tensor, weight: Tensor, *more: Any) -> Any:
    of = kernel(torch.ops.aten.convolution_backward.default)
    return of(signal, inputs, weight, None, *more)


def begin() -> torch.library.Library:
    """Let PyTorch know the device, for as long as the library is kept."""
    _setup_privateuseone_for_python_backend("pretend")
    library = torch.library.Library("aten", "IMPL")
    for full in torch._C._dispatch_get_all_op_names():
        if not full.startswith("aten::") or full in (*NATIVE, "aten::_local_scalar_dense"):
            continue
        name, _, overload = full[6:].partition(".")
        op = getattr(getattr(torch.ops.aten, name, None), overload or "default", None)
        if op is None:
            continue
        returned = [each.alias_info for each in op._schema.returns]
        is_view = any(alias is not None and not alias.is_write for alias in returned)
        kinds = ["CPU"]
        if is_view or name in ("squeeze_", "unsqueeze_"):
            kinds.append("CompositeExplicitAutograd")
        if any(torch._C._dispatch_has_kernel_for_dispatch_key(full, kind) for kind in kinds):
            library.impl(full[6:], kernel(op), "PrivateUse1")
    torch.accelerator.synchronize = lambda device=None: None
    library.impl("_local_scalar_dense", read, "PrivateUse1")
    library.impl("_copy_from", copied, "PrivateUse1")
    convolution = kernel(torch.ops.aten.convolution.default)
    library.impl("convolution_overrideable", convolution, "PrivateUse1")
    library.impl("convolution_backward_overrideable", convolution_backward, "PrivateUse1")
    return library


@contextmanager
def rounds_watched(of_rounds: list[list[str]]) -> Iterator[None]:
    """Note the copies to the host within each round."""
    plain = Simulation.step_until

    def watched(self: Simulation, end: float | None) -> Any:
        copies.clear()
        row = plain(self, end)
        of_rounds.append(list(copies))
        return row

    Simulation.step_until = watched  # type: ignore[method-assign]
    try:
        yield
    finally:
        Simulation.step_until = plain  # type: ignore[method-assign]


def network(kind: str) -> nn.Module:
    torch.manual_seed(0)
    if kind == "linear":
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
    norm = [nn.BatchNorm2d(4)] if kind == "norm" else []
    pool = nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.3)
    return nn.Sequential(nn.Conv2d(1, 4, 3), *norm, nn.ReLU(), *pool, nn.Linear(36, 10))


def data() -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    images = torch.rand(300, 1, 8, 8)
    return images, (images.flatten(1).sum(1) * 10).long() % 10


def trained(device: str, kind: str, **settings: Any) -> tuple[list[float], Tensor, list[list[str]]]:
    """The losses, the model's tensors, and the copies of every round."""
    model, of_rounds = network(kind), list[list[str]]()
    given = {"method": "salf", "users": 12, "rounds": 3, "batch_size": 8}
    with rounds_watched(of_rounds):
        history = salf.train(model, data(), device=device, **{**given, **settings})
    state = [each.detach().cpu().double().flatten() for each in model.state_dict().values()]
    return [row.train_loss for row in history.rows], torch.cat(state), of_rounds


def check(kind: str, **settings: Any) -> None:
    losses, weights, _ = trained("cpu", kind, **settings)
    found, moved, of_rounds = trained("pretend", kind, **settings)
    case = f"{kind} {settings}"
    torch.testing.assert_close(moved, weights, rtol=1e-5, atol=1e-6, msg=case)
    torch.testing.assert_close(torch.tensor(found), torch.tensor(losses), msg=case)
    assert of_rounds == [["copy"]] * 3, (case, of_rounds)  # the loss and whether all is finite


ENGINES = {
    "fused": [("linear", {}), ("images", {}), ("norm", {})],
    "grouped": [("images", {})],
    "stacked": [("linear", {"local_steps": 3})],
    "loop": [("images", {}), ("norm", {"local_steps": 3})],
}


def looks(outputs: Tensor, targets: Tensor) -> Tensor:
    """A loss that reads a number of the device."""
    return nn.functional.cross_entropy(outputs, targets) * (outputs.max().item() < 1e9)


if __name__ == "__main__":
    library = begin()
    for engine, cases in ENGINES.items():
        for kind, settings in cases:
            check(kind, engine=engine, stragglers=0.5, **settings)
        print(f"engine {engine}")
    for name in METHODS:
        asks = salf.method(name).asks
        world = {"fleet": "phones"} if asks.clock or asks.deadline else {"stragglers": 0.5}
        if asks.deadline:
            world["deadline"] = "2s"
        check("linear", method=name, momentum=0.0, local_steps=2, **world)
        print(f"method {name}")
    for stage in ({"robust": "mixed"}, {"compress": "qsgd:4"}, {"compress": "topk:0.1"}):
        losses, found = (trained(device, "linear", **stage)[0] for device in ("cpu", "pretend"))
        torch.testing.assert_close(torch.tensor(found), torch.tensor(losses), msg=str(stage))
    found = trained("pretend", "linear", loss=looks, engine="fused")[2]
    assert all(len(of_round) > 1 for of_round in found), found
    print("a loss that looks is seen")
