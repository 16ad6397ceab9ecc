"""Losses of one value per row and of one value per user: what is told apart, and that both
engines compute the same."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import salf
from nets import small_mlp
from reference import assert_close, copy_of, gradients
from salf.common.errors import SalfError
from salf.core.layers import Layers
from salf.engines import FusedEngine, LoopEngine, RowLoss, cross_entropy
from salf.engines.losses import checked
from salf.methods import Group, RoundPlan
from salf.worlds.depth import fixed

CLASSES = 3


def one_hot(targets):
    return F.one_hot(targets, CLASSES).double()


def contrastive(outputs, targets):
    """Every row against all other rows of the batch."""
    return F.cross_entropy(outputs @ outputs.T, torch.arange(len(outputs)))


def balanced(outputs, targets):
    """Rows weighted by how rare their class is in the batch."""
    counts = torch.bincount(targets, minlength=CLASSES)
    return (F.cross_entropy(outputs, targets, reduction="none") / counts[targets]).sum()


PER_USER = {
    "weighted cross-entropy": nn.CrossEntropyLoss(weight=torch.tensor([0.2, 1.0, 5.0]).double()),
    "mean": nn.CrossEntropyLoss(),
    "sum": nn.CrossEntropyLoss(reduction="sum"),
    "label smoothing": nn.CrossEntropyLoss(label_smoothing=0.1),
    "mean squared error": lambda outputs, targets: F.mse_loss(outputs, one_hot(targets)),
    "shape (1,)": lambda outputs, targets: F.cross_entropy(outputs, targets).reshape(1),
    "contrastive": contrastive,
    "balanced by batch": balanced,
}
PER_ROW = {
    "default": cross_entropy,
    "weighted, not reduced": nn.CrossEntropyLoss(
        weight=torch.tensor([0.2, 1.0, 5.0]).double(), reduction="none"
    ),
    "smoothed, not reduced": nn.CrossEntropyLoss(label_smoothing=0.1, reduction="none"),
    "one value per output": lambda outputs, targets: (outputs - one_hot(targets)) ** 2,
    "one value in a column": lambda outputs, targets: outputs.gather(1, targets[:, None]).exp(),
}
LOSSES = PER_USER | PER_ROW


@pytest.fixture
def points():
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(CLASSES, (600,), generator=generator)
    inputs = torch.randn(600, 4, generator=generator, dtype=torch.float64)
    inputs[torch.arange(600), labels] += 2
    return inputs, labels


@pytest.mark.parametrize("method", ["salf", "asyncfl"])  # equal weights, and others
@pytest.mark.parametrize("name", LOSSES)
def test_the_engines_agree_with_any_loss_on_skewed_data(points, name, method):
    ends, losses = [], []
    for engine in ("loop", "fused"):
        model = small_mlp()
        history = salf.train(
            model,
            points,
            loss=LOSSES[name],
            engine=engine,
            method=method,
            users=20,
            split="dirichlet:0.1",
            stragglers=0.7,
            rounds=6,
            batch_size=5,
            lr=0.05,
        )
        assert history.loss == f"one value per {'row' if name in PER_ROW else 'user'}"
        ends.append(copy_of(model))
        losses.append([row.train_loss for row in history.rows])
    assert_close(ends[1], ends[0], 1e-10)
    assert losses[1] == pytest.approx(losses[0], rel=1e-10)
    assert any(not torch.equal(ends[0][key], value) for key, value in copy_of(small_mlp()).items())


@pytest.mark.parametrize("engine", [LoopEngine, FusedEngine])
@pytest.mark.parametrize("name", PER_USER)
def test_a_single_value_is_computed_from_one_users_rows(points, name, engine):
    """Against plain autograd, user by user."""
    inputs, labels = points
    model, loss, users = small_mlp(), PER_USER[name], 3
    batches = [(inputs[10 * u : 10 * u + 5], labels[10 * u : 10 * u + 5]) for u in range(users)]
    plan = RoundPlan((Group(np.arange(users), np.full((3, users), 1 / users), 1),))

    def rows(chosen, step=1):
        return tuple(torch.cat([batches[u][part] for u in chosen]) for part in (0, 1))

    found = engine(model, Layers.of(model), loss).round(plan, 1, {}, rows)
    each = [gradients(model, *batch, loss=loss) for batch in batches]
    wanted = {key: sum(gradient[key] for gradient in each) / users for key in each[0]}
    assert_close(found.step.values, wanted, 1e-12)
    values = [loss(model(x), y).item() for x, y in batches]
    assert found.loss == pytest.approx(np.mean(values), rel=1e-12)


def test_soft_labels_agree_with_the_default_loss(points):
    inputs, labels = points
    soft = 0.9 * one_hot(labels) + 0.1 / CLASSES
    ends = []
    for engine in ("loop", "fused"):
        model = small_mlp()
        salf.train(model, (inputs, soft), engine=engine, users=6, rounds=4, batch_size=5)
        ends.append(copy_of(model))
    assert_close(ends[1], ends[0], 1e-10)


def example(rows=16, classes=CLASSES, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, classes, generator=generator, dtype=torch.float64), torch.randint(
        CLASSES, (rows,), generator=generator
    )


@pytest.mark.parametrize("name", LOSSES)
def test_one_value_per_row_is_told_from_a_single_one(name):
    found = checked(LOSSES[name], *example())
    assert isinstance(found, RowLoss) == (name in PER_ROW)
    if name in PER_USER:
        assert found is LOSSES[name]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rounding_does_not_hide_that_a_loss_has_one_value_per_row(dtype):
    outputs = 1e3 * torch.randn(64, 1000, generator=torch.Generator().manual_seed(0)).to(dtype)
    assert isinstance(checked(nn.MSELoss(reduction="none"), outputs, outputs + 1), RowLoss)

    def mean_over_columns(outputs, targets):
        return F.mse_loss(outputs, targets, reduction="none").mean(1)

    assert isinstance(checked(mean_over_columns, outputs, -outputs), RowLoss)


@pytest.mark.parametrize(
    ("loss", "says"),
    [
        (lambda o, t: F.cross_entropy(o @ o.T, torch.arange(len(o)), reduction="none"), "mean"),
        (lambda o, t: F.cross_entropy(o, t, reduction="none") - o.mean(), "depends on other rows"),
        (lambda o, t: (o - one_hot(t)).mean(0) ** 2, r"values of shape \(3,\): outputs have shape"),
        (lambda o, t: (o[:, :1] - t).abs().mean(1), "depends on other rows"),
        (lambda o, t: torch.cdist(o, o), r"values of shape \(16, 16\)"),
        (lambda o, t: 0.5, "must return a tensor, not a float"),
        (lambda o, t: (o.argmax(1) == t).double(), "cannot be differentiated"),
        (nn.CrossEntropyLoss(weight=torch.ones(4).double()), "the loss fails: weight tensor"),
        (nn.MSELoss(), r"the loss fails: .*outputs have shape \(16, 3\) and targets .* \(16,\)"),
    ],
)
def test_a_loss_that_cannot_be_used_is_one_sentence(loss, says):
    with pytest.raises(SalfError, match=says):
        checked(loss, *example())


def test_values_as_many_as_rows_by_coincidence_are_not_taken_for_one_per_row():
    outputs, targets = example(rows=CLASSES)
    with pytest.raises(SalfError, match="depends on other rows"):
        checked(lambda o, t: ((o - one_hot(t)) ** 2).mean(0), outputs, targets)
    square = torch.randn(16, 16)
    with pytest.raises(SalfError, match="the loss fails"):
        checked(lambda o, t: ((o - t) ** 2).mean(), square, torch.randn(16))


BROADCASTING = {
    "mean": nn.MSELoss(),
    "not reduced": nn.MSELoss(reduction="none"),
    "own": lambda o, t: ((o - t) ** 2).mean(),
    "linear": lambda o, t: (o * t).sum(),
    "no warning of torch": nn.PoissonNLLLoss(),
}


@pytest.mark.parametrize("name", BROADCASTING)
def test_outputs_broadcast_against_targets_are_refused_with_the_shapes(name):
    outputs, targets = torch.randn(16, 1), 500 + torch.rand(16)
    with pytest.raises(SalfError, match=r"shape \(16, 1\) and .* \(16,\)\. Give .* same shape"):
        checked(BROADCASTING[name], outputs, targets)
    checked(BROADCASTING[name], outputs, targets[:, None])


@pytest.mark.parametrize("loss", [F.mse_loss, F.l1_loss])
def test_a_loss_that_squeezes_the_outputs_itself_is_taken(loss):
    outputs, targets = torch.randn(16, 1), 500 + torch.rand(16)
    checked(lambda o, t: loss(o.squeeze(1), t), outputs, targets)


def test_the_check_draws_nothing_and_is_made_on_classes_from_all_over_sorted_data(points):
    """With one class only, this loss has the same values for a row alone and among others."""
    inputs, labels = points
    order = labels.argsort()
    model, seen = small_mlp(), []

    def balanced_rows(outputs, targets):
        seen.append(set(targets.tolist()))
        torch.rand(1)
        counts = torch.bincount(targets, minlength=CLASSES)
        weights = len(targets) / counts[targets]
        return F.cross_entropy(outputs, targets, reduction="none") * weights

    before = torch.get_rng_state()
    with pytest.raises(SalfError, match="depends on other rows"):
        salf.train(model, (inputs[order], labels[order]), loss=balanced_rows, users=3)
    assert seen[0] == {0, 1, 2}
    assert torch.equal(torch.get_rng_state(), before)


def test_a_batch_of_one_row_is_checked_on_more(points):
    ends = []
    for engine in ("loop", "fused"):
        model = small_mlp()
        history = salf.train(
            model,
            points,
            loss=nn.CrossEntropyLoss(),
            engine=engine,
            depth=fixed([1, 2, 3], layers=3),
            **{"users": 3, "rounds": 3, "batch_size": 1},
        )
        assert history.loss == "one value per user"
        ends.append(copy_of(model))
    assert_close(ends[1], ends[0], 1e-10)
