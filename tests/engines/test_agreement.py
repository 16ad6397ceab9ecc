"""The fused engine against the loop engine: one round's step, and weights over several rounds.

Tolerances are relative to the largest entry of each tensor: 1e-10 in double, 1e-5 in single.
"""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from nets import small_mlp, small_normed
from reference import (
    ANY_WORLD,
    assert_close,
    assert_same,
    copy_of,
    data,
    equal_shares,
    group,
    plan_of,
    rows_of,
    simulate,
)
from salf.core.layers import Layers
from salf.engines import FusedEngine, LoopEngine
from salf.methods import Group, RoundPlan
from salf.models import build
from salf.worlds.depth import Mixture

SINGLE, DOUBLE = torch.float32, torch.float64
TOLERANCE = {SINGLE: 1e-5, DOUBLE: 1e-10}


def small_cnn(seed=0, dtype=DOUBLE):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 3, 3),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(3, 4, 2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16, 6),
        nn.ReLU(),
        nn.Linear(6, 3),
    ).to(dtype)


MODELS = {
    "mlp": (small_mlp, (4,)),
    "cnn": (small_cnn, (1, 8, 8)),
    "batch norm": (small_normed, (2, 4, 4)),
}
# (method, options): every method, and every option that changes who computes what.
VARIANTS = [
    *((name, {}) for name in ANY_WORLD),
    ("salf", {"average": "all"}),
    ("drop", {"average": "all"}),
    ("heterofl", {"average": "all"}),
    ("heterofl", {"width": 0.3}),
    ("asyncfl", {"stale": "model", "discount": 0.5}),
]


CASES = [(name, options, "mlp", DOUBLE, 1) for name, options in VARIANTS] + [
    (name, options, model, dtype, 256 * 2**20 if dtype is SINGLE else 1)
    for name, options in (("salf", {}), ("heterofl", {"width": 0.3}), VARIANTS[-1])
    for model in MODELS
    for dtype in (SINGLE, DOUBLE)
]


@pytest.mark.parametrize(("name", "options", "model", "dtype", "chunk_bytes"), CASES, ids=str)
def test_the_engines_agree_over_rounds_with_momentum(name, options, model, dtype, chunk_bytes):
    make, shape = MODELS[model]
    users, size = 6, 4
    ends, records = [], []
    for engine, said in (("loop", {}), ("fused", {"chunk_bytes": chunk_bytes})):
        net = make(dtype=dtype)
        sim = simulate(
            net,
            name,
            Mixture(users, len(Layers.of(net)), 0.7),
            data(users, size, shape, dtype=dtype),
            equal_shares(users, size),
            momentum=0.5,
            engine=engine,
            options=options,
            **said,
        )
        records.append([sim.step() for _ in range(5)])
        ends.append(copy_of(net))
    assert_close(ends[1], ends[0], TOLERANCE[dtype])
    for loop, fused in zip(*records, strict=True):
        assert fused.reached == loop.reached
        assert fused.train_loss == pytest.approx(loop.train_loss, rel=TOLERANCE[dtype])
    start = copy_of(make(dtype=dtype))
    assert any(not torch.equal(ends[0][key], start[key]) for key in start)


def steps(model, plan, rows, t=1, old=None, **options):
    layers = Layers.of(model)
    loop = LoopEngine(model, layers).round(plan, t, old or {}, rows)
    fused = FusedEngine(model, layers, **options).round(plan, t, old or {}, rows)
    return fused, loop


def plan_with(name, users, layers):
    """A round with users at every depth; of AsyncFL one in which an old update is due."""
    depths = [1 + (2 * u) % (layers + 1) for u in range(users)]
    if name != "asyncfl":
        return plan_of(name, depths, layers, [0.2 / n for n in range(1, layers + 1)])
    late = np.arange(users) % 2 == 1
    both = [np.tile(np.where(who, 1 / users, 0), (layers, 1)) for who in (~late, late)]
    return RoundPlan((group(both[0], 2), group(both[1], 1)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "dtype", "tolerance"),
    [("salf", SINGLE, 1e-2), *((name, DOUBLE, 1e-10) for name in ("salf", "heterofl", "asyncfl"))],
    ids=str,
)
def test_one_round_of_vgg11_agrees(name, dtype, tolerance):
    """The paper's network with batch norm: parameters and running statistics.

    In single precision with 4 rows a user: with 2 the last batch norms divide by the spread of 8
    numbers. There kernels round differently, and where two numbers of a pool are equal but for
    rounding, another one may be the maximum: so all tensors together must agree.
    """
    users, size = 3, 2 if dtype is DOUBLE else 4
    model, old = (build("vgg11", (3, 32, 32), 10, seed=seed).to(dtype) for seed in (0, 1))
    kept = {**dict(old.named_parameters()), **dict(old.named_buffers())}
    rows = rows_of(*data(users, size, (3, 32, 32), 10, dtype), size)
    t = 2 if name == "asyncfl" else 1
    fused, loop = steps(model, plan_with(name, users, 9), rows, t, {1: kept})
    assert fused.reached == loop.reached
    if dtype is DOUBLE:
        assert_close(fused.step.values, loop.step.values, tolerance)
    else:
        ours, theirs = (
            torch.cat([value.flatten() for _, value in sorted(result.step.values.items())])
            for result in (fused, loop)
        )
        assert float((ours - theirs).norm() / theirs.norm()) < tolerance


