"""Every user's data, made when it is needed: parts of one data set, or data of the user's own."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence, Sized
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from salf.common.errors import SalfError, unknown
from salf.core.draws import Keyed, Purpose, distinct
from salf.core.inputs import cat
from salf.data.samples import Samples, is_data_set, is_pair, items_of, samples_of

Index = NDArray[np.int64]


class Partition:
    """The indices of every user's samples, in one array however many users there are."""

    def __init__(self, indices: Index, sizes: Index) -> None:
        self._indices, self._sizes = indices, sizes
        self._starts = np.cumsum(sizes) - sizes

    @classmethod
    def of(cls, parts: Sequence[Index]) -> "Partition":
        """From one array of indices per user."""
        return cls(np.concatenate(parts), np.array([len(part) for part in parts]))

    def __len__(self) -> int:
        return len(self._sizes)

    def __iter__(self) -> Iterator[Index]:
        return (self[user] for user in range(len(self)))

    def __getitem__(self, user: int) -> Index:
        start = self._starts[user]
        return self._indices[start : start + self._sizes[user]]

    def sizes(self, users: Index) -> Index:
        """How many samples these users have."""
        return np.asarray(self._sizes[users])

    def at(self, users: Index, places: Index) -> Index:
        """The samples at these places of the users' parts, [users, places]."""
        return np.asarray(self._indices[self._starts[users][:, None] + places])


class DrawnPartition(Partition):
    """`size` of `count` samples for each user, drawn when needed; users may share samples."""

    def __init__(self, users: int, count: int, size: int, key: int) -> None:
        self._users, self._count, self._size, self._draws = users, count, size, Keyed(key, 0)

    def __len__(self) -> int:
        return self._users

    def __getitem__(self, user: int) -> Index:
        return np.sort(self.at(np.array([user]), np.arange(self._size)[None])[0])

    def sizes(self, users: Index) -> Index:
        return np.full(len(users), self._size)

    def at(self, users: Index, places: Index) -> Index:
        uniforms = self._draws.uniform(users, Purpose.PART, self._size)
        held = distinct(uniforms, np.full(len(users), self._count))
        return np.take_along_axis(held, places, axis=1)


class UsersData(ABC):
    """The data of all users."""

    @abstractmethod
    def __len__(self) -> int:
        """How many users there are."""

    @abstractmethod
    def sizes(self, users: Index) -> Index:
        """How many samples these users have."""

    @abstractmethod
    def rows(self, users: Index, places: Index) -> tuple[Tensor, Tensor]:
        """Inputs and targets at these places of the users' data, [users, places], users in turn."""

    @abstractmethod
    def to(self, device: torch.device, dtype: torch.dtype | None) -> "UsersData":
        """The data on `device`, with floating-point tensors converted to `dtype`."""

    def own(self, user: int) -> Samples:
        """All samples of one user."""
        alone = np.array([user])
        return Samples(*self.rows(alone, np.arange(self.sizes(alone)[0])[None]))


class Partitioned(UsersData):
    """Users that hold parts of one data set."""

    def __init__(self, samples: Samples, parts: Partition | Sequence[Index]) -> None:
        self.samples = samples
        self.parts = parts if isinstance(parts, Partition) else Partition.of(parts)

    def __len__(self) -> int:
        return len(self.parts)

    def sizes(self, users: Index) -> Index:
        return self.parts.sizes(users)

    def rows(self, users: Index, places: Index) -> tuple[Tensor, Tensor]:
        index = torch.from_numpy(self.parts.at(users, places).reshape(-1))
        return self.samples.rows(index.to(self.samples.inputs.device))

    def to(self, device: torch.device, dtype: torch.dtype | None) -> "Partitioned":
        return Partitioned(self.samples.to(device, dtype), self.parts)

    @property
    def has_classes(self) -> bool:
        """Whether a sample has one class label."""
        labels = self.samples.labels
        return labels.dim() == 1 and not labels.is_floating_point()

    def label_mixes(self) -> NDArray[np.float64]:
        """The mix of classes in every user's samples: [users, classes]."""
        labels = self.samples.labels.cpu()
        if not self.has_classes:
            raise SalfError("devices or availability by labels need one class label per sample.")
        classes = int(labels.max()) + 1
        counts = [torch.bincount(labels[part], minlength=classes).numpy() for part in self.parts]
        return np.array([count / count.sum() for count in counts])

    def own(self, user: int) -> Samples:
        return self.samples.subset(self.parts[user])


