"""Residual, attention and recurrent networks: the fast engines against the loop engine."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from nets import NETS, SEQUENCE, Tokens, make
from reference import (
    ANY_WORLD,
    assert_close,
    assert_same,
    copy_of,
    data,
    plan_of,
    rows_of,
    server_of,
)
from salf.common.errors import SalfError
from salf.core.layers import Layers
from salf.data import Partitioned, Samples
from salf.data.sampling import Cohort
from salf.engines import ENGINES, GroupedEngine, LoopEngine, engine
from salf.methods import METHODS, Group, RoundPlan, method
from salf.problem import Problem
from salf.simulation import Recipe, Simulation
from salf.worlds.base import AtDeadline
from salf.worlds.depth import Mixture

USERS, SIZE = 6, 4
ONE_PASS = 256 * 2**20


UNEQUAL = (3, 5, 4, 6, 3, 3)  # samples of each user; a batch of 4 does not fit all


def trained(kind, name, of_method="salf", rounds=3, unequal=False, **options):
    """The weights and rows after some rounds of a network on an engine."""
    model, (_, shape, _) = make(name), NETS[name]
    inputs, labels = data(USERS, SIZE, shape)
    layers = Layers.of(model, example=inputs[:2])
    made = ENGINES[kind](model, layers, **options) if kind != "auto" else None
    sizes = UNEQUAL if unequal else (SIZE,) * USERS
    shares = np.split(np.arange(USERS * SIZE), np.cumsum(sizes)[:-1])
    problem = Problem(
        model, layers, Partitioned(Samples(inputs, labels), shares), example=inputs[:8]
    )
    recipe = Recipe(
        lambda t: 0.1,
        server_of(method(of_method), 0.5),
        4 if unequal else 3,
        cohort=Cohort(USERS, 4) if unequal else None,
        by_samples=unequal,
        engine=made or "auto",
    )
    world = AtDeadline(Mixture(USERS, len(layers), 0.7))
    simulation = Simulation(problem, method(of_method), world, recipe)
    rows = [simulation.step() for _ in range(rounds)]
    return copy_of(model), rows, simulation.engine


NOT_NARROW = [name for name in ANY_WORLD if not METHODS[name]().asks.narrows]


@pytest.mark.parametrize(
    ("of_method", "chunk_bytes"),
    # In chunks of one user only what differs there: old models, memory, states of users.
    [
        *((name, ONE_PASS) for name in NOT_NARROW),
        *((name, 1) for name in ("salf", "asyncfl", "mifa", "scaffold")),
    ],
)
@pytest.mark.parametrize("name", NETS)
def test_the_engines_agree_over_rounds_with_momentum(name, of_method, chunk_bytes):
    """Parameters and running statistics, after three rounds."""
    unequal = chunk_bytes == ONE_PASS  # cohorts of users with unequal batches
    wanted, loop, _ = trained("loop", name, of_method, unequal=unequal)
    start = copy_of(make(name))
    assert any(not torch.equal(wanted[key], start[key]) for key in start)
    for kind in {"grouped", NETS[name][2]}:
        found, fast, _ = trained(kind, name, of_method, unequal=unequal, chunk_bytes=chunk_bytes)
        assert_close(found, wanted, 1e-10)
        for mine, theirs in zip(fast, loop, strict=True):
            assert mine.reached == theirs.reached
            assert mine.train_loss == pytest.approx(theirs.train_loss, rel=1e-10, nan_ok=True)


@pytest.mark.parametrize("name", NETS)
def test_auto_takes_the_fast_engine_and_it_agrees(name):
    wanted, _, _ = trained("loop", name)
    found, _, chosen = trained("auto", name)
    kind = type(make(name)).__name__
    assert chosen.name == NETS[name][2]
    assert chosen.why == f"{kind} keeps the rows of different users apart"
    assert_close(found, wanted, 1e-10)


@pytest.mark.parametrize("name", NETS)
def test_heterofl_says_that_it_cannot_narrow_them(name):
    for kind in ("loop", NETS[name][2], "auto"):
        with pytest.raises(SalfError, match=r"^HeteroFL .*(narrows|narrow the layer)"):
            trained(kind, name, "heterofl")


@pytest.mark.parametrize("name", NETS)
@settings(max_examples=6)
@given(st.data())
def test_any_weights_give_the_same_step(name, draws):
    """Weights of each user and layer, some users' equal up to a factor."""
    model, (_, shape, kind) = make(name), NETS[name]
    rows = rows_of(*data(USERS, SIZE, shape), SIZE)
    layers = Layers.of(model, example=rows(np.arange(1))[0])
    rng = np.random.default_rng(draws.draw(st.integers(0, 999)))
    c = rng.uniform(0.1, 2, (len(layers), 3))
    for user, depth in enumerate(rng.integers(1, len(layers) + 1, 3)):
        c[: depth - 1, user] = 0
    c = np.concatenate([c, c * rng.uniform(0.5, 2, 3)], axis=1)
    before = copy_of(model)
    plan = RoundPlan((Group(rng.permutation(USERS), c, 1),))
    loop = LoopEngine(model, layers).round(plan, 1, {}, rows)
    for fast in {"grouped", kind}:
        chunk_bytes = draws.draw(st.sampled_from([1, ONE_PASS]))
        found = ENGINES[fast](model, layers, chunk_bytes=chunk_bytes).round(plan, 1, {}, rows)
        assert found.reached == loop.reached
        moved = {key: value for key, value in loop.step.values.items() if key != "places"}
        assert_close(found.step.values, moved, 1e-10)
    assert_same(copy_of(model), before)


