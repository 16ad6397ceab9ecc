"""Keyed draws: the published generator, uniform, independent, the same whoever else draws.

Chi-square and correlation tests reject a fair generator with probability 1e-4; seeds are fixed.
"""

from itertools import combinations

import numpy as np
import pytest
from scipy import stats

from salf.core.draws import Keyed, Purpose, distinct, philox

ALPHA = 1e-4
ALL_ONES = 0xFFFFFFFF


@pytest.mark.parametrize(
    ("counter", "key", "wanted"),
    [
        ([0] * 4, 0, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ([ALL_ONES] * 4, 2**64 - 1, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            0x299F31D0A4093822,
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ],
    ids=["zeros", "ones", "pi"],
)
def test_philox_gives_the_published_numbers(counter, key, wanted):
    """Random123's known-answer vectors, also within a larger array."""
    words = np.array(counter, np.uint64)[:, None]
    assert philox(words, key)[:, 0].tolist() == wanted
    many = np.tile(words[:, :, None], (1, 3, 2))
    many[:, 0, 0] = 5
    assert philox(many, key)[:, 2, 1].tolist() == wanted
    assert (words[:, 0] == counter).all()  # the counter is not written to


def test_a_user_draws_the_same_numbers_whoever_else_draws_and_however_many():
    draws = Keyed(3, 7)
    together = draws.uniform(np.arange(50), Purpose.BATCH, 9)
    np.testing.assert_array_equal(
        draws.uniform(np.array([40, 2]), Purpose.BATCH, 9), together[[40, 2]]
    )
    np.testing.assert_array_equal(draws.uniform(np.arange(50), Purpose.BATCH, 4), together[:, :4])
    np.testing.assert_array_equal(Keyed(3, 7).uniform(np.arange(50), Purpose.BATCH, 9), together)


def test_seed_round_user_purpose_and_step_all_give_other_numbers():
    users = np.array([0, 1, 2**31])
    drawn = [
        Keyed(seed, t).uniform(users, purpose, 2, step)
        for seed in (0, 1, 2**40, 2**63 - 1)
        for t in (1, 2)
        for purpose in Purpose
        for step in (1, 2)
    ]
    numbers = np.concatenate([each.ravel() for each in drawn])
    assert len(set(numbers.tolist())) == numbers.size
    assert numbers.min() >= 0
    assert numbers.max() < 1


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_numbers_are_uniform_and_neighbours_are_independent(seed):
    """Along users, numbers, rounds and steps: pairs of neighbours in 8 x 8 cells."""
    drawn = np.array(
        [
            [Keyed(seed, t).uniform(np.arange(40), Purpose.BATCH, 6, step) for step in (1, 2, 3, 4)]
            for t in range(1, 9)
        ]
    )
    assert stats.kstest(drawn.ravel(), "uniform").pvalue > ALPHA
    for axis in range(drawn.ndim):
        first, second = np.moveaxis(drawn, axis, 0)[::2], np.moveaxis(drawn, axis, 0)[1::2]
        cells = (first * 8).astype(int) * 8 + (second * 8).astype(int)
        assert stats.chisquare(np.bincount(cells.ravel(), minlength=64)).pvalue > ALPHA


def test_the_generator_and_torchs_seed_are_the_rounds():
    assert Keyed(1, 2).rng.random() == Keyed(1, 2).rng.random()
    seeds = {Keyed(seed, t).torch_seed for seed in range(5) for t in range(1, 6)}
    assert len(seeds) == 25
    assert all(0 <= seed < 2**63 for seed in seeds)


@pytest.mark.parametrize(("size", "n"), [(6, 2), (6, 4), (5, 5), (7, 6), (4, 1)])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_every_set_of_places_is_equally_likely(size, n, seed):
    """Chi-square over all subsets, in keyed draws of many users beside users of another size."""
    users = np.arange(6000)
    sizes = np.where(users % 2, size, 3 * size)
    picks = distinct(Keyed(seed, 1).uniform(users, Purpose.BATCH, n), sizes)[users % 2 == 1]
    number = {chosen: i for i, chosen in enumerate(combinations(range(size), n))}
    counts = np.bincount([number[tuple(sorted(own))] for own in picks.tolist()])
    assert len(counts) == len(number)
    if len(number) > 1:
        assert stats.chisquare(counts).pvalue > ALPHA


def test_nothing_is_drawn_for_nobody():
    """AsyncFL asks nobody while all users are busy."""
    assert Keyed(0, 1).uniform(np.empty(0, np.int64), Purpose.JITTER, 2).shape == (0, 2)