class OwnData(UsersData):
    """Users that each have data of their own: `make(user)` gives it, for users 0, 1, ...

    It is a pair (inputs, labels), or a data set with a length whose items are pairs or dictionaries
    of an input and a label, such as a `torch.utils.data.Dataset` or one of Hugging Face. What was
    made last is kept, so that it is made once a round.
    """

    KEPT = 10_000  # users

    def __init__(
        self,
        make: Callable[[int], Any],
        users: int,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        self._make, self._users = make, users
        self._to = device or torch.device("cpu"), dtype
        self._made: dict[int, Any] = {}

    def __len__(self) -> int:
        return self._users

    def sizes(self, users: Index) -> Index:
        return np.array([len(self._of(user)) for user in users.tolist()], np.int64)

    def rows(self, users: Index, places: Index) -> tuple[Tensor, Tensor]:
        drawn = []
        for user, at in zip(users.tolist(), places, strict=True):
            if isinstance(data := self._of(user), Samples):
                drawn.append(data.rows(torch.from_numpy(at).to(self._to[0])))
            else:
                drawn.append(items_of(f"user {user}'s", data, at.tolist()).to(*self._to).rows())
        inputs, labels = (cat(each) for each in zip(*drawn, strict=True))
        return inputs, labels

    def to(self, device: torch.device, dtype: torch.dtype | None) -> "OwnData":
        return OwnData(self._make, self._users, device, dtype)

    def _of(self, user: int) -> Any:
        """A user's samples, or its data set, whose samples are made when they are drawn."""
        if user not in self._made:
            data = self._make(user)
            if not is_data_set(data):
                data = samples_of(f"user {user}'s", data).to(*self._to)
            _check_some(user, data)
            self._made[user] = data
            if len(self._made) > self.KEPT:
                del self._made[next(iter(self._made))]
        return self._made[user]


def of_users(data: Any, users: int | None = None) -> UsersData | None:
    """The data of each user; None if they are one data set, to be split among the users.

    Users' data are a list with an entry per user, or a function of the user's number.
    """
    if not are_of_users(data):
        return None
    if isinstance(data, list):
        if users not in (None, len(data)):
            raise SalfError(f"the data are for {len(data)} users, but users is {users}.")
        return _joined(data) if all(map(is_pair, data)) else OwnData(data.__getitem__, len(data))
    if users is None:
        raise SalfError(
            "data is a function of the user's number: pass the number of users as users=."
        )
    return OwnData(data, users)


def are_of_users(data: Any) -> bool:
    """Whether data are the users' own already."""
    if isinstance(data, list):
        return bool(data) and all(is_pair(each) or _is_set(each) for each in data)
    return callable(data) and not _is_set(data)


def _is_set(data: Any) -> bool:
    return isinstance(data, Dataset) or is_data_set(data)


def _check_some(user: int, data: Sized) -> None:
    if len(data) == 0:
        raise SalfError(f"user {user} has no samples; leave it out.")


def some(data: UsersData, count: int, users: Index | None = None) -> Samples:
    """About `count` samples of these users, by default of the first few, who stand for all."""
    users = np.arange(min(8, len(data))) if users is None else users
    each = -(-count // len(users))
    pairs = [
        data.rows(np.array([user]), np.arange(min(size, each))[None])
        for user, size in zip(users.tolist(), data.sizes(users).tolist(), strict=True)
    ]
    inputs, labels = (cat(half) for half in zip(*pairs, strict=True))
    return Samples(inputs, labels)


def _joined(pairs: Sequence[Any]) -> Partitioned:
    """Users with a pair (inputs, targets) each, as parts of one data set."""
    of_users = [samples_of(f"user {user}'s", pair) for user, pair in enumerate(pairs)]
    shapes = [(each.shape, tuple(each.labels.shape[1:])) for each in of_users]
    for user, each in enumerate(of_users):
        _check_some(user, each)
        if shapes[user] != shapes[0]:
            raise SalfError(
                f"samples and labels of user {user} have shape {shapes[user]}, but those of user 0 "
                f"have {shapes[0]}; they must be the same."
            )
    sizes = np.array([len(each) for each in of_users])
    inputs = cat([each.inputs for each in of_users])
    labels = torch.cat([each.labels for each in of_users])
    return Partitioned(Samples(inputs, labels), Partition(np.arange(len(inputs)), sizes))


# ---- who holds which samples ------------------------------------------------------------------


def split(spec: str, labels: Tensor, users: int, rng: np.random.Generator) -> Partition:
    """Split the samples among users: the sorted indices of each user's samples.

    `iid`              at random.
    `dirichlet:ALPHA`  at random by label: each user has its own mix of classes; the smaller ALPHA,
                       the fewer classes a user has.
    `shards:K`         sorted by label, cut into K pieces per user, assigned at random.
    `shared:K`         K at random for each user; several users, or none, may hold a sample.

    All but the last give each sample to one user, and parts are equal to within one sample (to
    within K for shards), because the paper's analysis takes users' data sets to be of one size.
    """
    name, _, value = spec.partition(":")
    count = len(labels)
    if users < 1:
        raise SalfError(f"there must be at least 1 user, not {users}.")
    if name == "shared":
        size = int(_number(spec, value, "shared:100", whole=True))
        if size > count:
            raise SalfError(f"the split {spec!r} needs {size} samples, but there are {count}.")
        return DrawnPartition(users, count, size, key=int(rng.integers(2**63)))
    if users > count:
        raise SalfError(
            f"{users} users cannot share {count} samples; use at most {count} users, or the split "
            "shared:K, in which users may hold the same samples."
        )
    if spec == "iid":
        parts = np.array_split(rng.permutation(count), users)
    elif name == "dirichlet":
        alpha = _number(spec, value, "dirichlet:0.5")
        parts = _dirichlet(_classes(spec, labels), users, alpha, rng)
    elif name == "shards":
        pieces = int(_number(spec, value, "shards:2", whole=True))
        parts = _shards(_classes(spec, labels), users, pieces, rng)
    else:
        raise unknown("split", spec, ["iid", "dirichlet:ALPHA", "shards:K", "shared:K"])
    return Partition.of([np.sort(part) for part in parts])


def given(indices: Sequence[Sequence[int]], samples: int) -> Partition:
    """Use a split made elsewhere: the indices of each user's samples. Users may share samples."""
    parts = [np.asarray(listed) for listed in indices]
    if not parts:
        raise SalfError("the split has no users.")
    for user, part in enumerate(parts):
        if part.ndim != 1 or len(part) == 0 or not np.issubdtype(part.dtype, np.integer):
            raise SalfError(f"user {user} needs a list of at least one sample, by its number.")
        if part.min() < 0 or part.max() >= samples:
            raise SalfError(
                f"user {user} has samples {part.min()} to {part.max()}, but samples are numbered 0 "
                f"to {samples - 1}."
            )
    return Partition.of([np.sort(part.astype(np.int64)) for part in parts])


def holdout(count: int, fraction: float, rng: np.random.Generator) -> tuple[Index, Index]:
    """Keep a fraction of `count` samples back for validation: (kept, held) indices, both sorted."""
    if not 0 <= fraction < 1:
        raise SalfError(f"the share to hold out must be at least 0 and below 1, not {fraction}.")
    held = round(count * fraction)
    if held >= count:
        raise SalfError(f"holding out {fraction} of {count} samples leaves none.")
    order = rng.permutation(count)
    return np.sort(order[held:]), np.sort(order[:held])


def _dirichlet(classes: Index, users: int, alpha: float, rng: np.random.Generator) -> list[Index]:
    """Give each user a class mix drawn from Dirichlet(alpha, ..., alpha), and an equal part.

    Users ask for samples by their mix, in waves. A class asked for more than it has left is shared
    out by lot, and who went short asks again among the classes that are left.
    """
    order = rng.permutation(len(classes))
    pools = [order[classes[order] == c] for c in range(int(classes.max()) + 1)]
    left = np.array([len(pool) for pool in pools])
    wanted = np.array([len(part) for part in np.array_split(classes, users)])
    mixes = rng.dirichlet(np.full(len(pools), alpha), size=users)
    counts = np.zeros((users, len(pools)), dtype=np.int64)
    while wanted.any():
        mix = np.where(left > 0, mixes, 0.0)
        # A small alpha gives zeros: whose classes are all gone takes what there is.
        mix = np.where(mix.sum(axis=1, keepdims=True) > 0, mix, left)
        asked = rng.multinomial(wanted, mix / mix.sum(axis=1, keepdims=True))
        for c in np.flatnonzero(asked.sum(axis=0) > left):
            asked[:, c] = rng.multivariate_hypergeometric(asked[:, c], left[c])
        counts += asked
        wanted -= asked.sum(axis=1)
        left -= asked.sum(axis=0)
    parts = [np.split(pool, np.cumsum(counts[:-1, c])) for c, pool in enumerate(pools)]
    return [np.concatenate(own) for own in zip(*parts, strict=True)]


def _shards(classes: Index, users: int, pieces: int, rng: np.random.Generator) -> list[Index]:
    if users * pieces > len(classes):
        raise SalfError(
            f"{users} users with {pieces} shards each need {users * pieces} samples, "
            f"but there are {len(classes)}; use fewer users or fewer shards."
        )
    order = rng.permutation(len(classes))
    order = order[np.argsort(classes[order], kind="stable")]
    shards = np.array_split(order, users * pieces)
    dealt = rng.permutation(users * pieces).reshape(users, pieces)
    return [np.concatenate([shards[s] for s in hand]) for hand in dealt]


def _classes(spec: str, labels: Tensor) -> Index:
    """Labels as 0, 1, ... without gaps."""
    if labels.dim() != 1 or labels.is_floating_point():
        raise SalfError(
            f"the split {spec!r} needs one class label per sample, but labels have shape "
            f"{tuple(labels.shape)} and type {labels.dtype}; use iid."
        )
    return np.unique(labels.cpu().numpy(), return_inverse=True)[1].astype(np.int64)


def _number(spec: str, value: str, example: str, whole: bool = False) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf or (whole and number != int(number)):
        kind = "a whole number" if whole else "a number"
        raise SalfError(f"the split {spec!r} needs {kind} above 0, as in {example}.")
    return number