@st.composite
def nested_weights(draw, users, layers):
    """Any c with nested supports: user u counts from its depth on, in each layer differently."""
    depths = draw(st.lists(st.integers(1, layers), min_size=users, max_size=users))
    weight = st.floats(0.01, 10)
    c = np.zeros((layers, users))
    for u, depth in enumerate(depths):
        for index in range(depth - 1, layers):
            c[index, u] = draw(weight)
    return c


@settings(max_examples=40)
@given(st.data())
def test_any_nested_weights_give_the_same_step(draws):
    """Weights that differ from user to user and layer to layer, so that rows must be scaled."""
    users = draws.draw(st.integers(1, 5))
    sizes = draws.draw(st.lists(st.integers(1, 5), min_size=2, max_size=5))
    model = small_mlp(sizes=(3, *sizes, 2))
    c = draws.draw(nested_weights(users, len(sizes) + 1))
    chosen = np.array(draws.draw(st.permutations(range(7))))[:users]
    rows = rows_of(*data(7, 2, (3,), 2, seed=draws.draw(st.integers(0, 99))), 2)
    chunk_bytes = draws.draw(st.sampled_from([1, 2000, 2**28]))
    plan = RoundPlan((Group(chosen, c, 1),))
    fused, loop = steps(model, plan, rows, chunk_bytes=chunk_bytes)
    assert fused.reached == loop.reached
    assert_close(fused.step.values, loop.step.values, 1e-10)


@settings(max_examples=25)
@given(st.data())
def test_any_depths_and_shapes_give_the_same_salf_step_and_running_statistics(draws):
    users = draws.draw(st.integers(1, 5))
    depths = draws.draw(st.lists(st.integers(1, 4), min_size=users, max_size=users))
    p = draws.draw(st.lists(st.floats(0, 0.9), min_size=3, max_size=3))
    rows = draws.draw(st.integers(2, 4))
    plan = plan_of("salf", depths, 3, p)
    batch = rows_of(*data(users, rows, (2, 4, 4), seed=draws.draw(st.integers(0, 99))), rows)
    model = small_normed()
    before = copy_of(model)
    fused, loop = steps(model, plan, batch, chunk_bytes=draws.draw(st.sampled_from([1, 2**28])))
    assert fused.reached == loop.reached
    assert_close(fused.step.values, loop.step.values, 1e-10)
    assert_same(copy_of(model), before)


def test_running_statistics_are_weighed_like_their_layer():
    """Weights that differ between users, on a model with batch norm, several chunks."""
    c = np.array([[0.5, 0.0, 0.0, 0.3], [0.25, 0.75, 0.0, 0.3], [0.2, 0.3, 0.7, 0.1]])
    plan = RoundPlan((Group(np.arange(4), c, 1),))
    rows = rows_of(*data(4, 3, (2, 4, 4)), 3)
    for chunk_bytes in (1, 2**28):
        fused, loop = steps(small_normed(), plan, rows, chunk_bytes=chunk_bytes)
        assert_close(fused.step.values, loop.step.values, 1e-11)


# No bias before a batch norm: its gradient is zero but for rounding.
VARIED = {
    "in place": nn.Sequential(
        nn.Conv2d(2, 4, 3, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.Flatten(),
        nn.Linear(16, 5),
        nn.ReLU(inplace=True),
        nn.Linear(5, 3),
    ),
    "in place after a thin convolution": nn.Sequential(
        nn.Conv2d(2, 3, 1),
        nn.Conv2d(3, 4, 3),
        nn.ReLU(inplace=True),
        nn.Flatten(),
        nn.Linear(16, 3),
    ),
    "plain mean of statistics": nn.Sequential(
        nn.Conv2d(2, 4, 3, bias=False),
        nn.BatchNorm2d(4, momentum=None),
        nn.Flatten(),
        nn.Linear(16, 3),
    ),
    "no running statistics": nn.Sequential(
        nn.Conv2d(2, 4, 3, bias=False),
        nn.BatchNorm2d(4, track_running_stats=False),
        nn.Flatten(),
        nn.Linear(16, 3),
    ),
    "norm without parameters": nn.Sequential(
        nn.Conv2d(2, 4, 3, bias=False),
        nn.BatchNorm2d(4, affine=False),
        nn.Flatten(),
        nn.Linear(16, 3),
    ),
    "nested, other norms, other pools": nn.Sequential(
        nn.Sequential(nn.Conv2d(2, 4, 2), nn.GroupNorm(2, 4), nn.GELU(), nn.AvgPool2d(3)),
        nn.Sequential(nn.Flatten(), nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6)), nn.PReLU()),
        nn.Linear(6, 3),
        nn.LogSoftmax(1),
    ),
    "norm as a layer of its own": nn.Sequential(
        nn.BatchNorm2d(2), nn.Conv2d(2, 4, 3, bias=False), nn.Flatten(), nn.Linear(16, 3)
    ),
    "norm without parameters in front": nn.Sequential(
        nn.BatchNorm2d(2, affine=False),
        nn.Conv2d(2, 4, 3, bias=False),
        nn.Flatten(),
        nn.Linear(16, 3),
    ),
}


