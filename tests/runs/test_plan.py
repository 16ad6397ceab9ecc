"""Plans: the law of a fleet, the theorem's constants, the race, and what comes out of it."""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import special
from torch import nn

import salf
from salf.common.errors import SalfError
from salf.core.server import theorem_rate
from salf.data import Partitioned, Samples
from salf.data.sampling import Batches
from salf.planning import plan_config
from salf.problem import Problem
from salf.runs import plan as planning
from salf.runs.config import Config
from salf.runs.estimates import FleetLaw, estimate
from salf.runs.federation import problem_of
from salf.runs.plan import Asked, Planner
from salf.runs.pool import Job, run_all, run_job
from salf.runs.presets import load_config
from salf.runs.run import run
from salf.runs.search import Candidate, Race, crossing, leaders
from salf.worlds.fleet.availability import OnAndOff
from salf.worlds.fleet.devices import Fleet

TINY = Config(
    data="digits",
    users=6,
    batch_size=8,
    threads=1,
    fleet="slow-classes",
    seconds=20.0,
    lr=0.3,
)
pytestmark = pytest.mark.usefixtures("no_processes", "few")


@pytest.fixture
def few(monkeypatch):
    """A small grid: each of its runs takes a tenth of a second."""
    monkeypatch.setattr(planning, "METHODS", ("salf", "fedavg"))
    monkeypatch.setattr(planning, "SHARES", (0.4, 0.9))
    monkeypatch.setattr(planning, "RATES", ())
    monkeypatch.setattr(planning, "CURVE", 12)
    monkeypatch.setattr(planning, "CLIMBS", 1)


def law(fleet, cohort=None, **settings):
    """The law of the three layers of the paper's MLP."""
    config = TINY.changed(users=len(fleet), batch_size=16, **settings)
    planner = SimpleNamespace(base=config, problem=problem_of(config), fleet=fleet, _laws={})
    return FleetLaw(
        Planner.law(planner, Candidate("fedavg")).timing, cohort or len(fleet), config.seconds
    )


@pytest.mark.parametrize("deadline", [0.3, 1.0, 4.0])
def test_p_l_of_slow_classes_is_adel_fls(deadline):
    """Per-layer exponential times: p_l = prod_u Q(L + 1 - l, lambda_u T)."""
    fleet = Fleet("slow-classes", 10, seed=2)
    missed = special.gammaincc(np.array([3, 2, 1])[:, None], fleet.speed * deadline)
    found = law(fleet).unreached(deadline)
    np.testing.assert_allclose(found, missed.prod(axis=1), rtol=1e-9, atol=1e-15)


def test_devices_that_come_and_go_are_reached_less_and_a_cohort_as_often():
    fleet = Fleet("slow-classes", 40, seed=2)
    away = law(fleet.available(OnAndOff(2.0, 2.0)))
    assert (away.unreached(0.05) > law(fleet).unreached(0.05)).all()
    assert 0.3 < away.available() < 0.7
    assert (law(fleet, cohort=10).unreached(0.05) > law(fleet).unreached(0.05)).all()


def test_a_round_takes_no_longer_than_the_slowest_user():
    steady = Fleet.of([3.0, 6.0], counted="layers")  # layers of 16 rows a second: 1 and 0.5 s
    found = law(steady)
    assert found.seconds(0.75) == pytest.approx(0.75)
    assert found.seconds(2.0) == found.seconds(None) == pytest.approx(1.0)
    assert found.quantile(0.0) == pytest.approx(0.5)
    assert found.deadline_for(0.99) == pytest.approx(1.0)


def test_what_a_round_is_spent_on():
    found = law(Fleet.of([3.0] * 3, latency=[0.5] * 3, counted="layers"))
    slow = found.timing.shares(found.users)
    assert slow["links"] == pytest.approx(0.5)  # two messages of half a second, and one of work
    assert sum(slow.values()) == pytest.approx(1)


def test_constants_of_a_linear_model_are_those_of_its_gradient():
    torch.manual_seed(0)
    x = torch.randn(400, 5)
    y = x @ torch.ones(5, 1)
    model = nn.Sequential(nn.Linear(5, 1, bias=False), nn.Identity())
    data = Partitioned(Samples(x.double(), y.double()), np.arange(400).reshape(2, 200))
    problem = Problem.of(model.double(), data, loss=nn.MSELoss())
    found = estimate(problem, Batches(data, 200), 0.1)
    w = next(model.parameters())
    gradient = (2 * x.T @ x / len(x)).double() @ (w.detach().reshape(-1) - 1)
    assert found.squares.max() == pytest.approx(float(gradient.square().sum()), rel=0.3)
    assert (found.variances < 1e-12).all()  # every batch is all of a user's data
    constants = found.constants(np.array([4]))
    first = theorem_rate(constants.rho_c, constants.rho_s)(1)
    assert first == pytest.approx(0.1, rel=0.02)


