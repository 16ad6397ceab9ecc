"""Python objects on their way to nodes, with their large tensors in Ray's store: each goes once."""

import io
import pickle
from typing import Any

import numpy as np
import torch
from torch import Tensor

LARGE = 2**16  # bytes of a tensor that is sent by itself


def _is_array(tensor: Tensor) -> bool:
    """Whether NumPy has it: in the processor's memory, of a type that it knows."""
    on_cpu = tensor.device.type == "cpu" and not tensor.requires_grad
    return on_cpu and tensor.layout is torch.strided and tensor.dtype is not torch.bfloat16


def packed(thing: Any, known: dict[int, tuple[Any, Any]]) -> tuple[bytes, list[Any]]:
    """An object as bytes, and references to its large tensors; `known` has those sent before."""
    import ray
    from ray import cloudpickle

    references = []

    class Packer(cloudpickle.Pickler):
        def persistent_id(self, thing: Any) -> Any:
            plain = type(thing) is np.ndarray or (type(thing) is Tensor and _is_array(thing))
            if not plain or thing.nbytes < LARGE:
                return None
            if id(thing) not in known:
                array = thing.numpy() if isinstance(thing, Tensor) else thing
                known[id(thing)] = thing, ray.put(array)  # kept, so that no other has its id
            references.append(known[id(thing)][1])
            return len(references) - 1, type(thing) is Tensor

    content = io.BytesIO()
    Packer(content).dump(thing)  # type: ignore[no-untyped-call]
    return content.getvalue(), references


class Unpacker(pickle.Unpickler):
    """Reads what `packed` made, on a node."""

    def __init__(self, file: Any, references: list[Any]) -> None:
        super().__init__(file)
        self._references = references

    def persistent_load(self, place: Any) -> Any:
        import ray

        index, is_tensor = place
        array = ray.get(self._references[index])
        return torch.from_numpy(array) if is_tensor else array
