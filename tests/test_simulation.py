"""The simulated federation: reproducible, fair to all methods, and a divergence that says where."""

from copy import deepcopy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from nets import small_mlp, small_normed
from reference import (
    ANY_MODEL,
    ANY_WORLD,
    assert_same,
    copy_of,
    data,
    equal_shares,
    simulate,
    steps,
)
from salf.common.errors import SalfError, TrainingDiverged
from salf.data import Partitioned, Samples
from salf.engines import ENGINES
from salf.methods import method
from salf.problem import Problem, evaluate
from salf.simulation import Recipe, Simulation
from salf.worlds.base import AtDeadline
from salf.worlds.depth import Mixture, Uniform

USERS, SIZE = 5, 8


def with_dropout():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(4, 8),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(8, 8),
        nn.Dropout(0.2),
        nn.Linear(8, 3),
    ).double()


def simulation(make=small_mlp, name="salf", depth=None, **options):
    depth = depth or Mixture(USERS, 3, 0.6)
    return simulate(make(), name, depth, size=SIZE, momentum=0.5, **options)


def run(rounds=4, torch_seed=0, **options):
    sim = simulation(**options)
    torch.manual_seed(torch_seed)  # the state of torch's own generator must not matter
    records = [sim.step() for _ in range(rounds)]
    return copy_of(sim.model), records


@pytest.mark.parametrize("engine", ANY_MODEL)
@pytest.mark.parametrize("make", [small_mlp, small_normed, with_dropout])
@pytest.mark.parametrize("name", ANY_WORLD)
def test_the_same_seed_gives_the_same_bits_and_another_seed_another_run(name, make, engine):
    one, records = run(name=name, make=make, engine=engine, seed=3)
    two, same = run(name=name, make=make, engine=engine, seed=3, torch_seed=99)
    other, _ = run(name=name, make=make, engine=engine, seed=4)
    assert_same(two, one)
    np.testing.assert_equal(same, records)
    assert any(not torch.equal(other[key], one[key]) for key in one)


@pytest.mark.parametrize("engine", ANY_MODEL)
def test_dropout_differs_from_round_to_round(engine):
    """With the same batch in every round (the whole share) and rate 0, only the masks change."""
    more = {"size": 3, "batch": 3, "rate": 0.0, "engine": engine}
    sim = simulate(with_dropout(), "fedavg", Mixture(2, 3, 0.0), **more)
    assert len({sim.step().train_loss for _ in range(4)}) == 4


@pytest.mark.parametrize("engine", ANY_MODEL)
def test_a_run_does_not_disturb_torchs_or_numpys_own_generators(engine):
    sim = simulation(make=with_dropout, engine=engine)
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002
    before, before_numpy = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    sim.step()
    assert torch.equal(torch.get_rng_state(), before)
    assert (np.random.get_state()[1] == before_numpy).all()  # noqa: NPY002


@pytest.mark.parametrize("engine", ANY_MODEL)
@pytest.mark.parametrize("make", [small_mlp, small_normed, with_dropout])
@pytest.mark.parametrize("name", ["salf", "asyncfl"])
def test_a_simulation_set_up_again_after_any_round_goes_on_exactly(name, make, engine):
    """The promise of the module: stop, copy weights, momentum, memory and old models, go on."""
    whole, _ = run(name=name, make=make, engine=engine, rounds=5)
    first = simulation(name=name, make=make, engine=engine)
    for _ in range(3):
        first.step()
    second = simulation(name=name, make=make, engine=engine)
    second.model.load_state_dict(first.model.state_dict())
    second.server.load_state(deepcopy(first.server.state))
    second.t, second.memory, second.old = first.t, first.memory, first.old
    assert_same(steps(second, 2)[-1], whole)


def test_all_methods_see_the_same_batches():
    """Fair comparison: round t's batches depend on the seed and t, not on the method."""
    seen = {}
    for name in ANY_WORLD:
        sim = simulation(name=name)
        rows, drawn = sim.data.rows, seen.setdefault(name, {})

        def noting(users, places, rows=rows, drawn=drawn, sim=sim):
            drawn |= {(sim.t, user): own.tolist() for user, own in zip(users, places, strict=True)}
            return rows(users, places)

        sim.data.rows = noting
        for _ in range(4):
            sim.step()
    for name in ANY_WORLD:
        assert seen[name].items() <= seen["fedavg"].items()
        assert len(seen[name]) >= 8
    assert seen["fedavg"][0, 0] != seen["fedavg"][1, 0]