class MadeUp:
    """Runs whose accuracy rises to a level of its own at a speed of its own."""

    def __init__(self, candidates):
        self.levels = {each: level for each, level, _ in candidates}
        self.speeds = {each: speed for each, _, speed in candidates}

    def race(self, target, folder):
        return Race(self.job, lambda _, jobs: run_all(jobs, 0), folder, target, 1.0)

    def job(self, settings, folder):
        def do(progress):
            times = np.arange(1.0, settings["seconds"] + 1)
            each = next(c for c in self.levels if c.settings.items() <= settings.items())
            curve = self.levels[each] * (1 - np.exp(-times / self.speeds[each]))
            return SimpleNamespace(
                history=SimpleNamespace(timed_curve=[*zip(times, curve, strict=True)])
            )

        return Job(do, settings["seconds"])


def test_the_slower_half_gives_up_but_for_the_best_of_each_family(tmp_path):
    made = [(Candidate("salf", deadline=float(n)), 0.9, 4.0 + n) for n in range(8)]
    made += [(Candidate("drop", deadline=1.0), 0.95, 40.0), (Candidate("fedavg"), 0.5, 90.0)]
    world = MadeUp(made)
    ranked = world.race(None, tmp_path).halve([each for each, *_ in made], [25.0, 50.0, 100.0])
    assert [each.method for each in leaders(ranked)] == ["salf", "drop", "fedavg"]
    assert ranked[0] == made[0][0]
    assert len(ranked) <= 7


def test_with_a_target_the_first_at_it_is_the_best(tmp_path):
    slow, fast = Candidate("salf"), Candidate("drop")
    race = MadeUp([(slow, 0.99, 30.0), (fast, 0.8, 10.0)]).race(0.7, tmp_path)
    race.advance([slow, fast], 200.0)
    assert race.ranked([slow, fast], 200.0) == [fast, slow]
    assert race.to_target(fast, 0, 0.7) == pytest.approx(-10 * np.log(1 - 0.7 / 0.8), abs=0.05)
    assert race.to_target(fast, 0, 0.9) is None
    race.target = None
    assert race.ranked([slow, fast], 200.0) == [slow, fast]


def test_a_target_is_crossed_between_two_evaluations():
    curve = [(1.0, 0.2), (2.0, 0.4), (3.0, 0.3), (4.0, 0.8)]
    assert crossing(curve, 0.3) == pytest.approx(1.5)
    assert crossing(curve, 0.1) == 1.0
    assert crossing(curve, 0.9) is None


@pytest.mark.slow
@pytest.mark.parametrize("target", [None, 0.4])
def test_the_choice_is_as_good_as_that_of_the_whole_grid(tmp_path, target):
    """Regret over all candidates with all seeds: 2 % of accuracy, 5 % of the time."""
    config = TINY.changed(seconds=20.0 if target is None else 60.0)
    found = plan_config(config, Asked(target, 2), tmp_path)
    race, seconds, seeds = found.race, found.config.seconds, (0, 1)
    race.job = lambda settings, folder: run_job(config.changed(**settings), folder)
    race.run = lambda _, jobs: run_all(jobs, 0)
    everything = list(dict.fromkeys(each for each, _ in race.histories))
    race.advance(everything, seconds, seeds)
    best = race.ranked(everything, seconds, seeds)[0]
    if target is None:
        assert np.mean(found.accuracies(found.best)) >= np.mean(found.accuracies(best)) - 0.02
    else:
        assert np.mean(found.times(found.best)) <= 1.05 * np.mean(found.times(best))


def test_a_plan_is_reproducible_continues_and_runs(tmp_path, monkeypatch):
    asked, done = Asked(None, 2), []
    plain = run_job

    def stopped(config, folder, **more):
        if len(done) == 9:
            raise KeyboardInterrupt
        done.append(folder)
        return plain(config, folder, **more)

    with monkeypatch.context() as patched:
        patched.setattr("salf.planning.run_job", stopped)
        with pytest.raises(KeyboardInterrupt):
            plan_config(TINY, asked, tmp_path / "one")
    first = plan_config(TINY, asked, tmp_path / "one")
    other = plan_config(TINY, asked, tmp_path / "two")
    curves = [
        {(each.label(s)): h.timed_curve for (each, s), h in found.race.histories.items()}
        for found in (first, other)
    ]
    assert curves[0] == curves[1]
    assert first.best.label(0) == other.best.label(0)
    with monkeypatch.context() as patched:  # nothing is left to run
        patched.setattr("salf.planning.run_job", None)
        assert plan_config(TINY, asked, tmp_path / "one").times(first.best) == first.times(
            first.best
        )
    with pytest.raises(SalfError, match="contains another plan"):
        plan_config(TINY.changed(lr=0.2), asked, tmp_path / "one")
    first.save(tmp_path / "one")
    config = load_config(str(tmp_path / "one" / "config.toml"))
    history = salf.run(config).history
    assert history.test_accuracy == first.histories(first.best)[0].test_accuracy
    if not first.best.waits:
        assert load_config(str(tmp_path / "one" / "live.toml")).deadline == config.deadline


