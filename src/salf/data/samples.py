"""Samples in memory: inputs with labels, from arrays or from any data set of single samples."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from salf.common.errors import SalfError
from salf.core.inputs import Inputs


# eq=False: comparing tensors element by element has no single truth value.
@dataclass(frozen=True, eq=False)
class Samples:
    """Inputs with labels, kept as stored (uint8 stays uint8) and normalised when rows are taken.

    Four bytes a pixel instead of one would cost a quarter of a gigabyte on MNIST, for numbers that
    are needed a few hundred at a time. `mean` and `std` apply to uint8 inputs only.
    """

    inputs: Tensor = field(repr=False)
    labels: Tensor = field(repr=False)
    mean: float = 0.5
    std: float = 0.5

    def __post_init__(self) -> None:
        if self.inputs.dim() == 0 or self.labels.dim() == 0:
            raise SalfError("the first dimension of inputs and labels must be the samples.")
        if len(self.inputs) != len(self.labels):
            raise SalfError(
                f"there are {len(self.inputs)} inputs but {len(self.labels)} labels; "
                "both need one entry per sample."
            )
        if not self.std > 0:
            raise SalfError(f"std must be above 0, not {self.std}.")

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.inputs.shape[1:])

    def rows(self, index: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Take the rows of `index` (all if None): float32, (x/255 - mean)/std, if stored as uint8.

        Inputs of any other type are returned as they are.
        """
        inputs, labels = self.inputs, self.labels
        if index is not None:
            inputs, labels = inputs.index_select(0, index), labels.index_select(0, index)
        if inputs.dtype == torch.uint8:
            # The conversion makes the one copy there is; the rest happens in place.
            inputs = inputs.to(torch.float32).mul_(1 / (255 * self.std)).sub_(self.mean / self.std)
        return inputs, labels

    def subset(self, index: Tensor | NDArray[np.int64]) -> "Samples":
        """Only the samples of `index`, in that order, still as stored."""
        at = torch.as_tensor(index, device=self.inputs.device)
        return replace(
            self, inputs=self.inputs.index_select(0, at), labels=self.labels.index_select(0, at)
        )

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> "Samples":
        """The samples on `device`, with floating-point tensors converted to `dtype`."""

        def moved(each: Tensor) -> Tensor:
            return each.to(device, dtype if each.is_floating_point() else None)

        return replace(self, inputs=moved(self.inputs), labels=moved(self.labels))


@dataclass(frozen=True, eq=False)
class DataSet:
    """Training and test samples. `source` records where they came from."""

    name: str
    train: Samples
    test: Samples
    classes: int  # 0 if the labels are no classes (regression)
    source: str
    owners: NDArray[np.int64] | None = None  # the number of the user of each training sample

    def __post_init__(self) -> None:
        if not len(self.train) or not len(self.test):
            raise SalfError(
                f"the data set {self.name} has {len(self.train)} training and {len(self.test)} "
                "test samples; both need at least one."
            )
        if self.train.shape != self.test.shape:
            raise SalfError(
                f"training samples have shape {self.train.shape} but test samples have "
                f"{self.test.shape}; they must be the same."
            )


OWN = "own data"  # the name of data without one
GREY = {"1", "L", "LA"}  # modes of PIL images
ARRAYS = (Tensor, np.ndarray)
LABELS = {"label", "labels", "y", "target", "targets", "class"}


def from_tensors(train: Any, test: Any, name: str = OWN) -> DataSet:
    """Make a data set of (inputs, labels) pairs in memory: tensors, NumPy arrays or lists.

    Instead of a pair, each half may be a data set with a length whose items are pairs or
    dictionaries of an input and a label. Integer labels are classes 0, 1, ...; labels of floats are
    targets of a regression.
    """
    trained, tested = samples_of("training", train), samples_of("test", test)
    if trained.labels.is_floating_point() != tested.labels.is_floating_point():
        raise SalfError("training and test labels must both be integers or both be floats.")
    labels = torch.cat([trained.labels.flatten(), tested.labels.flatten()])
    if not len(labels) or labels.is_floating_point():
        return DataSet(name, trained, tested, 0, name)
    if (least := int(labels.min())) < 0:
        raise SalfError(f"labels must be class numbers from 0 on; one of them is {least}.")
    return DataSet(name, trained, tested, int(labels.max()) + 1, name)


def samples_of(whose: str, data: Any) -> Samples:
    """A pair of inputs and labels, or a data set of samples; `whose` they are is for errors."""
    if is_data_set(data):
        return items_of(whose, data, range(len(data)))
    if not isinstance(data, tuple | list) or len(data) != 2:
        raise SalfError(
            f"{whose} data must be a pair (inputs, labels), or a data set with __len__ and "
            f"__getitem__, not a {type(data).__name__}."
        )
    inputs, labels = _tensor(f"{whose} inputs", data[0]), _tensor(f"{whose} labels", data[1])
    return Samples(inputs, labels if labels.is_floating_point() else labels.to(torch.int64))


