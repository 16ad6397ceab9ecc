"""Who is asked, and with which batch: fair, and each user's own affair.

Chi-square tests reject fair draws with probability 1e-4; seeds are fixed.
"""

from itertools import combinations

import numpy as np
import pytest
import torch
from scipy import stats

from nets import small_mlp, small_normed
from reference import assert_close, copy_of, data, gradients, simulate
from salf.common.errors import SalfError
from salf.core.arrivals import Arrivals
from salf.core.draws import Keyed
from salf.data import OwnData, Partitioned, Samples
from salf.data.sampling import Batches, Cohort
from salf.engines import ENGINES
from salf.methods import method
from salf.worlds.depth import Mixture, PerUser, Uniform

ALPHA = 1e-4
NOBODY = np.empty(0, np.int64)


def split_of(*sizes):
    """Users with so many samples; a sample's label is its number."""
    count = sum(sizes)
    samples = Samples(torch.arange(count)[:, None].double(), torch.arange(count))
    return Partitioned(samples, np.split(np.arange(count), np.cumsum(sizes)[:-1]))


# ---- batches --------------------------------------------------------------------------------


def test_a_batch_is_of_the_users_own_samples_and_all_of_them_if_they_are_fewer():
    parts = split_of(9, 3, 20)
    batches = Batches(parts, 5)
    assert batches.sizes(np.arange(3)).tolist() == [5, 3, 5]
    for t in range(1, 50):
        rows = batches.of_round(Keyed(1, t), np.arange(3))
        _, labels = rows(np.array([0, 2]))
        first, second = labels.tolist()[:5], labels.tolist()[5:]
        assert len(set(first)) == len(set(second)) == 5
        assert set(first) <= set(range(9))
        assert set(second) <= set(range(12, 32))
        assert sorted(rows(np.array([1]))[1].tolist()) == [9, 10, 11]
    with pytest.raises(SalfError, match="batch size must be at least 1, not 0"):
        Batches(split_of(3), 0)


def test_a_users_batch_depends_on_nobody_else_and_differs_by_round_and_step():
    parts = split_of(30, 30, 30)
    batches, draws = Batches(parts, 4), Keyed(1, 1)
    rows, two = batches.of_round(draws, np.arange(3)), np.array([2])
    together = rows(np.arange(3))[1].reshape(3, 4)
    assert rows(two)[1].tolist() == together[2].tolist()
    assert rows(np.array([2, 0]))[1].tolist() == [*together[2].tolist(), *together[0].tolist()]
    alone = batches.of_round(draws, two)
    assert alone(two)[1].tolist() == together[2].tolist()
    assert alone(two, step=2)[1].tolist() == rows(two, step=2)[1].tolist()
    assert alone(two, step=2)[1].tolist() != together[2].tolist()
    assert batches.of_round(Keyed(1, 2), two)(two)[1].tolist() != together[2].tolist()


# ---- cohorts --------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [1, 2])
def test_every_cohort_is_equally_likely(seed):
    number = {chosen: i for i, chosen in enumerate(combinations(range(6), 2))}
    cohort = Cohort(6, 2)
    drawn = [tuple(cohort.draw(Keyed(seed, t), NOBODY).tolist()) for t in range(1, 3001)]
    counts = np.bincount([number[each] for each in drawn], minlength=len(number))
    assert stats.chisquare(counts).pvalue > ALPHA


@pytest.mark.parametrize("seed", [1, 2])
def test_a_cohort_by_weight_draws_users_one_after_the_other_in_proportion_to_it(seed):
    """Two of four: P({a, b}) = w_a/W w_b/(W - w_a) + w_b/W w_a/(W - w_b)."""
    weights = np.array([1.0, 2.0, 3.0, 6.0])
    total = weights.sum()
    pairs = list(combinations(range(4), 2))
    wanted = [
        weights[a] * weights[b] / total * (1 / (total - weights[a]) + 1 / (total - weights[b]))
        for a, b in pairs
    ]
    cohort = Cohort(4, 2, weights)
    drawn = [tuple(cohort.draw(Keyed(seed, t), NOBODY).tolist()) for t in range(1, 3001)]
    counts = np.array([drawn.count(pair) for pair in pairs])
    assert counts.sum() == 3000
    assert stats.chisquare(counts, np.array(wanted) * 3000).pvalue > ALPHA


@pytest.mark.parametrize("weights", [None, np.arange(1.0, 9.0)])
def test_busy_users_are_asked_only_if_there_are_too_few_others(weights):
    cohort = Cohort(8, 3, weights)
    for t in range(1, 100):
        asked = cohort.draw(Keyed(0, t), np.array([1, 4]))
        assert len(set(asked.tolist())) == 3
        assert not {1, 4} & set(asked.tolist())
        assert (np.diff(asked) > 0).all()
    asked = cohort.draw(Keyed(0, 1), np.arange(6))
    assert len(set(asked.tolist())) == 3
    assert {6, 7} <= set(asked.tolist())
    assert Cohort(4, 4, weights).draw(Keyed(0, 1), np.array([2])).tolist() == [0, 1, 2, 3]


def test_the_mixtures_ratio_is_of_the_cohort_and_p_l_is_given_the_cohort():
    law, cohort = Mixture(100, 3, 0.5), np.array([3, 50, 70, 99])
    for t in range(1, 30):
        arrived = law.draw(Keyed(0, t), cohort)
        assert arrived.user.tolist() == cohort.tolist()
        assert arrived.straggler.sum() == 2
    assert Mixture(100, 3, 0.9).unreached(cohort[:1]).tolist() == pytest.approx([0.75, 0.5, 0.25])
    np.testing.assert_allclose(Uniform(100, 3).unreached(cohort), (1 - np.arange(1, 4) / 4) ** 4)
    chances = np.array([[0.5, 0.5], [0.9, 0.1], [0.2, 0.8]])
    np.testing.assert_allclose(PerUser(chances).unreached(np.array([0, 2])), [0.5 * 0.8])


