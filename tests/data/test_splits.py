import itertools

import numpy as np
import pytest
import torch
from hypothesis import given as cases
from hypothesis import settings
from hypothesis import strategies as st
from scipy import stats

from salf.common.errors import SalfError
from salf.data import given, holdout, split

SPECS = ["iid", "dirichlet:0.01", "dirichlet:0.1", "dirichlet:1", "dirichlet:100", "shards:2"]


def rng(seed=0):
    return np.random.default_rng(seed)


@st.composite
def requests(draw):
    users = draw(st.integers(1, 20))
    count = draw(st.integers(users * 2, users * 2 + 150))
    classes = draw(st.integers(1, 12))
    labels = torch.from_numpy(rng(draw(st.integers(0, 99))).integers(0, classes, count) * 3)
    return labels, users, draw(st.integers(0, 2**32))


@pytest.mark.parametrize("spec", SPECS)
@settings(max_examples=60, deadline=None)
@cases(request=requests())
def test_every_sample_goes_to_exactly_one_user_in_equal_shares(spec, request):
    labels, users, seed = request
    fair = len(labels) // users
    batch = fair if spec != "shards:2" else 2 * (len(labels) // (2 * users))
    parts = split(spec, labels, users, rng(seed))
    assert len(parts) == users
    assert sorted(np.concatenate([*parts]).tolist()) == list(range(len(labels)))
    sizes = [len(part) for part in parts]
    assert min(sizes) >= batch
    assert max(sizes) - min(sizes) <= (2 if spec == "shards:2" else 1)
    for part in parts:
        assert part.dtype == np.int64
        assert np.array_equal(part, np.sort(part))


@pytest.mark.parametrize("spec", SPECS)
def test_a_split_depends_on_the_generator_and_on_nothing_else(spec):
    labels = torch.arange(200) % 10
    first, again, other = (split(spec, labels, 7, rng(seed)) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


def test_dirichlet_mixes_follow_the_distribution_while_classes_last():
    # Few users ask for a little of each class, so that nobody is cut short: the mean over draws of
    # sum(q^2) is (alpha + 1) / (classes alpha + 1) for a symmetric Dirichlet.
    alpha, classes = 0.5, 4
    labels = torch.arange(40_000) % classes
    seen = []
    for seed in range(40):
        parts = split(f"dirichlet:{alpha}", labels, 100, rng(seed))
        for part in itertools.islice(parts, 10):
            mix = np.bincount(labels[part], minlength=classes) / len(part)
            seen.append((mix**2).sum())
    assert np.mean(seen) == pytest.approx((alpha + 1) / (classes * alpha + 1), abs=0.06)


def test_a_user_with_k_shards_sees_few_classes_and_iid_users_all():
    labels = torch.arange(6000) // 600
    assert len(split("iid", torch.randn(10, 3), 5, rng())) == 5  # which needs no classes
    for spec, fewest, most in (("shards:2", 1, 2), ("iid", 10, 10)):
        for part in split(spec, labels, 10, rng()):
            assert fewest <= len(set(labels[part].tolist())) <= most


@pytest.mark.parametrize(
    ("spec", "users", "message"),
    [
        ("iid", 21, "21 users cannot share 20 samples; use at most 20 users, or .* shared:K"),
        ("iid", 0, "at least 1 user, not 0"),
        ("dirichlet:0", 2, "needs a number above 0, as in dirichlet:0.5"),
        ("dirichlet:inf", 2, "needs a number above 0"),
        ("dirichlet", 2, "needs a number above 0"),
        ("shards:0", 2, "needs a whole number above 0, as in shards:2"),
        ("shards:1.5", 2, "needs a whole number"),
        ("shards:11", 2, "need 22 samples, but there are 20"),
        ("shared", 2, "needs a whole number above 0, as in shared:100"),
        ("shared:21", 2, "needs 21 samples, but there are 20"),
        ("dirichle:0.1", 2, "Did you mean 'dirichlet:ALPHA'"),
        ("iid:3", 2, "unknown split 'iid:3'"),
        ("", 2, "unknown split"),
    ],
)
def test_impossible_splits_are_refused(spec, users, message):
    with pytest.raises(SalfError, match=message):
        split(spec, torch.arange(20) % 4, users, rng())


@pytest.mark.parametrize("labels", [torch.randn(20), torch.zeros(20, 2, dtype=torch.int64)])
@pytest.mark.parametrize("spec", ["dirichlet:1", "shards:2"])
def test_a_split_by_label_needs_classes(spec, labels):
    with pytest.raises(SalfError, match="needs one class label per sample"):
        split(spec, labels, 2, rng())


def test_users_of_a_shared_split_hold_k_samples_each_however_many_users_there_are():
    parts = split("shared:5", torch.arange(20), 10**9, rng(1))
    assert len(parts) == 10**9
    users = np.array([0, 7, 10**9 - 1])
    assert parts.sizes(users).tolist() == [5, 5, 5]
    held = parts.at(users, np.tile(np.arange(5), (3, 1)))
    for user, own in zip(users, held, strict=True):
        assert sorted(own.tolist()) == parts[user].tolist()
        assert len(set(own.tolist())) == 5
        assert own.min() >= 0
        assert own.max() < 20
        assert parts.at(np.array([user]), np.array([[3]])) == own[3]  # the same on its own
    assert len({tuple(own) for own in held.tolist()}) == 3
    other = split("shared:5", torch.arange(20), 10**9, rng(2))
    assert other[0].tolist() != parts[0].tolist()


def test_every_sample_is_held_equally_often_in_a_shared_split():
    """Chi-square at 1e-4; each user holds 3 of 10 without repetition."""
    parts = split("shared:3", torch.arange(10), 2000, rng(1))
    counts = np.bincount(np.concatenate([*parts]), minlength=10)
    statistic = ((counts - 600) ** 2).sum() / (2000 * 0.3 * 0.7 * 10 / 9)
    assert stats.chi2.sf(statistic, 9) > 1e-4


def test_given_indices_are_sorted_and_may_overlap():
    parts = given([[3, 1], (1, 2, 0)], samples=4)
    assert [part.tolist() for part in parts] == [[1, 3], [0, 1, 2]]
    assert all(part.dtype == np.int64 for part in parts)


@pytest.mark.parametrize(
    ("indices", "message"),
    [
        ([], "no users"),
        ([[0], []], "user 1 needs a list of at least one"),
        ([[0], [4]], "user 1 has samples 4 to 4, but samples are numbered 0 to 3"),
        ([[-1]], "user 0 has samples -1 to"),
        ([[0.5]], "at least one sample, by its number"),
        ([[True, False]], "at least one sample, by its number"),
    ],
)
def test_given_indices_that_do_not_fit_are_refused(indices, message):
    with pytest.raises(SalfError, match=message):
        given(indices, samples=4)


@cases(st.integers(1, 300), st.floats(0, 0.9), st.integers(0, 99))
def test_holdout_is_a_partition_of_the_size_asked_for(count, part, seed):
    if round(count * part) == count:
        return
    kept, held = holdout(count, part, rng(seed))
    assert len(held) == round(count * part)
    assert sorted([*kept, *held]) == list(range(count))
    assert np.array_equal(held, np.sort(held))
    assert np.array_equal(kept, np.sort(kept))


@pytest.mark.parametrize("part", [-0.1, 1, 1.5, float("nan"), 0.9])
def test_holdout_of_everything_or_less_than_nothing_is_refused(part):
    with pytest.raises(SalfError, match=r"at least 0 and below 1|leaves none"):
        holdout(1, part, rng())