@pytest.mark.parametrize("name", VARIED)
def test_modules_of_all_kinds_agree(name):
    torch.manual_seed(0)
    model = VARIED[name].to(DOUBLE)
    layers = len(Layers.of(model))
    users = 4
    depths = [1 + u % (layers + 1) for u in range(users)]
    fused, loop = steps(
        model, plan_of("salf", depths, layers), rows_of(*data(users, 3, (2, 4, 4)), 3)
    )
    assert_close(fused.step.values, loop.step.values, 1e-10)


@pytest.mark.parametrize("frozen", [["0"], ["2"], ["4"], ["0", "2"]])
def test_frozen_modules_agree_and_get_no_step(frozen):
    model = small_mlp()
    for place in frozen:
        model[int(place)].requires_grad_(False)
    layers = len(Layers.of(model))
    assert layers == 3 - len(frozen)
    plan = plan_of("salf", [1, min(2, layers), layers, layers + 1], layers)
    fused, loop = steps(model, plan, rows_of(*data(4, 2, (4,)), 2))
    assert_close(fused.step.values, loop.step.values, 1e-10)
    assert not any(name.split(".")[0] in frozen for name in loop.step.values)


def test_batches_of_different_sizes_are_gathered_chunk_by_chunk_with_the_same_step():
    """40 users with 1 to 4 rows each; no chunk needs the rows of more than a few of them."""
    users, rng, model = 40, np.random.default_rng(0), small_mlp()
    sizes = rng.integers(1, 5, users)
    inputs, targets = data(users, 4, (4,))
    seen = []

    class Rows:
        def __call__(self, chosen, step=1):
            seen.append(len(chosen))
            at = torch.cat([4 * u + torch.arange(sizes[u]) for u in chosen.tolist()])
            return inputs[at], targets[at]

        def sizes(self, chosen, step=1):
            return sizes[chosen]

    (whole,) = plan_of("salf", rng.integers(1, 5, users), 3).groups
    groups = tuple(
        Group(whole.users[own], whole.weights[:, own], 1, rows=size)
        for size in (4, 3, 2, 1)
        for own in [sizes[whole.users] == size]
    )
    loop = LoopEngine(model, Layers.of(model)).round(RoundPlan(groups), 1, {}, Rows())
    fused = FusedEngine(model, Layers.of(model), chunk_bytes=3000)
    seen.clear()
    found = fused.round(RoundPlan(groups), 1, {}, Rows())
    assert len(seen) > 8
    assert max(seen) < 16
    assert found.reached == loop.reached
    assert_close(found.step.values, loop.step.values, 1e-10)


@pytest.mark.parametrize("chunk_bytes", [None, 1])
def test_weights_that_are_not_nested_are_computed_right(chunk_bytes):
    model = small_mlp()
    plan = RoundPlan((Group(np.arange(2), np.array([[1.0, 0], [0, 0.5], [2.0, 1.0]]), 1),))
    rows = rows_of(*data(2, 2, (4,)), 2)
    loop = LoopEngine(model, Layers.of(model)).round(plan, 1, {}, rows)
    fused = FusedEngine(model, Layers.of(model), chunk_bytes=chunk_bytes).round(plan, 1, {}, rows)
    assert fused.reached == loop.reached
    assert_close(fused.step.values, loop.step.values, 1e-10)


def test_only_the_rows_that_reached_a_layer_are_backpropagated_through_it():
    """The point of the engine: through layer l only the rows of U^l run with a graph."""
    model = small_mlp()
    rows = {True: [], False: []}
    for place in (0, 2, 4):
        model[place].register_forward_hook(
            lambda module, given, out: rows[out.requires_grad].append(len(out))
        )
    engine = FusedEngine(model, Layers.of(model), chunk_bytes=2**28)
    plan = plan_of("salf", [1, 2, 2, 3, 4], 3)
    batch = rows_of(*data(5, 2, (4,)), 2)
    engine.round(plan, 1, {}, batch)
    rows = {True: [], False: []}  # the first round also looked at one user's size
    engine.round(plan, 1, {}, batch)
    assert rows == {True: [2, 6, 8], False: [6, 2]}  # |U^1|, |U^2|, |U^3| users of 2 rows
