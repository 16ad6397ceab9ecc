"""The tiny suite end to end, and what its results are made of."""

from dataclasses import replace
from pathlib import Path

import pytest

from salf.bench import bench as module
from salf.bench import results
from salf.bench.bench import bench
from salf.bench.results import BenchRow, BenchRun, CellResult, cell_result
from salf.bench.suite import REFERENCE, Entrant, load
from salf.common.errors import SalfError
from salf.common.files import csv_of
from salf.runs.run import run

TINY = load(str(Path(__file__).with_name("tiny.toml")))
PHONES = TINY.only(["phones"])
CELL = PHONES.cells[0]
pytestmark = pytest.mark.usefixtures("no_processes")


def entrants(*names):
    return [TINY.entrant(name) for name in names]


def test_a_row_has_the_numbers_of_its_runs_with_the_best_rate(tmp_path):
    reference, row = bench(TINY, entrants("salf"), tmp_path, {})
    assert (reference.name, row.name, row.version) == ("reference", "salf", 7)
    assert set(row.cells) == {"digits/mixture", "digits/phones"}
    found = row.cells[CELL.key]
    assert found.lr == max((0.1, 0.3), key=lambda lr: found.tuning[f"{lr:g}"])
    history = run(CELL.config(TINY.entrant("salf"), 1, found.lr)).history
    seeded = found.runs[1]
    assert (seeded.seed, seeded.rounds) == (1, len(history.rows))
    assert seeded.accuracy == pytest.approx(history.test["accuracy"], abs=1e-5)
    assert seeded.slowest == pytest.approx(history.test["slowest_tenth_accuracy"], abs=1e-5)
    final = reference.cells[CELL.key].runs[1].held_out
    assert seeded.target == pytest.approx(0.95 * final, abs=1e-5)
    # Where there is no clock, nothing is known of work, bytes or the slowest.
    unclocked = row.cells["digits/mixture"].runs[0]
    assert (unclocked.slowest, unclocked.lost_work, unclocked.lost_bytes) == (None, None, None)


def test_a_bench_that_was_stopped_goes_on_and_nothing_is_run_twice(tmp_path, monkeypatch):
    left = 3

    def stopping(*arguments, **more):
        nonlocal left
        if not left:
            raise RuntimeError("the power is gone")
        left -= 1
        return run(*arguments, **more)

    monkeypatch.setattr(module, "run", stopping)
    with pytest.raises(RuntimeError, match="power"):
        bench(PHONES, entrants("salf"), tmp_path, {})
    assert len(list((tmp_path / "runs").glob("*.json"))) == 3
    left = 2 * (2 + 2) - 3  # two methods, two rates, two seeds
    reference, row = bench(PHONES, entrants("salf"), tmp_path, {})
    assert left == 0
    written = (tmp_path / "rows" / "salf.json").read_text()
    (again,) = bench(PHONES, entrants("salf"), tmp_path, {"reference": reference})
    assert again.cells == row.cells  # and the reference that is published is not run
    assert (tmp_path / "rows" / "salf.json").read_text() == written


def test_a_method_that_needs_a_clock_gets_a_dash_and_the_reason_without_one(tmp_path):
    buffered = Entrant("asyncfl", {"buffer": 2})
    row = bench(TINY, [buffered], tmp_path, {})[-1]
    assert "needs a clock" in row.cells["digits/mixture"].refused
    assert not row.cells["digits/mixture"].runs
    assert row.cells["digits/phones"].runs


def test_a_method_that_diverges_has_failed_and_a_rate_that_does_is_not_chosen(tmp_path):
    def tuned(*rates):
        return bench(replace(PHONES, rates=rates), entrants("salf"), tmp_path, {})[-1].cells[
            CELL.key
        ]

    found = tuned(1e29)
    assert found.failed.startswith("2 of 2 seeds: ")
    assert found.tuning == {"1e+29": None}
    assert found.over_seeds("accuracy") is None
    found = tuned(1e29, 0.1)
    assert (found.lr, found.failed) == (0.1, "")


def test_no_round_in_time_is_a_failure_not_a_dash(tmp_path):
    scenario = replace(CELL.scenario, batch_seconds=1e6)
    suite = replace(PHONES, cells=[replace(CELL, scenario=scenario)])
    found = bench(suite, entrants("fedavg"), tmp_path, {})[-1].cells[CELL.key]
    assert found.failed == "2 of 2 seeds: no round ended within the budget"
    assert not found.refused


