import pytest

from salf.report import names


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ([names.method(key) for key in ("salf", "asyncfl")], ["SALF", "AsyncFL"]),
        ([names.percent(r) for r in (0.3, 0.07, 0.125, 1.0)], ["30 %", "7 %", "12.5 %", "100 %"]),
        (
            [names.split(key) for key in ("dirichlet:0.1", "iid", "shards:2", "own")],
            ["Dirichlet(0.1)", "i.i.d.", "shards:2", "users' own data"],
        ),
        ([names.listed(["a"]), names.listed(["a", "b", "c"])], ["a", "a, b and c"]),
        # Only a mixture has a ratio of stragglers.
        (
            [names.condition(depth, 0.3) for depth in ("mixture", "fixed:1,2,3")],
            ["30 % stragglers", "fixed depths"],
        ),
        (
            [names.duration(seconds) for seconds in (0.02, 0.0125, 0.9999, 2.513, 177.37, 5400)],
            ["20 ms", "12.5 ms", "1 s", "2.51 s", "177 s", "90 minutes"],
        ),
    ],
)
def test_names(said, told):
    assert said == told


def test_a_method_has_its_colour_whoever_else_is_there():
    assert names.lines(["salf"]) == names.lines(["drop", "inverse", "salf"])[2:]
    many = names.lines(["salf", "fedavg", "drop", "heterofl", "asyncfl", "fedprox", "fednova"])
    assert len({line.colour for line in many}) == 7
    assert [line.name for line in many if line.dashed or line.bold] == ["SALF", "FedAvg"]


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
