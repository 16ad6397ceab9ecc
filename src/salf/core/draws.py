"""Random draws keyed by (seed, round, user), so that each user's draws depend on nobody else.

A user that takes no part costs nothing, and a live user draws its own batch alone. The numbers come
from Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011), a function
of a key and a counter that has no state, computed here for many users at once.
"""

from enum import IntEnum
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from salf.core.arrivals import Floats, Ints

Words = npt.NDArray[np.uint64]  # of 32 bits each, in 64, so that products do not overflow

_MULTIPLIERS = np.array([[0xD2511F53], [0xCD9E8D57]], np.uint64)
_KEY_STEPS = np.array([[0x9E3779B9], [0xBB67AE85]], np.uint64)
SEEDS_AT_ONCE = 32
_LOW, _BITS = np.array(0xFFFFFFFF, np.uint64), np.array(32, np.uint64)


class Purpose(IntEnum):
    """The purpose of a draw. Draws for different purposes are independent."""

    BATCH = 0
    DEPTH = 1
    COHORT = 2
    PART = 3
    STEP = 4
    EPOCH = 5
    DEVICE = 6
    JITTER = 7
    AVAILABLE = 8
    SLOT = 9
    ATTACK = 11
    ROUNDING = 12
    TORCH = 13


class Keyed:
    """The draws of round t. Equal arguments give equal numbers, in any order of calls."""

    def __init__(self, seed: int, t: int) -> None:
        self.seed, self.t = seed, t

    @cached_property
    def rng(self) -> np.random.Generator:
        """A generator of the round, for draws that several users have in common."""
        return np.random.default_rng([self.seed, self.t])

    @property
    def torch_seed(self) -> int:
        """The seed of what torch itself draws, such as dropout."""
        block, place = divmod(self.t, SEEDS_AT_ONCE)
        return _torch_seeds(self.seed, block)[place]

    def torch_seed_of(self, user: int) -> int:
        """The seed of what torch draws for one user."""
        return int(self.stream(user, 0).random_raw() >> 1)

    def stream(self, user: int, call: int) -> np.random.Philox:
        """The random bits of a call of dropout (1, 2, ...) for one user."""
        return np.random.Philox(key=[self.seed, self.t], counter=[0, call, user, Purpose.TORCH])

    def uniform(self, users: Ints, purpose: Purpose, n: int = 1, step: int | Ints = 1) -> Floats:
        """`n` numbers in [0, 1) for each user, in local step `step`: [users, n]."""
        return keyed_uniform(self.seed, self.t, users, purpose, n, step)


class Unkeyed:
    """Draws one after the other from a generator, for many draws of what users do in one round."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng

    def uniform(self, users: Ints, purpose: Purpose, n: int = 1, step: int | Ints = 1) -> Floats:
        return self.rng.random((len(users), n))


Draws = Keyed | Unkeyed  # the random numbers of one round


def keyed_uniform(
    seed: int, t: int | Ints, users: Ints, purpose: Purpose, n: int, step: int | Ints
) -> Floats:
    """`n` numbers in [0, 1) for each user, [users, n]; t and step are one, or [users, 1]."""
    blocks = -(-n // 2)  # a block of four words makes two numbers
    counter = np.empty((4, len(users), blocks), np.uint64)
    counter[0], counter[1], counter[2] = t, users[:, None], step
    counter[3] = (purpose << 24) + np.arange(blocks)
    words = philox(counter, seed).reshape(2, 2, len(users), blocks)
    high, low = words[:, 0] >> np.uint64(5), words[:, 1] >> np.uint64(6)
    numbers = (high * 2.0**26 + low) * 2.0**-53
    return np.asarray(numbers.transpose(1, 2, 0).reshape(len(users), 2 * blocks)[:, :n])


def philox(counter: Words, key: int) -> Words:
    """Philox4x32-10: four random words for every four words of `counter`, [4, ...]."""
    words = counter.reshape(4, -1)
    even, odd, spare = words[0::2].copy(), words[1::2].copy(), np.empty_like(words[0::2])
    # At full size, because NumPy multiplies arrays of one shape much faster.
    multipliers = np.repeat(_MULTIPLIERS, words.shape[1], axis=1)
    for round_key in _round_keys(key):
        even *= multipliers
        swapped = even[::-1]
        np.right_shift(swapped, _BITS, out=spare)
        odd ^= spare
        odd ^= round_key
        np.bitwise_and(swapped, _LOW, out=spare)
        even, odd, spare = odd, spare, even
    found = np.empty_like(words)
    found[0::2], found[1::2] = even, odd
    return found.reshape(counter.shape)


@lru_cache(maxsize=64)
def _torch_seeds(seed: int, block: int) -> list[int]:
    """The seeds of a block of rounds: one by one, each costs several times as much."""
    rounds = range(block * SEEDS_AT_ONCE, (block + 1) * SEEDS_AT_ONCE)
    states = (np.random.SeedSequence([seed, t]).generate_state(1, np.uint64) for t in rounds)
    return [int(state[0] >> np.uint64(1)) for state in states]


@lru_cache(maxsize=64)
def _round_keys(key: int) -> tuple[Words, ...]:
    """The key of each of the ten rounds, [2, 1]."""
    words = np.array([[key & 0xFFFFFFFF], [key >> 32]], np.uint64)
    return tuple((words + np.uint64(n) * _KEY_STEPS) & _LOW for n in range(10))


def normal(first: Floats, second: Floats) -> Floats:
    """Standard normal numbers from two uniform ones each (Box and Muller)."""
    return np.asarray(np.sqrt(-2 * np.log1p(-first)) * np.cos(2 * np.pi * second))


def distinct(uniforms: Floats, sizes: Ints) -> Ints:
    """`n` different places of 0..sizes[u]-1 for each user: every set of them is equally likely.

    Floyd's algorithm on numbers in [0, 1), [users, n]: the k-th pick is uniform on the first
    sizes - n + k + 1 places, and if it was picked before, the last of these places replaces it.
    """
    n = uniforms.shape[1]
    last = sizes[:, None] - n + np.arange(n)
    picks = (uniforms * (last + 1)).astype(np.int64)
    ordered = np.sort(picks, axis=1)
    repeated = np.flatnonzero((ordered[:, 1:] == ordered[:, :-1]).any(axis=1))
    some, last = picks[repeated], last[repeated]
    for k in range(1, n if len(repeated) else 0):
        again = (some[:, :k] == some[:, k, None]).any(axis=1)
        some[again, k] = last[again, k]
    picks[repeated] = some
    return np.asarray(picks)
