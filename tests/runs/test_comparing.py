"""Methods side by side from Python, on objects of one's own."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn

import salf
from salf.methods.drop import Drop
from salf.runs.compare import Case

SETTINGS = {"users": 4, "rounds": 4, "batch_size": 5, "lr": 0.1, "eval_every": 2}


def net():
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


@dataclass(frozen=True)
class Halves(Drop):
    whole: bool = False

    def divisor(self, closing):
        return super().divisor(closing) * (1 if self.whole else 2)


@pytest.fixture(scope="module")
def points():
    torch.manual_seed(0)
    inputs = torch.randn(120, 6)
    return (inputs[:90], inputs[:90, :3].argmax(1)), (inputs[90:], inputs[90:, :3].argmax(1))


@pytest.fixture(scope="module")
def compared(points):
    splits = {"by hand": [[*range(20 * user, 20 * user + 20)] for user in range(4)], "iid": "iid"}
    methods = ["fedavg", "salf", Halves(), Halves(whole=True)]
    ratios = [0.5, 0.75]
    return salf.compare(
        net, *points, methods=methods, stragglers=ratios, splits=splits, seeds=2, **SETTINGS
    )


def test_every_method_ratio_split_and_seed_has_a_result(compared):
    frame = compared.to_pandas()
    assert len(frame) == 4 * 2 * 2 * 2
    assert set(frame["method"]) == {"fedavg", "salf", "Halves", "Halves(whole=True)"}
    assert set(frame["split"]) == {"by hand", "iid"}
    assert frame["test_accuracy"].between(0, 1).all()
    assert compared.failures == {}


def test_a_result_is_that_of_train(compared, points):
    torch.manual_seed(1)
    model = net()
    history = salf.train(model, *points, method=Halves(), stragglers=0.75, seed=1, **SETTINGS)
    case = Case("Halves", "reached", "iid", 0.75)
    found = compared.results[case][1].history
    assert [row.train_loss for row in found.rows] == [row.train_loss for row in history.rows]
    assert found.test_accuracy == history.test_accuracy


def test_a_method_object_is_averaged_as_it_says_or_as_asked(points):
    def losses(method, average, **more):
        compared = salf.compare(
            net, *points, methods=[method], stragglers=[0.5], seeds=1, **more, **SETTINGS
        )
        ((case, (result,)),) = compared.results.items()
        assert case.average == average
        return [row.train_loss for row in result.history.rows]

    over_all = losses(salf.method("drop", average="all"), "all")
    assert over_all == losses("drop", "all", averages=["all"])
    assert over_all == losses(salf.method("drop"), "all", averages=["all"])
    assert over_all != losses(salf.method("drop"), "reached")


def test_it_saves_results_picture_and_page(compared, tmp_path):
    written = compared.save(tmp_path / "cmp")
    assert {path.name for path in written} >= {"results.csv", "report.html", "accuracy.png"}
    assert "Halves(whole=True)" in (tmp_path / "cmp" / "report.html").read_text()


def test_with_a_folder_the_same_call_trains_nothing_again(points, tmp_path, monkeypatch):
    def call():
        return salf.compare(
            net, *points, methods=["salf"], seeds=[3], out=tmp_path, **SETTINGS
        ).to_pandas()

    first = call()
    monkeypatch.setattr(salf.Simulation, "step_until", lambda *_: pytest.fail("trains again"))
    assert call().equals(first)


def test_a_module_is_copied_for_every_run(points):
    model = net()
    before = [p.clone() for p in model.parameters()]
    salf.compare(model, *points, methods=["salf"], seeds=1, **SETTINGS)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_what_cannot_be_compared_is_refused(points):
    with pytest.raises(salf.SalfError, match="nothing to compare"):
        salf.compare(net, *points, methods=[])
    with pytest.raises(salf.SalfError, match="needs test data"):
        salf.compare(net, points[0])


@pytest.mark.parametrize("name", ["drop", "fedau", "scaffold", "salf-recall"])
def test_a_method_by_name_and_as_an_object_are_one(points, name):
    """Some have no average to choose, and some a state."""

    def losses(method):
        more = {**SETTINGS, "momentum": 0, "stragglers": 0.25}
        compared = salf.compare(net, *points, methods=[method], seeds=1, **more)
        ((result,),) = compared.results.values()
        return [row.train_loss for row in result.history.rows]

    assert losses(name) == losses(salf.method(name))