def test_what_is_wrong_with_a_method_is_said_at_once(tmp_path):
    for wrong, said in (
        (Entrant("slaf"), "unknown method 'slaf'"),
        (Entrant("salf", {"speed": 3}), "unknown option of salf 'speed'"),
        (Entrant("salf", {}, {"batches": "equal-time", "local_epochs": 1}), "in any scenario"),
    ):
        with pytest.raises(SalfError, match=said):
            bench(PHONES, [wrong], tmp_path, {})
    assert not (tmp_path / "runs").exists()


def test_a_method_is_run_again_when_its_file_changes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    text = "from salf.methods.drop import Drop\nclass Mine(Drop):\n    name = 'mine'\n"
    (tmp_path / "bench_own_a.py").write_text(text)
    (tmp_path / "bench_own_b.py").write_text(text + "# changed\n")
    a, b = (module._source(f"bench_own_{each}:Mine") for each in "ab")
    assert a == text
    assert a != b
    assert "class SALF(" in module._source("salf")


def measured(seed, *curve):
    return BenchRun(seed, accuracy=0.5, held_out=curve[-1][1], curve=curve, rounds=3)


def test_times_to_the_target_and_the_mean_curve_by_hand():
    reference = CellResult(runs=[BenchRun(0, held_out=0.8), BenchRun(1, held_out=0.4)])
    own = [measured(0, (1.5, 0.2), (3.0, 0.76)), measured(1, (1.5, 0.3), (6.0, 0.37))]
    found = cell_result(CELL, 0.1, {0.1: 0.4}, own, reference)  # 6 seconds in 40 points
    assert found.tuning == {"0.1": 0.4}
    assert [run.target for run in found.runs] == [0.76, 0.38]
    assert [run.to_target for run in found.runs] == [3.0, None]
    assert found.over_seeds("to_target") is None
    assert found.curve[8] is None  # at 1.35 s nothing was measured
    assert found.curve[9] == found.curve[18] == 0.25
    assert found.curve[19] == pytest.approx((0.76 + 0.3) / 2)
    assert found.curve[39] == pytest.approx((0.76 + 0.37) / 2)


def test_rates_are_judged_by_the_last_quarter():
    run = BenchRun(curve=[(t, t / 10) for t in range(8)])
    assert run.late_accuracy == pytest.approx(0.65)
    assert BenchRun(curve=[(1, 0.3)]).late_accuracy == 0.3
    assert BenchRun(failed="diverged").late_accuracy is None


def test_rows_survive_their_file(tmp_path):
    entrant = Entrant("asyncfl", {"delay": 3}, {"batches": "equal-time"})
    runs = [BenchRun(0, 0.5, curve=[(1, 0.5)])]
    row = BenchRow(
        entrant,
        1,
        {"a/b": CellResult(0.1, {"0.1": 0.5}, runs, [None, 0.5]), "c/d": CellResult(refused="no")},
    )
    found = results.read(results.write(tmp_path, row))
    assert (found.name, found.entrant.options) == (row.name, {"delay": 3})
    assert found.cells["a/b"].runs == (BenchRun(0, 0.5),)
    assert found.cells["c/d"] == CellResult(refused="no")


def test_rows_of_another_version_are_left_out_and_named(tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr(results, "published_folder", lambda: tmp_path)
    for name, version in (("salf", 7), ("drop", 6)):
        results.write(tmp_path, BenchRow(Entrant(name), version, {}))
    assert list(results.published(TINY, said.append)) == ["salf"]
    assert said == [
        "drop is left out: its results are from version 6 of the suite, but this is version 7. Run "
        "it again."
    ]


def test_published_results_are_of_this_version_and_have_a_reference():
    suite, published = load("full"), results.read_all(results.published_folder())
    for row in published.values():
        assert row.version == suite.version
    if published:
        keys = {key for row in published.values() for key in row.cells}
        assert keys <= set(published[REFERENCE.name].cells)


def test_the_csv_has_a_line_per_method_cell_and_seed():
    row = BenchRow(
        Entrant("salf"), 7, {CELL.key: CellResult(0.1, {}, [BenchRun(0, 0.5), BenchRun(1, 0.6)])}
    )
    gone = BenchRow(Entrant("drop"), 7, {CELL.key: CellResult(refused="it cannot")})
    header, *lines = csv_of([*results.records(TINY, [row, gone])]).splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("salf,digits,phones,0.1,0,0.5,")
    assert lines[2].endswith("it cannot,seconds,7")
    assert all(line.count(",") == header.count(",") for line in lines)


@pytest.mark.parametrize("method", ["ownstate:Leans", "scaffold"])
def test_methods_that_keep_a_state_have_rows(tmp_path, method):
    entrant = Entrant(method, {}, {"momentum": 0.0, "local_steps": 2})
    _, row = bench(PHONES, [entrant], tmp_path, {})
    assert all(0 < each.accuracy <= 1 for each in row.cells[CELL.key].runs)
