"""A run of Python objects keeps a folder, continues there, and refuses what is not the same."""

import signal
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import salf
from nets import mlp
from salf.runs.presets import load_config
from salf.runs.run import Stopped
from salf.worlds.depth import Uniform

SETTINGS = {"users": 4, "rounds": 6, "batch_size": 5, "stragglers": 0.5, "lr": 0.1}


net = partial(mlp, 6, 8, 3, seed=1)


@pytest.fixture(scope="module")
def points():
    torch.manual_seed(0)
    inputs = torch.randn(120, 6)
    return (inputs[:90], inputs[:90, :3].argmax(1)), (inputs[90:], inputs[90:, :3].argmax(1))


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_an_interrupted_run_continues_to_the_same_model(points, tmp_path):
    whole, half, rest = net(), net(), net()
    expected = salf.train(whole, *points, **SETTINGS)
    out = tmp_path / "run"

    def after_four(row, model):
        if row.round == 4:
            raise Stopped

    assert salf.train(half, *points, out=out, on_round=after_four, **SETTINGS).stopped
    assert not same(half, whole)
    history = salf.train(rest, *points, out=out, resume=True, **SETTINGS)
    assert same(rest, whole)
    assert [row.train_loss for row in history.rows] == [row.train_loss for row in expected.rows]
    assert history.test_accuracy == expected.test_accuracy


def test_a_finished_run_is_read_and_leaves_the_model_as_trained(points, tmp_path):
    first, again = net(), net()
    salf.train(first, *points, out=tmp_path, **SETTINGS)

    def never(row, model):
        raise AssertionError("there is nothing left to train")

    history = salf.train(again, *points, out=tmp_path, resume=True, on_round=never, **SETTINGS)
    assert len(history.rows) == 6
    assert same(again, first)


def weighed(outputs, targets):
    return F.cross_entropy(outputs, targets, weight=torch.tensor([1.0, 2.0, 3.0]))


@pytest.mark.parametrize(
    "change",
    [
        {"loss": weighed},
        {"method": salf.method("asyncfl", delay=3)},
        {"depth": Uniform(4, 2)},
        {"split": [[*range(40)], [*range(40)], [*range(90)], [*range(90)]]},
        {"layers": [["0", "2"]]},
        {"data": "other numbers"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_another_object_does_not_continue_a_run(points, tmp_path, change):
    salf.train(net(), *points, out=tmp_path, **SETTINGS)
    (inputs, labels), test = points
    if "data" in change:
        change, inputs = {}, inputs.clone().index_fill_(0, torch.tensor([3]), 0.5)
    with pytest.raises(salf.SalfError, match="contains a run with a different config"):
        salf.train(net(), (inputs, labels), test, out=tmp_path, resume=True, **change, **SETTINGS)


def test_a_function_of_the_same_name_that_does_something_else_does_not_continue_a_run(
    points, tmp_path
):
    def train(factor, **more):
        loss = [
            lambda outputs, targets: F.cross_entropy(outputs, targets) * 1.0,
            lambda outputs, targets: F.cross_entropy(outputs, targets) * 2.0,
        ][factor]
        salf.train(net(), *points, loss=loss, out=tmp_path, **more, **SETTINGS)

    train(0)
    train(0, resume=True)
    with pytest.raises(salf.SalfError, match="different config"):
        train(1, resume=True)


@pytest.mark.parametrize(
    "objects",
    [{"loss": weighed}, {"loss": nn.CrossEntropyLoss(torch.ones(3))}, {"depth": Uniform(4, 2)}],
    ids=["function", "module", "law"],
)
def test_equal_objects_continue_a_run(points, tmp_path, objects):
    salf.train(net(), *points, out=tmp_path, **objects, **SETTINGS)
    salf.train(net(), *points, out=tmp_path, resume=True, **objects, **SETTINGS)


def test_the_config_of_such_a_run_is_no_config_of_the_command(points, tmp_path):
    salf.train(net(), *points, out=tmp_path, **SETTINGS)
    config = load_config(str(tmp_path / "config.toml"))
    assert config.given["model"] == "Sequential"
    with pytest.raises(salf.SalfError, match="repeat it with salf"):
        salf.run(config)


def test_an_interrupted_run_returns_its_rounds_and_goes_on_from_its_folder(tmp_path):
    def interrupt(row, model):
        if row.round == 2:
            signal.raise_signal(signal.SIGINT)

    given = {"out": tmp_path / "run", "rounds": 4, "users": 3, "eval_every": 1, "seed": 1}
    x, y = torch.randn(60, 4), torch.randint(0, 3, (60,))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        history = salf.train(nn.Linear(4, 3), (x, y), (x, y), on_round=interrupt, **given)
    finally:
        signal.signal(signal.SIGINT, before)
    assert (len(history.rows), history.stopped) == (2, True)
    assert history.test_accuracy is not None
    history = salf.train(nn.Linear(4, 3), (x, y), (x, y), resume=True, **given)
    assert (len(history.rows), history.stopped) == (4, False)


def test_users_own_data_are_not_called_iid(tmp_path):
    own = [(torch.randn(6, 4), torch.randint(0, 3, (6,))) for _ in range(3)]
    for name, data, split in (("own", own, "own"), ("given", own[0], "given")):
        more = {} if split == "own" else {"split": [[0, 1], [2, 3]]}
        salf.train(nn.Linear(4, 3), data, rounds=1, out=tmp_path / name, **more)
        assert load_config(str(tmp_path / name / "config.toml")).split == split