# ---- whole rounds ---------------------------------------------------------------------------

SIZES = (9, 2, 5, 1, 9, 3, 9, 4)
METHODS = [
    ("salf", {}),
    ("drop", {"average": "all"}),
    ("heterofl", {}),
    ("heterofl", {"average": "all"}),
    ("asyncfl", {}),
    ("mifa", {}),
    ("scaffold", {}),
]
PARTS = np.split(np.arange(sum(SIZES)), np.cumsum(SIZES)[:-1])


def unequal(make=small_mlp, name="salf", law=None, **options):
    law = law or Mixture(len(SIZES), 3, 0.6)
    samples = data(sum(SIZES), 1, (4,) if make is small_mlp else (2, 4, 4))
    return simulate(make(), name, law, samples, PARTS, **{"momentum": 0.5, "batch": 4, **options})


@pytest.mark.parametrize(
    ("make", "cohort", "by_samples"),
    [(small_mlp, None, False), (small_normed, 5, True)],
)
@pytest.mark.parametrize(("name", "options"), METHODS)
def test_the_engines_agree_on_cohorts_with_unequal_batches(name, options, make, cohort, by_samples):
    ends, rows = {}, {}
    for key in (("loop", 0), ("fused", 1), ("fused", 2**28), ("grouped", 2**28)):
        more = {"chunk_bytes": key[1]} if key[1] else {}
        more |= {"cohort": cohort, "by_samples": by_samples, "options": options}
        sim = unequal(make, name, engine=key[0], **more)
        rows[key] = [sim.step() for _ in range(5)]
        ends[key] = copy_of(sim.model)
    wanted, rounds = ends.pop(("loop", 0)), rows.pop(("loop", 0))
    assert max(row.reached[-1] for row in rounds) <= (cohort or 8) + (8 if name == "asyncfl" else 0)
    for key, found in ends.items():
        assert_close(found, wanted, 1e-10)
        assert [row.reached for row in rows[key]] == [row.reached for row in rounds]
        for row, other in zip(rows[key], rounds, strict=True):
            assert row.train_loss == pytest.approx(other.train_loss, rel=1e-10, nan_ok=True)


@pytest.mark.parametrize("engine", ENGINES)
def test_fedavg_by_samples_is_the_gradient_of_the_mean_over_all_samples(engine):
    """With whole parts as batches; written without the library."""
    law = Mixture(len(SIZES), 3, 0.5)
    sim = unequal(
        name="fedavg", law=law, momentum=0.0, rate=0.1, batch=100, engine=engine, by_samples=True
    )
    before = copy_of(sim.model)
    found = gradients(small_mlp(), *data(sum(SIZES), 1, (4,)))  # of the mean over all samples
    sim.step()
    assert_close(copy_of(sim.model), {n: before[n] - 0.1 * found[n] for n in before}, 1e-12)


def test_weights_scale_the_shares_and_what_they_are_divided_by():
    weights, p = np.array([1.0, 3.0, 6.0]), np.array([0.5, 0.0])

    def weighed(depths, name, **options):
        arrived = Arrivals(np.array(depths), weight=weights)
        return method(name, **options).weights(arrived, p)

    np.testing.assert_allclose(weighed([1, 2, 3], "salf"), [[2, 0, 0], [1 / 4, 3 / 4, 0]])
    found = weighed([1, 2, 3], "salf", average="all")
    np.testing.assert_allclose(found, [[0.1, 0, 0], [0.1, 0.3, 0]])
    np.testing.assert_allclose(weighed([1, 2, 3], "drop"), [[1, 0, 0], [1, 0, 0]])
    for name in ("fedavg", "drop", "asyncfl"):
        np.testing.assert_allclose(weighed([1, 1, 1], name), [[0.1, 0.3, 0.6]] * 2)


def test_heterofl_averages_each_entry_over_the_weights_of_its_holders():
    """Entries that only full-width users hold: the weighted mean over these alone."""
    law = Mixture(len(SIZES), 3, 0.5)
    inputs, labels = data(sum(SIZES), 1, (4,))
    sim = unequal(name="heterofl", law=law, engine="loop", by_samples=True, batch=100)
    before = copy_of(sim.model)
    full = np.flatnonzero(~law.draw(Keyed(0, 1), np.arange(len(SIZES))).straggler)
    sim.step()
    twin = small_mlp()
    weighed = sum(
        SIZES[user] * gradients(twin, inputs[PARTS[user]], labels[PARTS[user]])["0.weight"][-1]
        for user in full
    ) / sum(SIZES[user] for user in full)
    found = (before["0.weight"] - copy_of(sim.model)["0.weight"])[-1] / 0.1
    torch.testing.assert_close(found, weighed, rtol=1e-10, atol=1e-12)


def test_only_the_users_asked_make_their_data():
    made = []

    def make(user):
        made.append(user)
        generator = torch.Generator().manual_seed(user)
        return torch.randn(3, 4, generator=generator).double(), torch.tensor([0, 1, 2])

    users = 10**6
    parts = OwnData(make, users)
    assert len(parts) == users
    batches = Batches(parts, 2)
    asked = Cohort(users, 5).draw(Keyed(0, 1), NOBODY)
    batches.of_round(Keyed(0, 1), asked)(asked)
    assert sorted(made) == asked.tolist()  # once each
