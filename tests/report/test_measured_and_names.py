import pytest

from salf.report import names
from salf.report.measured import Spread


def test_mean_and_standard_deviation_over_the_seeds():
    spread = Spread.of([0.80, 0.82, None, 0.90])
    assert (spread.low, spread.high, spread.count) == (0.80, 0.90, 3)
    assert spread.mean == pytest.approx(0.84)
    assert spread.sd == pytest.approx(0.052915, abs=1e-6)  # with n - 1
    assert str(spread) == "0.8400 ±0.0529"


def test_one_seed_has_no_spread_and_none_has_nothing():
    assert str(Spread.of([0.5])) == "0.5000"
    assert Spread.of([None]) is None


def test_names():
    assert [names.method(key) for key in ("salf", "asyncfl")] == ["SALF", "AsyncFL"]
    assert [names.percent(ratio) for ratio in (0.3, 0.07, 0.125, 1.0)] == [
        "30 %",
        "7 %",
        "12.5 %",
        "100 %",
    ]
    assert names.split("dirichlet:0.1") == "Dirichlet(0.1)"
    assert [names.split(key) for key in ("iid", "shards:2")] == ["i.i.d.", "shards:2"]
    assert names.listed(["a"]) == "a"
    assert names.listed(["a", "b", "c"]) == "a, b and c"


def test_a_method_has_its_colour_whoever_else_is_there():
    assert names.colours(["salf"]) == names.colours(["drop", "mine", "salf"])[2:]
    many = names.colours(["salf", "fedavg", "drop", "heterofl", "asyncfl", "x", "y", "z"])
    assert len(set(many)) == 8


def test_only_a_mixture_has_a_ratio_of_stragglers():
    assert names.condition("mixture", 0.3) == "30 % stragglers"
    assert names.condition("fixed:1,2,3", 0.3) == "fixed depths"


def test_a_method_of_ones_own_goes_by_the_name_of_its_class(tmp_path, monkeypatch):
    (tmp_path / "own_methods.py").write_text(
        "from salf.methods.fedavg import FedAvg\n"
        "from salf.methods.salf import SALF\n"
        "class Halves(SALF): pass\n"
        "class Patient(FedAvg): pass\n"
    )
    monkeypatch.chdir(tmp_path)
    own = ["own_methods:Halves", "own_methods:Patient"]
    assert [names.method(key) for key in own] == ["Halves", "Patient"]
    assert [names.waits(key) for key in own] == [False, True]
