import csv

import pytest

import interrupted
import salf
from salf.common.errors import SalfError, TrainingDiverged
from salf.comparing import Sweep
from salf.runs.compare import Case
from salf.runs.config import Config
from salf.runs.presets import load_config
from salf.runs.run import run


def starts_processes(test):
    """Tests that share the processes that the first of them starts, on one worker."""
    return pytest.mark.slow(pytest.mark.xdist_group("compare")(test))


WANTED = {
    "method": ["fedavg", "salf", "heterofl"],
    "average": ["reached", "all"],
    "stragglers": [0.3, 0.9],
    "options": {"width": 0.25},
}


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    tiny = Config(data="synthetic", users=6, rounds=12, batch_size=4, eval_every=4)
    out = tmp_path_factory.mktemp("compare") / "out"
    seen = []

    def again(base, seeds=range(2), workers=2):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("salf.comparing.Bar.update", lambda self, *at: seen.append(at))
            return Sweep.of(base, WANTED, seeds).run(out, workers)

    result = again(tiny)
    return tiny, [*result.results], out, seen, result, again


@starts_processes
def test_every_case_and_seed_is_in_the_results(compared):
    _, wanted, out, seen, _, _ = compared
    with (out / "results.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert list(rows[0])[:4] == ["method", "stragglers", "seed", "test_accuracy"]
    expected = {(c.method, str(c.stragglers), str(s), c.average) for c in wanted for s in (0, 1)}
    assert {(r["method"], r["stragglers"], r["seed"], r["average"]) for r in rows} == expected
    assert len(rows) == len(expected)
    # A method that waits runs once per seed for all ratios.
    fedavg = [path.name for path in (out / "runs").iterdir() if path.name.startswith("fedavg")]
    assert len(fedavg) == 2
    # Two seeds of fedavg once, and of two methods x two ratios x two averages, 12 rounds each.
    assert seen[-1] == (2 * (1 + 2 * 2 * 2) * 12,) * 2


@starts_processes
def test_each_run_can_be_repeated_from_its_own_config(compared):
    _, wanted, out, _, result, _ = compared
    folder = out / "runs" / "heterofl-all-iid-0.9-1"
    alone = run(load_config(str(folder / "config.toml")))
    case = next(
        c for c in wanted if (c.method, c.average, c.stragglers) == ("heterofl", "all", 0.9)
    )
    assert alone.config.options == {"width": 0.25}
    assert alone.summary["test_accuracy"] == result.results[case][1].summary["test_accuracy"]


@starts_processes
def test_the_same_call_again_trains_nothing_new(compared, no_processes):
    base, wanted, out, _, result, again = compared
    before = {path: path.stat().st_mtime_ns for path in (out / "runs").rglob("*.safetensors")}
    repeated = again(base, workers=1)
    assert before == {
        path: path.stat().st_mtime_ns for path in (out / "runs").rglob("*.safetensors")
    }
    for case in wanted:
        assert [r.summary for r in repeated.results[case]] == [
            r.summary for r in result.results[case]
        ]


@starts_processes
def test_another_config_in_the_folder_is_refused(compared, no_processes):
    base, _, _, _, _, again = compared
    with pytest.raises(SalfError, match="different config"):
        again(base.changed(lr=0.3), range(1), workers=1)


@starts_processes
def test_what_a_worker_finds_wrong_is_said_here(tiny):
    with pytest.raises(SalfError, match="users"):
        Sweep.of(tiny.changed(users=6000), {"method": "salf"}, [0]).run()


def test_a_run_that_diverges_costs_its_own_cell_only(tiny, tmp_path, no_processes):
    base = tiny.changed(lr=1e12, rounds=4)
    wanted = {"method": ["fedavg", "drop"], "stragglers": 1.0}
    found = Sweep.of(base, wanted, [0]).run(tmp_path, workers=1)
    assert [case.method for case in found.results] == ["drop"]  # where nobody finishes in time
    ((name, reason),) = found.failures.items()
    assert name.startswith("fedavg-")
    assert "diverged in round" in reason
    assert (tmp_path / "results.csv").read_text().count("\n") == 2


def test_if_all_diverge_it_says_which_and_why(tiny, no_processes):
    wanted = {"method": ["fedavg", "salf"], "stragglers": 0.0, "lr": 1e12}
    with pytest.raises(TrainingDiverged, match=r"no run finished: fedavg-.*salf-"):
        Sweep.of(tiny, wanted, [0]).run(workers=1)


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ({"method": ["slaf"]}, "Did you mean 'salf'"),
        ({"method": []}, "nothing to compare"),
        ({"lr": []}, "nothing to compare"),
        ({"lrr": [0.1, 0.2]}, "Did you mean 'lr'"),
        ({"fleet": ["phones", ""], "deadline": 1}, "a run has no clock"),
        ({"lr": [0.1, "fast"]}, "cannot read the learning rate"),
        ({"method": ["salf", "heterofl"], "options": {"widht": 0.5}}, "Did you mean 'width'"),
        (
            {"method": "salf", "stragglers": [0.3, 0.9], "depth": "uniform"},
            "ratios of stragglers belong to depth='mixture'",
        ),
    ],
)
def test_what_cannot_be_compared_is_refused(tiny, no_processes, wanted, said):
    with pytest.raises(SalfError, match=said):
        Sweep.of(tiny, wanted, [0]).run(workers=1)


