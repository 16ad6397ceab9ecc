"""Who holds which samples."""

import math
from collections.abc import Sequence

import numpy as np
from torch import Tensor

from salf.common.errors import SalfError, unknown
from salf.data.users_data import DrawnPartition, Index, Partition


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
        return _iid(count, users, rng)
    if name == "dirichlet":
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
    if len(indices) == 0:
        raise SalfError("the split has no users.")
    parts = []
    for user, listed in enumerate(indices):
        part = np.asarray(listed)
        if part.ndim != 1 or len(part) == 0:
            raise SalfError(f"user {user} needs a list of at least one sample.")
        if not np.issubdtype(part.dtype, np.integer):
            raise SalfError(f"the samples of user {user} must be integers.")
        outside = part[(part < 0) | (part >= samples)]
        if len(outside):
            raise SalfError(
                f"user {user} has sample {outside[0]}, but samples are numbered 0 to {samples - 1}."
            )
        parts.append(np.sort(part.astype(np.int64)))
    return Partition.of(parts)


def holdout(count: int, fraction: float, rng: np.random.Generator) -> tuple[Index, Index]:
    """Keep a fraction of `count` samples back for validation: (kept, held) indices, both sorted."""
    if not 0 <= fraction < 1:
        raise SalfError(f"the share to hold out must be at least 0 and below 1, not {fraction}.")
    held = round(count * fraction)
    if held >= count:
        raise SalfError(f"holding out {fraction} of {count} samples leaves none.")
    order = rng.permutation(count)
    return np.sort(order[held:]), np.sort(order[:held])


def _iid(count: int, users: int, rng: np.random.Generator) -> Partition:
    order = rng.permutation(count)
    sizes = np.full(users, count // users)
    sizes[: count % users] += 1
    owner = np.repeat(np.arange(users), sizes)
    return Partition(order[np.lexsort((order, owner))], sizes)


def _dirichlet(classes: Index, users: int, alpha: float, rng: np.random.Generator) -> list[Index]:
    """Give each user a class mix drawn from Dirichlet(alpha, ..., alpha), and an equal part.

    Users ask for samples by their mix, in waves. A class asked for more than it has left is shared
    out by lot, and who went short asks again among the classes that are left. A wave satisfies
    everybody or exhausts a class, so there are no more waves than classes, every sample is used,
    and nobody goes short. (The other usual way, a Dirichlet draw over users for each class, gives
    users of very different sizes, some of them empty.)
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
    if not 0 < number < math.inf:
        raise SalfError(f"the split {spec!r} needs a number above 0, as in {example}.")
    if whole and number != int(number):
        raise SalfError(f"the number in {spec!r} must be an integer, as in {example}.")
    return number
