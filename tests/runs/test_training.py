from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

import salf
from nets import mlp
from salf.methods import Method
from salf.runs.config import Config
from salf.runs.federation import from_config
from salf.worlds.depth import fixed


@pytest.fixture
def points():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 900)
    x = rng.normal(size=(900, 8))
    x[np.arange(900), y] += 3
    return torch.tensor(x, dtype=torch.float32), torch.tensor(y)


net = partial(mlp, 8, 16, 3)


SMALL = {"users": 6, "rounds": 40, "lr": 0.2, "batch_size": 8}


def test_own_model_and_tensors_are_trained_in_place_and_give_a_history(points):
    x, y = points
    model = net()
    before = [parameter.clone() for parameter in model.parameters()]
    history = salf.train(model, (x[:700], y[:700]), test=(x[700:], y[700:]), **SMALL)
    assert history.test_accuracy > 0.9
    assert len(history.rows) == 40
    assert history.curve[-1][0] == 40
    assert history.best_accuracy == max(value for _, value in history.curve)
    moved = [not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True)]
    assert all(moved)
    with torch.no_grad():
        accuracy = (model(x[700:]).argmax(1) == y[700:]).double().mean().item()
    assert accuracy == pytest.approx(history.test_accuracy)


def test_the_history_says_which_engine_ran_and_why(points):
    settings = {**SMALL, "rounds": 1}
    fused = salf.train(net(), points, **settings)
    assert (fused.engine, fused.why) == ("fused", "the model is a plain nn.Sequential")
    asked = salf.train(net(), points, engine="loop", **settings)
    assert (asked.engine, asked.why) == ("loop", "requested")


def test_layers_can_be_given_by_name(points):
    x, y = points
    history = salf.train(net(), (x, y), layers=[("0", "2")], **SMALL)
    assert len(history.rows[0].reached) == 1
    assert history.test_accuracy is None  # no test data were given


def test_a_split_can_be_given_by_index_and_is_used_exactly(points):
    x, y = points
    poisoned = y.clone()
    poisoned[300:] = 0  # samples that no user is given must not matter
    shares = [list(range(start, start + 50)) for start in range(0, 300, 50)]
    runs = []
    for labels in (y, poisoned):
        model = net()
        salf.train(model, (x, labels), split=shares, **SMALL)
        runs.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert torch.equal(*runs)


SHARES = [list(range(start, start + 50)) for start in range(0, 300, 50)]


def test_with_a_split_by_index_the_curve_is_on_the_test_data(points):
    x, y = points
    data = {"data": (x[:700], y[:700]), "test": (x[700:], y[700:]), "split": SHARES}
    history = salf.train(net(), **data, **SMALL, eval_every=10)
    assert [t for t, _ in history.curve] == [10, 20, 30, 40]
    assert history.curve[-1] == (40, history.test_accuracy)
    assert salf.train(net(), points, split=SHARES, **SMALL).curve == []  # without test data


def test_with_a_validation_part_the_curve_is_on_that(points):
    """Test labels that are all wrong must not show in the curve."""
    x, y = points
    history = salf.train(net(), (x[:700], y[:700]), test=(x[700:], (y[700:] + 1) % 3), **SMALL)
    assert history.curve[-1][1] > 0.8
    assert history.test_accuracy < 0.2


def test_numpy_arrays_of_double_precision_train_a_model_of_single_precision(points):
    x, y = points
    x, target = x.numpy().astype(float), y.numpy().astype(float)[:, None]
    assert salf.train(net(), (x, y.numpy()), test=(x, y.numpy()), **SMALL).test_accuracy > 0.9
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 1))
    history = salf.train(model, (x, target), loss=nn.MSELoss(), **{**SMALL, "lr": 0.01})
    assert history.rows[-1].train_loss < history.rows[0].train_loss


@pytest.mark.parametrize(
    ("outputs", "labels", "loss", "says"),
    [
        (
            1,
            lambda y: y.float(),
            {},
            r"labels are floating-point numbers: pass a loss .*MSELoss\(\)",
        ),
        (3, lambda y: y[:, None], {}, r"Flatten the labels: labels\.reshape\(-1\)"),
        (1, lambda y: y.float(), {"loss": nn.MSELoss()}, r"\(8, 1\) and .* \(8,\)\. Give them the"),
        (2, lambda y: y, {"loss": nn.CrossEntropyLoss()}, "Target 2 is out of bounds"),
        (3, lambda y: [str(each) for each in y.tolist()], {}, "labels cannot be converted"),
    ],
)
def test_labels_that_do_not_fit_the_loss_are_one_sentence(points, outputs, labels, loss, says):
    x, y = points
    y = y.sort().values  # the first batch has no label 2
    with pytest.raises(salf.SalfError, match=says):
        salf.train(nn.Sequential(nn.Linear(8, outputs)), (x, labels(y)), **loss, **SMALL)