def test_folder_names_hold_no_separators():
    case = Case("salf", "reached", "dirichlet:0.1", 0.9, more=(("lr", 0.1),))
    assert case.label(3, "") == "salf-reached-dirichlet_0.1-0.9-lr_0.1-3"


def test_settings_given_as_lists_are_all_combined_and_are_columns(tiny, tmp_path, no_processes):
    wanted = {"method": ["fedavg", "salf"], "lr": ["0.03", 0.3], "momentum": (0, 0.5), "rounds": 2}
    found = Sweep.of(tiny, wanted, [0]).run(tmp_path)
    assert len(found.results) == 2 * 2 * 2
    with (tmp_path / "results.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert list(rows[0])[:5] == ["method", "lr", "momentum", "stragglers", "seed"]
    assert {(row["lr"], row["momentum"]) for row in rows} == {
        ("0.03", "0"), ("0.03", "0.5"), ("0.3", "0"), ("0.3", "0.5")
    }  # fmt: skip
    case = Case("salf", "reached", "iid", 0.9, more=(("lr", 0.3), ("momentum", 0.5)))
    alone = run(tiny.changed(method="salf", lr=0.3, momentum=0.5, rounds=2, seed=0))
    (result,) = found.results[case]
    assert result.summary["test_accuracy"] == alone.summary["test_accuracy"]
    assert "lr  momentum" in str(found)
    assert "momentum" in found._repr_html_()
    assert found._repr_html_().startswith("<svg")


def test_a_list_of_one_value_is_no_column(tiny, no_processes):
    found = Sweep.of(tiny, {"method": "salf", "lr": [0.3], "rounds": [2]}, [0]).run()
    assert found.base.lr == 0.3
    assert "lr" not in found.records()[0]


def test_an_interrupted_comparison_keeps_what_is_done(tiny, tmp_path, capsys):
    wanted = {"config": tiny, "methods": ["salf", "drop"], "rounds": 2, "seeds": 1}
    ended = iter([False, False, True])

    def stop(row, model):
        if next(ended):
            raise KeyboardInterrupt

    found = salf.compare(**wanted, out=tmp_path, on_round=stop)
    assert found.interrupted
    assert [case.method for case in found.results] == ["salf"]
    assert "1 of 2 runs are done; repeat the call to continue" in capsys.readouterr().err
    rounds = []
    whole = salf.compare(**wanted, out=tmp_path, on_round=lambda row, _: rounds.append(row.round))
    assert [case.method for case in whole.results] == ["salf", "drop"]
    assert len(rounds) < 4  # those of salf are not run again
    nothing = salf.compare(**wanted, on_round=interrupted.at(1, KeyboardInterrupt))
    assert nothing.interrupted
    assert str(nothing) == "No run is done."