def test_candidates_come_from_the_clock_the_bound_and_adel_fl(tmp_path):
    make = partial(Planner, TINY, problem_of(TINY), job=None, run=None)
    found = make(Asked(), folder=tmp_path / "a").candidates(20.0)
    notes = {each.note for each in found}
    assert {"", planning.BOUND, planning.ADEL} == notes
    assert all(each.local_steps == 1 for each in found)  # no links to save
    adel = next(each for each in found if each.note == planning.ADEL)
    assert adel.batches == "equal-time"
    assert "round,deadline" in (tmp_path / "adel-fl.csv").read_text()
    short = make(Asked(), folder=tmp_path / "b").candidates(6.0)
    assert not any(each.waits for each in short)  # which has no five rounds
    fixed = {"method": "drop", "deadline": "1s", "local_steps": 2}
    kept = make(Asked(fixed=fixed), folder=tmp_path / "c").candidates(20.0)
    assert {(c.method, c.deadline, c.local_steps) for c in kept} == {("drop", 1.0, 2)}
    assert {each.batches for each in kept} == {"equal", "equal-time"}


def test_links_that_take_long_are_worth_several_local_steps_and_compression(tmp_path):
    config = TINY.changed(fleet="given", given={"fleet": "mine"})
    fleet = Fleet.of([1e9] * 6, up=[1e5] * 6, down=[1e6] * 6)
    planner = Planner(config, problem_of(TINY), Asked(), None, None, tmp_path, fleet=fleet)
    found = planner.candidates(300.0)
    assert {each.local_steps for each in found} == {1, planning.SEVERAL}
    assert {each.batches for each in found} == {"equal"}  # all are as fast
    near = planner._near(replace(found[0], deadline=2.0), True)
    assert {each.compress for each in near} == {"", "fp16", "qsgd:4"}
    assert min(each.deadline for each in near if each.compress) < 2.0


@pytest.mark.parametrize(
    ("config", "asked", "told"),
    [
        (Config(data="synthetic"), {}, "a plan needs a fleet"),
        (TINY.changed(seconds=1e-3), {}, "no candidate completes 5 rounds"),
        (Config(data="synthetic", fleet="phones"), {}, "needs a time or a target"),
        (TINY, {"target": 1.5}, "an accuracy above 0 and at most 1"),
        (TINY.changed(seconds=2.0), {"target": 1.0}, "no candidate reaches an accuracy of 1"),
        (TINY, {"fixed": {"local_steps": "many"}}, "local_steps"),
    ],
)
def test_what_cannot_be_planned_is_a_sentence(config, asked, told, tmp_path):
    with pytest.raises(SalfError, match=told):
        plan_config(config, Asked(**asked), tmp_path)


@pytest.mark.parametrize("kind", ["model", "problem"])
def test_your_own_model_and_data(kind, tmp_path):
    torch.manual_seed(0)
    x = torch.randn(300, 6)
    y = (x[:, 0] > 0).long()
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
    before = [each.clone() for each in model.parameters()]
    fleet = salf.Fleet("slow-classes", users=5, seed=1)
    given = {"fleet": fleet, "seconds": 12.0, "seeds": 1, "batch_size": 8, "out": tmp_path / "out"}
    if kind == "model":
        found = salf.plan(model, (x, y), (x, y), method="salf", pair="random", **given)
    else:
        data = Partitioned(Samples(x, y), np.arange(300).reshape(5, 60))
        problem = Problem.of(model, data, test=Samples(x, y))
        found = salf.plan(problem, method="salf", pair="random", **given)
    assert all((a == b).all() for a, b in zip(before, model.parameters(), strict=True))
    assert str(found).startswith("Run SALF")
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"config.toml", "plan.html"} <= written
    with pytest.raises(SalfError, match="leave it out"):
        salf.plan(model, (x, y), fleet=fleet, seconds=20.0, rounds=3)


def test_a_run_that_was_interrupted_on_its_way_to_a_later_time_is_continued(tmp_path):
    base = Config(data="digits", model="mlp", users=4, fleet="slow-classes", threads=1)
    each = Candidate("salf", deadline=2.0)

    def stop(row, model):
        if row.round == 3:
            raise KeyboardInterrupt

    later = base.changed(**each.settings, seconds=24.0, eval_seconds=8.0, seed=0)
    with pytest.raises(KeyboardInterrupt):
        run(later, tmp_path / each.label(0), on_round=stop)
    race = Race(
        lambda chosen, folder: run_job(base.changed(**chosen), folder),
        lambda _, jobs: run_all(jobs, 0), tmp_path, None, 8.0,
    )  # fmt: skip
    race.advance([each], 16.0)
    assert race.histories[each, 0].rows[-1].clock == pytest.approx(24.0, abs=2)