def is_data_set(data: object) -> bool:
    """Whether it has a length and gives samples one by one, as a Dataset of PyTorch does."""
    if isinstance(data, list):
        return bool(data) and all(isinstance(each, Mapping) or is_pair(each) for each in data)
    if isinstance(data, (Tensor, np.ndarray, Inputs, Mapping, tuple, str, bytes)):
        return False
    return hasattr(data, "__len__") and hasattr(data, "__getitem__")


def is_pair(data: object) -> bool:
    """Whether it may be inputs and labels, or a sample with its label."""
    return isinstance(data, tuple) and len(data) == 2


def items_of(whose: str, data: Any, places: Sequence[int]) -> Samples:
    """The samples at these places of a data set whose items are pairs or dictionaries."""
    if not len(places):
        return Samples(torch.zeros(0, 1), torch.zeros(0, dtype=torch.int64))
    several = getattr(data, "__getitems__", None)  # which is faster
    items = several(list(places)) if several else [data[place] for place in places]
    inputs, labels = zip(*(_input_and_label(whose, item) for item in items), strict=True)
    return samples_of(whose, (_batch(inputs), _batch(labels)))


def _input_and_label(whose: str, item: Any) -> tuple[Any, Any]:
    if isinstance(item, Mapping) and len(item) == 2:
        first, second = item
        swapped = str(first).lower() in LABELS and str(second).lower() not in LABELS
        return (item[second], item[first]) if swapped else (item[first], item[second])
    if isinstance(item, tuple | list) and len(item) == 2:
        return item[0], item[1]
    kind = f"fields {', '.join(map(str, item))}" if isinstance(item, Mapping) else type(item)
    raise SalfError(
        f"{whose} data set must return a pair (input, label) per sample, or a dictionary of the "
        f"two, not {kind}: keep two, for example with data.select_columns(['image', 'label'])."
    )


def _batch(rows: Sequence[Any]) -> Any:
    """The rows of one input or label as a list, or a list for each of several inputs."""
    first = rows[0]
    if isinstance(first, Mapping):
        return {key: _batch([row[key] for row in rows]) for key in first}
    if isinstance(first, tuple):
        return {place: _batch(each) for place, each in enumerate(zip(*rows, strict=True))}
    return [pixels(row) if hasattr(row, "convert") else row for row in rows]


def pixels(image: Any, name: str = "an image") -> NDArray[np.uint8]:
    """A PIL image as [channels, height, width], of one channel if it is grey and three if not."""
    if image.mode.startswith(("I", "F")):
        raise SalfError(f"{name} has more than 8 bits per pixel; convert it to 8 bits first.")
    array = np.array(image.convert("L" if image.mode in GREY else "RGB"))
    return array[None] if array.ndim == 2 else array.transpose(2, 0, 1)


def _tensor(what: str, given: Any) -> Tensor:
    """A tensor of an array or of a list of rows; several, of a tuple or dictionary of these."""
    if isinstance(given, Inputs):
        return cast(Tensor, given)
    if isinstance(given, tuple) and all(isinstance(part, ARRAYS) and part.ndim for part in given):
        given = dict(enumerate(given))
    if isinstance(given, Mapping):
        found = {key: _tensor(f"{what} {key!r}", part) for key, part in given.items()}
        if len({len(part) if part.dim() else 0 for part in found.values()}) != 1:
            raise SalfError(f"all {what} need one row per sample.")
        return cast(Tensor, Inputs(found))  # which has what is used of a tensor
    try:
        if isinstance(given, list | tuple) and given and isinstance(given[0], ARRAYS):
            given = torch.stack([torch.as_tensor(row) for row in given])
        # In C order: PyTorch takes no arrays with negative strides.
        array = given if isinstance(given, Tensor) else np.asarray(given, order="C")
        tensor = torch.as_tensor(array)
    except (TypeError, ValueError, RuntimeError):
        raise SalfError(
            f"{what} cannot be converted to a tensor: pass numbers, and the same shape for all "
            "samples; text as token ids, and names of classes as numbers from 0, for example with "
            "numpy.unique(labels, return_inverse=True)[1]."
        ) from None
    # Their sum first, which takes no memory: it is finite if they are, unless it overflows.
    floating = tensor.is_floating_point()
    if floating and not (bool(tensor.sum().isfinite()) or bool(tensor.isfinite().all())):
        raise SalfError(
            f"{what} contain NaN or infinite values: remove those samples, or replace the "
            "values with torch.nan_to_num."
        )
    return tensor
