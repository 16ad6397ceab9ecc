"""Plans: the law of a fleet, the constants, the search, and what they say of each other."""

import numpy as np
import pytest
import torch
from scipy import special
from torch import nn

import salf
from salf.common.errors import SalfError
from salf.data import Partitioned, Samples
from salf.data.sampling import Batches
from salf.problem import Problem, evaluate
from salf.runs.config import Config
from salf.runs.constants import KAPPA, estimate
from salf.runs.federation import Given, from_config, problem_of
from salf.runs.fleet_law import FleetLaw
from salf.runs.plan import plan as make_plan
from salf.runs.plan_options import PlanOptions
from salf.runs.search import Tried, lost, search_grid
from salf.theory import Federation
from salf.theory.planning import theorem_spread
from salf.worlds.fleet.availability import markov
from salf.worlds.fleet.cost import Cost
from salf.worlds.fleet.deadlines import DeadlineSchedule
from salf.worlds.fleet.devices import Fleet
from salf.worlds.fleet.timing import Timing

TINY = Config(
    data="synthetic",
    users=6,
    batch_size=8,
    seed=0,
    threads=1,
    fleet="slow-classes",
    seconds=30.0,
    lr=0.1,
)
COST = Cost(np.array([2e4, 1e3, 2e2]), np.array([2e4, 2e3, 4e2]), np.array([1e5, 2e3, 7e2]))


def plan(config=TINY, problem_of=problem_of, *, keep=None, **options):
    return make_plan(config, problem_of, PlanOptions(**options), keep=keep)


@pytest.fixture(scope="module")
def by_bound():
    return plan(seeds=0)


@pytest.fixture(scope="module")
def equal_time():
    return plan(TINY.changed(batches="equal-time"), seeds=0)


def law(fleet, cohort=None, budget=100.0, rows=16):
    timing = Timing(
        fleet.devices,
        COST,
        lambda users: np.full(len(users), rows),
        lambda users: np.ones_like(users),
    )
    return FleetLaw(timing, cohort or len(fleet), budget)


@pytest.mark.parametrize("deadline", [0.3, 1.0, 4.0])
def test_p_l_of_slow_classes_is_adel_fls(deadline):
    """Per-layer exponential times: p_l = prod_u Q(L + 1 - l, lambda_u T)."""
    fleet = Fleet("slow-classes", 10, seed=2)
    counts, reach = law(fleet).at(deadline)
    missed = special.gammaincc(np.array([3, 2, 1])[:, None], fleet.devices.speed * deadline)
    np.testing.assert_allclose(counts[:, 0], missed.prod(axis=1), rtol=1e-9, atol=1e-15)
    assert reach == pytest.approx(1 - missed.mean())


def test_a_batch_scale_stretches_time():
    """m in ADEL-FL: batches half as large are half as long, p = Q(., T/m)."""
    fleet = Fleet("slow-classes", 10, seed=2)
    np.testing.assert_allclose(law(fleet, rows=8).at(1.0)[0], law(fleet).at(2.0)[0], rtol=1e-9)


def test_devices_that_come_and_go_are_reached_less():
    fleet = Fleet("slow-classes", 10, seed=2)
    away = fleet.available(markov(2.0, 2.0))
    assert law(away).at(1.0)[1] < 0.8 * law(fleet).at(1.0)[1]


def test_a_cohort_is_planned_as_that_many_users():
    fleet = Fleet("slow-classes", 40, seed=2)
    some = law(fleet, cohort=10)
    assert some.at(1.0)[0].shape == (3, 11)
    assert some.at(1.0)[1] == pytest.approx(law(fleet).at(1.0)[1], abs=0.03)


def test_a_round_takes_no_longer_than_the_slowest_user():
    found = law(Fleet.of([1e6, 2e6]))  # 0.6976 and 0.3488 s, without jitter
    assert found.seconds(0.5) == 0.5
    assert found.seconds(2.0) == pytest.approx(0.6976)


def test_the_grid_goes_from_few_to_nearly_all():
    found = law(Fleet("slow-classes", 10, seed=2))
    grid = search_grid(found, 100.0, 6)
    assert found.at(grid[0])[1] == pytest.approx(0.1, abs=0.01)
    assert found.at(grid[-1])[1] == pytest.approx(0.97, abs=0.01)
    assert search_grid(found, 5.0, 6)[-1] == 1.0  # five rounds at least


def linear(rows=400, features=5):
    torch.manual_seed(0)
    x = torch.randn(rows, features)
    return x, x @ torch.ones(features, 1)


def test_constants_of_a_linear_model_are_those_of_its_hessian():
    """The squared error of a linear model: rho_s is the largest eigenvalue of 2 X'X/n."""
    x, y = linear()
    model = nn.Sequential(nn.Linear(5, 1, bias=False), nn.Identity())
    data = Partitioned(Samples(x.double(), y.double()), np.arange(400).reshape(2, 200))
    problem = Problem.of(model.double(), data, loss=nn.MSELoss())
    found = estimate(problem, Batches(data, 200), {})
    hessian = 2 * x.T @ x / len(x)
    assert found.rho[1] == pytest.approx(float(torch.linalg.eigvalsh(hessian)[-1]), rel=0.05)
    assert found.rho[0] == found.rho[1] / KAPPA
    w = next(model.parameters())
    gradient = hessian.double() @ (w.detach().reshape(-1) - 1)
    assert found.squares.max() == pytest.approx(float(gradient.square().sum()), rel=0.3)
    assert (found.variances < 1e-12).all()  # every batch is all of a user's data