@pytest.mark.parametrize("name", NETS)
def test_users_on_an_older_model_agree(name):
    model, older, (_, shape, kind) = make(name), make(name, seed=1), NETS[name]
    with torch.no_grad():
        for buffer in older.buffers():
            buffer.add_(1)
    rows = rows_of(*data(USERS, SIZE, shape), SIZE)
    layers = Layers.of(model, example=rows(np.arange(1))[0])
    now, late = np.full((len(layers), 3), 0.2), np.full((len(layers), USERS - 3), 0.1)
    plan = RoundPlan((Group(np.arange(3), now, 2), Group(np.arange(3, USERS), late, 1)))
    old = {1: {**dict(older.named_parameters()), **dict(older.named_buffers())}}
    before = copy_of(older)
    loop = LoopEngine(model, layers).round(plan, 2, old, rows)
    only_now = LoopEngine(model, layers).round(RoundPlan(plan.groups[:1]), 2, {}, rows)
    for fast in {"grouped", kind}:
        found = ENGINES[fast](model, layers).round(plan, 2, old, rows)
        moved = {key: value for key, value in loop.step.values.items() if key != "places"}
        assert_close(found.step.values, moved, 1e-10)
    for key in (name for layer in layers for name in layer.parameters):
        assert not torch.equal(loop.step.values[key], only_now.step.values[key])
    assert_same(copy_of(older), before)


def test_users_of_one_depth_are_one_pass_and_no_pass_is_more_than_a_user():
    model = make("gru")
    rows, seen = rows_of(*data(USERS, SIZE, SEQUENCE), SIZE), []

    def noting(users):
        seen.append(len(users))
        return rows(users)

    layers = Layers.of(model, example=rows(np.arange(1))[0])
    grouped = GroupedEngine(model, layers)
    grouped.round(plan_of("salf", [1, 1, 2, 1, 2, 3], len(layers)), 1, {}, noting)
    assert sorted(seen[1:]) == [2, 3]  # the first looks at one user's size
    seen.clear()
    weights = np.random.default_rng(0).uniform(1, 2, (len(layers), USERS))
    grouped.round(RoundPlan((Group(np.arange(USERS), weights, 1),)), 1, {}, noting)
    assert seen == [1] * USERS


def test_weights_that_are_not_nested_agree():
    model = make("gru")
    rows = rows_of(*data(3, SIZE, SEQUENCE), SIZE)
    layers = Layers.of(model, example=rows(np.arange(1))[0])
    plan = RoundPlan((Group(np.arange(3), np.array([[1.0, 0, 2.0], [0, 1.0, 0]]), 1),))
    loop = LoopEngine(model, layers).round(plan, 1, {}, rows)
    found = GroupedEngine(model, layers).round(plan, 1, {}, rows)
    assert found.reached == loop.reached == (2, 1)
    assert_close(found.step.values, loop.step.values, 1e-10)


def test_heterofl_on_a_sequential_that_it_can_narrow_agrees():
    model = nn.Sequential(
        nn.Linear(4, 6, False), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3)
    ).double()
    rows = rows_of(*data(4, SIZE, (4,)), SIZE)
    layers = Layers.of(model)
    plan = plan_of("heterofl", [1, 2, 1, 3], len(layers))
    loop = LoopEngine(model, layers).round(plan, 1, {}, rows)
    found = GroupedEngine(model, layers).round(plan, 1, {}, rows)
    assert len(plan.groups) == 2
    assert_close(found.step.values, loop.step.values, 1e-10)


class TwiceNormed(nn.Module):
    """One batch norm in two places: its statistics move twice."""

    def __init__(self, **options):
        super().__init__()
        self.first, self.last = nn.Linear(4, 5, bias=False), nn.Linear(5, 3)
        self.norm = nn.BatchNorm1d(5, **options)

    def forward(self, value):
        value = torch.tanh(self.norm(self.first(value)))
        return self.last(self.norm(3 * value))


def assert_grouped_is_right(model, inputs, labels):
    """It is what `auto` chooses, and its step is the loop's."""
    rows = rows_of(inputs, labels, SIZE)
    layers = Layers.of(model, example=inputs)
    plan = plan_of("salf", [1, 2, 1, 3], len(layers))
    loop = LoopEngine(model, layers).round(plan, 1, {}, rows)
    chosen = engine("auto", model, layers, example=inputs)
    assert_close(chosen.round(plan, 1, {}, rows).step.values, loop.step.values, 1e-10)
    assert chosen.name == "grouped"


@pytest.mark.parametrize("options", [{}, {"momentum": None}, {"track_running_stats": False}])
def test_a_batch_norm_that_is_used_twice_agrees(options):
    torch.manual_seed(0)
    model = TwiceNormed(**options).double()
    inputs, labels = data(4, SIZE, (4,))
    assert_grouped_is_right(model, inputs, labels)


@pytest.mark.parametrize("dtype", [torch.int64, torch.float64])
def test_tokens_agree(dtype):
    """Also as floating point, where most numbers that the probe might try are no words."""
    torch.manual_seed(0)
    model = Tokens().double()
    tokens, labels = torch.randint(7, (16, 5)).to(dtype), torch.randint(3, (16,))
    assert_grouped_is_right(model, tokens, labels)


def test_evaluation_uses_running_statistics_also_after_a_round():
    """Stand-ins are in the model for the time of a pass only."""
    model = make("residual blocks, batch norm")
    inputs, labels = data(USERS, SIZE, (2, 6, 6))
    names = list(model.state_dict())
    fused = engine("fused", model, Layers.of(model))
    fused.round(plan_of("salf", [1] * USERS, 4), 1, {}, rows_of(inputs, labels, SIZE))
    found = fused.predict(inputs)
    assert_close({"": found}, {"": model.eval()(inputs)}, 1e-12)
    assert list(model.state_dict()) == names
