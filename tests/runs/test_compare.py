import csv

import pytest

from salf.common.errors import SalfError, TrainingDiverged
from salf.runs import compare as compare_module
from salf.runs.compare import cases, compare
from salf.runs.presets import load_config
from salf.runs.run import run


def starts_processes(test):
    """Tests that share the processes that the first of them starts, on one worker."""
    return pytest.mark.slow(pytest.mark.xdist_group("compare")(test))


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    from salf.runs.config import Config

    tiny = Config(data="synthetic", users=6, rounds=12, batch_size=4, eval_every=4)
    out = tmp_path_factory.mktemp("compare") / "out"
    seen = []
    wanted = cases(["fedavg", "salf", "heterofl"], ["reached", "all"], ["iid"], [0.3, 0.9])
    options = {"width": 0.25}

    def again(base, seeds=range(2), **more):
        return compare(base, wanted, seeds, out, options=options, **more)

    result = again(tiny, workers=2, on_progress=lambda *p: seen.append(p))
    return tiny, wanted, out, seen, result, again


@starts_processes
def test_every_case_and_seed_is_in_the_results(compared):
    _, wanted, out, _, _, _ = compared
    with (out / "results.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert list(rows[0])[:4] == ["method", "stragglers", "seed", "test_accuracy"]
    expected = {(c.method, str(c.stragglers), str(s), c.average) for c in wanted for s in (0, 1)}
    assert {(r["method"], r["stragglers"], r["seed"], r["average"]) for r in rows} == expected
    assert len(rows) == len(expected)


@starts_processes
def test_a_method_that_waits_runs_once_per_seed_for_all_ratios(compared):
    _, _, out, _, _, _ = compared
    fedavg = [path.name for path in (out / "runs").iterdir() if path.name.startswith("fedavg")]
    assert len(fedavg) == 2


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
def test_progress_ends_at_all_rounds(compared):
    _, _, _, seen, _, _ = compared
    # two seeds of fedavg once, and of two methods x two ratios x two averages, 12 rounds each
    assert seen[-1] == (2 * (1 + 2 * 2 * 2) * 12,) * 2


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
        compare(tiny.changed(users=6000), cases(["salf"], ["reached"], ["iid"], [0.5]), [0])


def test_a_run_that_diverges_costs_its_own_cell_only(tiny, tmp_path, no_processes):
    base = tiny.changed(lr=1e12, rounds=4)
    wanted = cases(["fedavg", "drop"], ["reached"], ["iid"], [1.0])
    found = compare(base, wanted, [0], tmp_path, workers=1)
    assert [case.method for case in found.results] == ["drop"]  # where nobody finishes in time
    ((name, reason),) = found.failures.items()
    assert name.startswith("fedavg-")
    assert "diverged in round" in reason
    assert (tmp_path / "results.csv").read_text().count("\n") == 2


def test_if_all_diverge_it_says_which_and_why(tiny, no_processes):
    wanted = cases(["fedavg", "salf"], ["reached"], ["iid"], [0.0])
    with pytest.raises(TrainingDiverged, match=r"no run finished: fedavg-.*salf-"):
        compare(tiny.changed(lr=1e12), wanted, [0], workers=1)


def test_unknown_methods_and_empty_lists_are_refused(tiny):
    with pytest.raises(SalfError, match="Did you mean 'salf'"):
        compare(tiny, cases(["slaf"], ["reached"], ["iid"], [0.5]), [0])
    with pytest.raises(SalfError, match="nothing to compare"):
        compare(tiny, [], [0])


def test_an_option_that_no_method_has_is_refused(tiny):
    wanted = cases(["salf", "heterofl"], ["reached"], ["iid"], [0.5])
    with pytest.raises(SalfError, match="Did you mean 'width'"):
        compare(tiny, wanted, [0], options={"widht": 0.5})


def test_ratios_without_a_meaning_are_refused(tiny):
    wanted = cases(["salf"], ["reached"], ["iid"], [0.3, 0.9])
    with pytest.raises(SalfError, match="ratios of stragglers belong to depth='mixture'"):
        compare(tiny.changed(depth="uniform"), wanted, [0])


def test_folder_names_hold_no_separators(tiny):
    config = tiny.changed(split="dirichlet:0.1")
    assert compare_module._label(config) == "salf-reached-dirichlet_0.1-0.9-3"