def test_constants_that_are_given_are_used():
    given = {"rho_c": 0.5, "rho_s": 2.0, "sigma2": 3.0, "g2": 7.0, "gap": 0.1, "distance2": 9.0}
    found = plan(**given, seeds=0)
    constants = found.constants
    assert (constants.rho_c, constants.rho_s, constants.G2) == (0.5, 2.0, 7.0)
    assert constants.sigma2 == [3.0]
    assert constants.Gamma == 0.1
    assert found.offer.problem.distance2 == 9.0
    half = found.estimates.constants(np.array([4]), 0.5)
    assert half.sigma2 == [6.0]


def test_the_bound_alone(by_bound):
    found = by_bound
    assert found.best is None
    theorem, sharp = found.offers["theorem"], found.offers["sharp"]
    assert sharp.constant.bound < theorem.constant.bound
    assert theorem.schedule.bound <= theorem.constant.bound
    seconds = sum(found.law.seconds(theorem.deadline) for _ in theorem.constant.deadlines)
    assert seconds == pytest.approx(30.0, rel=0.01)
    assert 4 <= theorem.batch_size <= 8
    assert np.isnan(found.rank_correlation("theorem"))


@pytest.fixture(scope="module")
def searched():
    return plan(seeds=2, deadlines=[0.5, 1.5, 6.0])


def test_the_search_tries_the_grid_and_what_the_bounds_offer(searched):
    offered = {offer.deadline for offer in searched.offers.values()}
    assert [each.deadline for each in searched.tried] == sorted({0.5, 1.5, 6.0, *offered})
    assert all(len(each.accuracies) == 2 for each in searched.tried)
    assert searched.followed is not None
    assert searched.best is max(searched.tried, key=lambda each: each.mean)
    assert searched.best.deadline in searched.alike()
    assert -1 <= searched.rank_correlation("theorem") <= 1


def test_a_search_that_was_interrupted_does_not_begin_again(searched, tmp_path, monkeypatch):
    kept = {"seeds": 2, "deadlines": [0.5, 1.5, 6.0], "keep": tmp_path / "search"}

    def stopped(config):
        if config.seed == 1:  # after the first seed of the first deadline
            raise KeyboardInterrupt
        return problem_of(config)

    with pytest.raises(KeyboardInterrupt):
        plan(TINY, stopped, **kept)
    assert len(list((tmp_path / "search").iterdir())) == 1
    assert plan(**kept).tried == searched.tried
    monkeypatch.setattr("salf.runs.plan.training_of", None)
    assert plan(**kept).followed == searched.followed
    with pytest.raises(TypeError):  # other settings are another run
        plan(TINY.changed(lr=0.2), **kept)


def test_the_search_is_reproducible_and_measures_what_a_run_reaches(searched):
    again = plan(seeds=2, deadlines=[0.5, 1.5, 6.0])
    assert [each.accuracies for each in again.tried] == [e.accuracies for e in searched.tried]
    config = TINY.changed(deadline=1.5, rounds=0, eval_seconds=0.0, seed=1)
    training = from_config(config, Given(fleet=Fleet("slow-classes", 6, 0)))
    rows = list(training.rows(0, 30.0))
    assert rows[-1].clock <= 30.0
    accuracy = evaluate(training.simulation.engine, training.simulation.problem.validation)[
        "accuracy"
    ]
    assert searched.at(1.5).accuracies[1] == accuracy


def test_the_plan_is_a_schedule_that_a_run_reads(searched, tmp_path):
    (tmp_path / "plan.csv").write_text(searched.schedule_csv())
    schedule = DeadlineSchedule.csv(tmp_path / "plan.csv")
    assert schedule.seconds == searched.schedule
    config = TINY.changed(
        deadline=str(tmp_path / "plan.csv"), batch_size=searched.offer.batch_size, seconds=30.0
    )
    rows = salf.run(config).history.rows
    assert len(rows) >= len(searched.schedule)  # some rounds end early


def test_the_curve_has_all_deadlines_and_bounds_only_where_they_are_defined(searched):
    records = searched.curve()
    deadlines = [record["deadline"] for record in records]
    assert deadlines == sorted(deadlines)
    for each in searched.tried:
        (record,) = (r for r in records if r["deadline"] == each.deadline)
        assert record["accuracy"] == pytest.approx(each.mean)
    for record in records:
        assert (record["bound_theorem"] is None) == (
            searched.offer.problem.bound_at(record["deadline"]) == np.inf
        )
    least = min(records, key=lambda r: r["bound_theorem"] or np.inf)
    assert least["deadline"] == pytest.approx(searched.offer.deadline, rel=0.1)


