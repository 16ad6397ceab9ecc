"""What is measured on held-out data during training and at its end."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import interrupted
import salf
from salf.runs.run import Stopped

SETTINGS = {
    "users": 4,
    "rounds": 4,
    "batch_size": 5,
    "lr": 0.05,
    "eval_every": 2,
    "stragglers": 0.5,
}


def net(outputs):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, outputs))


@pytest.fixture(scope="module")
def inputs():
    torch.manual_seed(0)
    return torch.randn(120, 6)


def regression(inputs):
    targets = inputs[:, :2].sum(1, keepdim=True)
    return (inputs[:90], targets[:90]), (inputs[90:], targets[90:])


def worst(outputs, targets):
    return (outputs - targets).abs().max()


def test_a_regression_has_its_loss_and_own_metrics_and_no_accuracy(inputs):
    model, data = net(1), regression(inputs)
    history = salf.train(model, *data, loss=F.mse_loss, metrics={"worst": worst}, **SETTINGS)
    assert history.test_accuracy is None
    with torch.no_grad():
        outputs = model.eval()(data[1][0])
    expected = {"loss": F.mse_loss(outputs, data[1][1]), "worst": worst(outputs, data[1][1])}
    assert history.test == pytest.approx({name: v.item() for name, v in expected.items()})
    assert [t for t, _ in history.curve_of("worst")] == [2, 4]
    assert [t for t, _ in history.curve_of("loss")] == [2, 4]


def test_metrics_are_kept_in_a_folder_and_when_a_run_continues(inputs, tmp_path):
    more = {"loss": nn.MSELoss(), "metrics": {"worst": worst}, **SETTINGS}
    whole = salf.train(net(1), *regression(inputs), **more)

    stop = interrupted.at(3, Stopped)
    begun = salf.train(net(1), *regression(inputs), out=tmp_path, on_round=stop, **more)
    assert begun.stopped
    assert len(begun.rows) == 3
    rest = salf.train(net(1), *regression(inputs), out=tmp_path, resume=True, **more)
    read = salf.train(net(1), *regression(inputs), out=tmp_path, resume=True, **more)
    for history in (rest, read):
        assert history.curve_of("worst") == whole.curve_of("worst")
        assert history.test == whole.test
    assert "held_out_worst" in (tmp_path / "metrics.csv").read_text()


def test_classes_have_loss_and_accuracy(inputs):
    labels = inputs[:, :3].argmax(1)
    data = (inputs[:90], labels[:90]), (inputs[90:], labels[90:])
    history = salf.train(net(3), *data, **SETTINGS)
    assert history.test.keys() == {"loss", "accuracy"}
    assert history.rows[1].metrics.keys() == {"loss"}


def test_a_comparison_has_own_metrics(inputs):
    settings = {"seeds": 1, "loss": F.mse_loss, "metrics": {"worst": worst}, **SETTINGS}
    del settings["stragglers"]
    compared = salf.compare(lambda: net(1), *regression(inputs), methods=["salf"], **settings)
    assert {"test_loss", "test_worst"} <= {*compared.to_pandas().columns}


@pytest.mark.parametrize(
    ("metrics", "says"),
    [
        ({"loss": worst}, "a metric cannot be called 'loss'"),
        ({"my metric": worst}, "a metric cannot be called 'my metric'"),
        ({"worst": 3}, "the metric worst must be a function"),
        ({"worst": lambda o, t: o[:7] + t}, "the metric worst fails: The size of tensor"),
    ],
)
def test_a_metric_that_does_not_work_is_refused_in_a_sentence(inputs, metrics, says):
    with pytest.raises(salf.SalfError, match=says):
        salf.train(net(1), *regression(inputs), loss=F.mse_loss, metrics=metrics, **SETTINGS)