@pytest.mark.parametrize("make", [small_normed, with_dropout])
def test_measuring_accuracy_between_rounds_changes_nothing(make):
    for engine in ANY_MODEL:
        plain, _ = run(make=make, engine=engine)
        sim = simulation(make=make, engine=engine)
        for _ in range(4):
            sim.step()
            evaluate(sim.engine, sim.data.samples)
        assert_same(copy_of(sim.model), plain)


def test_accuracy_is_the_share_of_right_labels_in_evaluation_mode(monkeypatch):
    sim = simulation(make=small_normed)
    sim.step()
    inputs, labels = sim.data.samples.rows()
    twin = small_normed().eval()
    twin.load_state_dict(sim.model.state_dict())
    wanted = (twin(inputs).argmax(1) == labels).double().mean().item()
    for rows in (7, 1000):
        monkeypatch.setattr("salf.problem.ROWS_AT_ONCE", rows)
        found = evaluate(sim.engine, sim.data.samples)
        assert found["accuracy"] == pytest.approx(wanted)
        assert found["loss"] == pytest.approx(F.cross_entropy(twin(inputs), labels).item())
    fused = ENGINES["fused"](sim.model, sim.engine.layers)
    assert evaluate(fused, sim.data.samples)["accuracy"] == pytest.approx(wanted)


def test_the_reach_of_a_record_is_that_of_the_depths():
    sim = simulation(depth=Uniform(USERS, 3))
    drawn = []

    class Noting(Uniform):
        def draw(self, draws, users, busy=0):
            drawn.append(super().draw(draws, users, busy))
            return drawn[-1]

    sim.world = AtDeadline(Noting(USERS, 3))
    for _ in range(6):
        assert sim.step().reached == tuple(drawn[-1].reach(3).sum(1).tolist())


def test_a_mismatch_of_users_or_layers_is_refused():
    with pytest.raises(SalfError, match="depths are for 5 users and 2 layers, not for 5 and 3"):
        simulation(depth=Mixture(5, 2, 0.5))
    with pytest.raises(SalfError, match="depths are for 6 users and 3 layers, not for 5 and 3"):
        simulation(depth=Mixture(6, 3, 0.5), shares=equal_shares(5, SIZE))


# ---- divergence -----------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ANY_MODEL)
def test_divergence_names_round_and_layer_and_leaves_the_weights_of_before(engine):
    """Not finite in layer 2 only: its weights meet an infinite gradient from round 3 on."""
    sim = simulation(engine=engine, depth=Mixture(USERS, 3, 0.0))
    before = steps(sim, 2)[-1]
    velocity = deepcopy(sim.server.state["velocity"])
    sim.model[2].weight.register_hook(lambda gradient: gradient * float("inf"))
    with pytest.raises(TrainingDiverged, match=r"round 3.*layer 2 \(2\).*smaller learning rate"):
        sim.step()
    assert_same(copy_of(sim.model), before)
    assert_same(sim.server.state["velocity"], velocity)
    assert sim.t == 2


def test_of_several_diverged_layers_the_one_backpropagation_came_to_first_is_named():
    sim = simulation(depth=Mixture(USERS, 3, 0.0))
    for place in (0, 2):
        sim.model[place].weight.register_hook(lambda gradient: gradient * float("nan"))
    with pytest.raises(TrainingDiverged, match=r"round 1.*layer 2 "):
        sim.step()


@pytest.mark.parametrize("engine", ANY_MODEL)
@pytest.mark.parametrize("name", ["fedavg", "salf", "heterofl", "asyncfl"])
def test_a_learning_rate_far_too_large_diverges_with_a_sentence(name, engine):
    sim = simulation(name=name, make=linear_net, engine=engine, rate=1e200)
    steps = (sim.step() for _ in range(20))
    with pytest.raises(TrainingDiverged, match=r"diverged in round \d+: the update of layer \d"):
        list(steps)
    assert all(value.isfinite().all() for value in copy_of(sim.model).values())


def linear_net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)).double()


def test_large_but_finite_updates_are_no_divergence():
    """The sum of a step's entries may overflow when none of them did."""
    sim = simulation(depth=Mixture(USERS, 3, 0.0), rate=1e-300)
    sim.model[0].weight.register_hook(lambda gradient: torch.full_like(gradient, 1.5e308))
    sim.step()


def test_the_schedule_is_asked_for_the_round_from_1_on():
    asked = []
    net = small_mlp()
    problem = Problem.of(net, Partitioned(Samples(*data(2, 2, (4,))), equal_shares(2, 2)))
    recipe = Recipe(lambda t: asked.append(t) or 0.1, batch_size=2, engine="loop")
    sim = Simulation(problem, method("fedavg"), AtDeadline(Mixture(2, 3, 0.0)), recipe)
    for _ in range(3):
        sim.step()
    assert list(dict.fromkeys(asked)) == [1, 2, 3]