def test_what_following_the_bound_costs_by_hand():
    best, other = Tried(1.0, (0.9, 0.8, 0.7)), Tried(2.0, (0.8, 0.6, 0.4))
    off, error = lost(best, other)
    assert off == pytest.approx(0.2)
    assert error == pytest.approx(0.1 / np.sqrt(3))
    assert Tried(1.0, (None, 0.5)).mean == 0.5
    assert Tried(1.0, (None, None)).mean == 0


@pytest.mark.parametrize(
    ("config", "options", "told"),
    [
        (Config(data="synthetic"), {}, "a plan needs a fleet"),
        (Config(data="synthetic", fleet="pis"), {}, "needs a budget of simulated seconds"),
        (TINY.changed(method="fedavg"), {}, "waits for all users"),
        (TINY.changed(method="asyncfl", options={"buffer": 2}), {}, "asyncfl has no deadline"),
        (TINY, {"bound": "loose"}, "loose"),
        (TINY, {"g2": -1.0}, "g2 must be at least 0"),
        (TINY, {"deadlines": [60.0]}, "within the budget of 30 s"),
        (TINY.changed(fleet="pis", seconds=1e-6), {}, "Use more seconds or a faster fleet"),
        (TINY.changed(users=1), {}, "at least 2 users"),
    ],
)
def test_what_cannot_be_planned_is_a_sentence(config, options, told):
    with pytest.raises(SalfError, match=told):
        plan(config, **{"seeds": 0, **options})


@pytest.fixture
def own():
    torch.manual_seed(0)
    x = torch.randn(300, 6)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2)), x, (x[:, 0] > 0).long()


def test_your_own_model_and_data(own, tmp_path):
    model, x, y = own
    before = [each.clone() for each in model.parameters()]
    fleet = salf.Fleet("slow-classes", users=5, seed=1)
    found = salf.plan(
        model, (x, y), (x, y), fleet=fleet, seconds=20.0, seeds=1, deadlines=[1, 4], batch_size=8
    )
    assert all((a == b).all() for a, b in zip(before, model.parameters(), strict=True))
    assert "Search by simulation" in str(found)
    written = {path.name for path in found.save(tmp_path / "out")}
    assert written == {"plan.csv", "curve.csv", "plan.png", "plan.svg", "plan.html"}
    with pytest.raises(SalfError, match="leave it out"):
        salf.plan(model, (x, y), fleet=fleet, seconds=20.0, deadline=1.0)


@pytest.mark.parametrize("how", ["split", "data", "users"])
def test_the_number_of_users_follows_from_what_each_has_or_is_given(own, how):
    model, x, y = own
    parts = torch.arange(60).reshape(4, 15)
    given = {
        "split": {"data": (x, y), "split": parts.tolist()},
        "data": {"data": [(x[part], y[part]) for part in parts]},
        "users": {"data": (x, y), "users": 4},
    }[how]
    found = salf.plan(
        model, **given, test=(x, y), fleet="slow-classes:sigma=0", pair="random", seconds=20.0,
        seeds=0, batch_size=8,
    )  # fmt: skip
    assert found.config.users == found.law.timing.users == 4


def test_equal_time_batches_are_planned_with_the_rows_that_fit(by_bound, equal_time):
    deadline = by_bound.offer.deadline
    assert equal_time.law.at(deadline)[1] > by_bound.law.at(deadline)[1]


def test_rounds_of_equal_time_batches_end_when_all_are_done():
    """Steady devices, whose batches take 1.5 s if the deadline allows it."""
    fleet = Fleet.of([1.0, 2.0, 4.0], counted="layers")
    timing = Timing(
        fleet.devices,
        COST,
        lambda users: np.array([8, 16, 32])[users],
        lambda users: np.ones_like(users),
    )
    found = FleetLaw(timing, 3, 100.0, fits=16)
    assert found.seconds(100.0) == found.seconds(2.0) == pytest.approx(1.5)  # 3 layers, 2 a second
    assert found.seconds(0.75) == pytest.approx(0.75)


def test_equal_time_batches_that_fit_a_short_deadline_are_noisier(equal_time):
    found = equal_time
    trade, law = found.offer.problem.trade, found.law
    short, users = float(trade.deadlines[0]), len(law.users)
    plain = theorem_spread(law.at(short)[0])
    less, full = law.rows(short), law.rows(found.budget)
    assert (less <= full).all()
    assert (less < full).any()
    noisy, quiet = (found.estimates.constants(rows) for rows in (less, full))
    federation = Federation(users, law.timing.layers)
    more = noisy.B(federation) - quiet.B(federation)
    assert more > 0
    expected = (noisy.G2 * plain + more) / quiet.G2
    assert trade.spread[0] == pytest.approx(expected)


def test_equal_time_batches_have_a_constant_plan_because_they_fit_the_first_deadline():
    found = plan(TINY.changed(batches="equal-time"), seeds=0, rates="run")
    assert len(set(found.schedule)) == 1
    assert len(set(plan(seeds=0, rates="run").schedule)) > 1