def test_on_round_can_stop_a_run_and_what_there_is_is_kept(points):
    x, y = points

    def stop_when_good_enough(row, model):
        if row.accuracy is not None and row.accuracy > 0.8:
            raise salf.StopTraining

    data = {"data": (x[:700], y[:700]), "test": (x[700:], y[700:]), "eval_every": 1, **SMALL}
    whole = salf.train(net(), **data)
    cut = salf.train(net(), on_round=stop_when_good_enough, **data)
    assert (cut.stopped, whole.stopped) == (True, False)
    assert 1 <= len(cut.rows) < 40
    assert cut.curve == whole.curve[: len(cut.rows)]
    assert cut.curve[-1][1] > 0.8
    assert cut.test_accuracy is not None


def test_a_model_that_does_not_fit_is_one_sentence(points):
    with pytest.raises(salf.SalfError, match="the data have 3 classes"):
        salf.train(nn.Sequential(nn.Linear(8, 2)), points, **SMALL)


def test_forgotten_labels_are_one_sentence(points):
    x, y = points
    for test in (x, x[:2], (x,), (x, y, y)):
        with pytest.raises(salf.SalfError, match=r"test data must be a pair \(inputs, labels\)"):
            salf.train(net(), points, test=test, **SMALL)
    with pytest.raises(salf.SalfError, match=r"training data must be a pair .* not a Tensor"):
        salf.train(net(), x, **SMALL)


def test_training_and_validation_data_are_disjoint_and_complete():
    training = from_config(Config(data="synthetic", users=10, rounds=1, batch_size=10))
    problem = training.simulation.problem
    assert len(problem.validation) == 1000
    assert len(problem.users.samples) == 5000
    rows = torch.cat([problem.users.samples.inputs, problem.validation.inputs])
    assert len({row.numpy().tobytes() for row in rows}) == 6000
    # Evaluation is a third of the work at most: 1,000 held-out rows, 100 trained rows a round.
    assert training.evaluation.every == 10


@pytest.mark.parametrize(
    ("function", "wrong", "says"),
    [
        ("share", lambda shape: np.ones(shape[1]), r"share must return .* \(2, 6\), not \(6,\)"),
        ("share", lambda shape: np.ones(shape), "share must be 0 in layers not reached"),
        ("share", lambda shape: -np.ones(shape), "share must return finite and at least 0"),
        ("divisor", np.ones, r"divisor must return .* \(2,\), not \(2, 6\)"),
        ("divisor", lambda shape: np.zeros(2), "divisor must return finite and positive"),
    ],
)
def test_a_method_that_returns_wrong_weights_is_one_sentence(points, function, wrong, says):
    @dataclass(frozen=True)
    class Wrong(Method):
        def share(self, arrived, layers):
            right = arrived.reach(layers).astype(float)
            return wrong(right.shape) if function == "share" else right

        def divisor(self, closing):
            return wrong((2, 6)) if function == "divisor" else np.ones(2)

    with pytest.raises(salf.SalfError, match=f"Wrong.{says}"):
        salf.train(net(), points, method=Wrong(), depth=fixed([2] * 6, layers=2), **SMALL)


def test_what_contradicts_itself_is_refused(points):
    shares = [list(range(50)), list(range(50, 100))]
    with pytest.raises(salf.SalfError, match="the split is for 2 users, but users is 6"):
        salf.train(net(), points, split=shares, **SMALL)
    with pytest.raises(salf.SalfError, match="set it there"):
        salf.train(net(), points, method=salf.method("salf"), average="all", **SMALL)


def test_accuracy_counts_labels_not_samples():
    """As in segmentation, where a sample has many labels."""
    x = torch.randn(60, 1, 4, 4)
    model = nn.Sequential(nn.Conv2d(1, 2, 1))
    history = salf.train(
        model, (x, (x[:, 0] > 0).long()), test=(x, (x[:, 0] > 0).long()), users=3, rounds=30, lr=0.5
    )
    assert 0.9 < history.test_accuracy <= 1


def test_a_history_is_a_data_frame_a_chart_and_a_table_in_a_notebook(tiny):
    history = salf.run(tiny).history
    frame = history.to_pandas()
    assert list(frame["round"]) == [row.round for row in history.rows]
    assert {"train_loss", "accuracy", "held_out_loss", "reached_1", "seconds"} <= {*frame}
    assert ">accuracy</text>" in history.plot()._repr_svg_()
    assert ">Round</text>" in history.plot("loss")
    with pytest.raises(salf.SalfError, match="'f1' was not measured"):
        history.plot("f1")
    html = history._repr_html_()
    assert "<th>test accuracy</th>" in html
    assert html.startswith("<svg")
    assert f"{history.test_accuracy:.4f}" in html
