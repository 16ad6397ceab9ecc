"""Runs and comparisons with a simulated clock: how they end, continue, and what they leave."""

import json

import pytest
import torch
from torch import nn

import interrupted
import salf
from salf.common.errors import SalfError
from salf.comparing import Sweep
from salf.core.rows import Row
from salf.runs.compare import Case, Clocked, Comparison, seconds_to
from salf.runs.config import Config
from salf.runs.folder import RunFolder
from salf.runs.pool import run_job
from salf.runs.run import Result, run
from salf.runs.training import History, part_done

# Of the made-up MLP a round of 4 rows takes phones a few milliseconds, most of it the links.
CLOCKED = Config(
    data="digits", users=5, batch_size=4, fleet="phones", deadline=0.0055, seconds=0.2, rounds=0,
    lr=0.1, threads=1,
)  # fmt: skip


def rows(*accuracies, every=10.0, **more):
    return tuple(
        Row(t, 1.0, (3, 3), accuracy, clock=every * t, **more)
        for t, accuracy in enumerate(accuracies, 1)
    )


def test_the_target_is_reached_at_the_first_evaluation_at_or_above_it():
    curve = [(10.0, 0.5), (20.0, 0.8), (30.0, 0.7), (40.0, 0.9)]
    assert seconds_to(curve, 0.8) == 20.0
    assert seconds_to(curve, 0.81) == 40.0
    assert seconds_to(curve, 0.91) is None


def test_waste_is_a_share_of_all_rounds_together():
    history = History(
        (
            *rows(0.5, waited=1.0, work=10.0, wasted_work=5.0, bytes=8.0),
            *rows(0.9, waited=2.0, work=30.0, wasted_work=5.0, bytes=8.0, wasted_bytes=4.0),
        ),
        {"accuracy": 0.9, "slowest_tenth_accuracy": 0.4},
    )
    found = Clocked.of(history, 0.95)
    assert (found.rounds, found.waited, found.slowest) == (2, 3.0, 0.4)
    assert (found.lost_work, found.lost_bytes) == (0.25, 0.25)
    assert found.to_target is None


def made_up(method, *accuracies, seed=0, batches="equal"):
    config = CLOCKED.changed(method=method, seed=seed, batches=batches)
    summary = {"seed": seed, "test_accuracy": accuracies[-1], "best_accuracy": max(accuracies)}
    return Result(config, History(rows(*accuracies), {"accuracy": accuracies[-1]}), summary)


FEDAVG, SALF = Case("fedavg", "reached", "iid", 0.9), Case("salf", "reached", "iid", 0.9)


def test_the_target_is_that_of_fedavg_with_the_same_seed_unless_one_is_given():
    results = {
        FEDAVG: [made_up("fedavg", 0.5, 0.8), made_up("fedavg", 0.5, 0.4, seed=1)],
        SALF: [made_up("salf", 0.77, 0.8), made_up("salf", 0.2, 0.39, seed=1)],
    }
    found = Comparison(CLOCKED, results).clocked(SALF)
    assert [run.target for run in found] == pytest.approx([0.76, 0.38])
    assert [run.to_target for run in found] == [10.0, 20.0]
    given = Comparison(CLOCKED, results, goal=0.8).clocked(SALF)
    assert [run.to_target for run in given] == [20.0, None]


def test_fedavg_with_equal_batches_sets_the_target_where_both_are_compared():
    other = Case("fedavg", "reached", "iid", 0.9, "equal-time")
    results = {
        other: [made_up("fedavg", 0.2, batches="equal-time")],
        FEDAVG: [made_up("fedavg", 1.0)],
    }
    assert Comparison(CLOCKED, results).target(other, 0) == 0.95


def test_the_columns_of_a_fleet_take_the_place_of_stragglers():
    found = Comparison(CLOCKED, {FEDAVG: [made_up("fedavg", 0.5)], SALF: [made_up("salf", 0.5)]})
    waiting, record = found.records()
    assert "stragglers" not in record
    assert (record["fleet"], record["deadline"], record["batches"]) == ("phones", 0.0055, "equal")
    assert waiting["deadline"] is None  # which FedAvg does not have
    for name in ("rounds", "simulated_seconds", "seconds_waited", "work_lost", "bytes_lost"):
        assert name in record


def test_methods_may_bring_their_own_batches():
    methods = ["fedavg", "salf", "salf+equal-time"]
    found = Sweep.of(CLOCKED, {"method": methods}).cases
    assert [(case.method, case.batches) for case in found] == [
        ("fedavg", "equal"),
        ("salf", "equal"),
        ("salf", "equal-time"),
    ]
    both = {"method": ["fedavg", "salf"], "batches": ["equal", "equal-time"]}
    assert len(Sweep.of(CLOCKED, both).cases) == 4


def test_progress_is_by_whichever_limit_is_nearer():
    row = Row(5, 1.0, (1,), clock=30.0)
    assert part_done(row, 10, None) == 0.5
    assert part_done(row, 0, 40.0) == 0.75
    assert part_done(row, 10, 40.0) == 0.75
    assert run_job(CLOCKED, None).work == 0.2
    assert run_job(Config(rounds=7), None).work == 7


def test_a_run_ends_within_its_seconds_and_its_summary_says_so(tmp_path):
    summary = run(CLOCKED, tmp_path / "r").summary
    assert 0.1 < summary["simulated_seconds"] <= 0.2
    assert (summary["fleet"], summary["deadline"]) == ("phones", 0.0055)
    assert json.loads((tmp_path / "r" / "summary.json").read_text()) == summary
    assert "simulated_seconds" not in run(Config(data="digits", rounds=1, threads=1)).summary


def test_a_run_given_more_seconds_is_the_long_run(tmp_path):
    long = CLOCKED.changed(seconds=0.4)
    whole = run(long, tmp_path / "whole")
    first = run(CLOCKED, tmp_path / "r")
    assert RunFolder(tmp_path / "r").finished(CLOCKED) is not None
    assert RunFolder(tmp_path / "r").finished(long) is None
    more = run(long, tmp_path / "r", resume=True)
    assert len(more.history.rows) == len(whole.history.rows) > len(first.history.rows)
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "r")]
    assert models[0] == models[1]
    assert run(long, tmp_path / "r", resume=True).summary == more.summary  # nothing new
    with pytest.raises(
        SalfError, match=r"run of 0.4 simulated seconds.*cannot be shortened to 0.2"
    ):
        run(CLOCKED, tmp_path / "r", resume=True)


def test_seconds_that_are_too_few_for_another_round_end_the_run_all_the_same(tmp_path):
    first = run(CLOCKED, tmp_path / "r")
    little = CLOCKED.changed(seconds=0.2001)
    assert run(little, tmp_path / "r", resume=True).summary["rounds"] == first.summary["rounds"]
    assert RunFolder(tmp_path / "r").finished(little) is not None


def test_an_evaluation_by_the_clock_is_kept_when_a_run_continues(tmp_path):
    whole = run(CLOCKED, tmp_path / "whole")
    at = next(row.round for row in whole.history.rows[3:] if row.accuracy is not None)

    with pytest.raises(KeyboardInterrupt):
        run(CLOCKED, tmp_path / "cut", on_round=interrupted.at(at), checkpoint_every=0)
    again = run(CLOCKED, tmp_path / "cut", resume=True)
    assert again.history.timed_curve == whole.history.timed_curve


def test_no_time_for_a_round_is_said_with_the_way_out(tmp_path):
    with pytest.raises(SalfError, match=r"no round ends within 0.001 .* use more seconds="):
        run(CLOCKED.changed(seconds=0.001), tmp_path / "r")
    assert run(CLOCKED, tmp_path / "r").summary["rounds"] > 1  # the folder stayed free


@pytest.mark.parametrize(
    ("base", "goal", "said"),
    [
        (CLOCKED, 1.5, "an accuracy above 0 and at most 1, not 1.5"),
        (Config(data="digits"), 0.9, "a target needs the simulated clock of a fleet"),
    ],
)
def test_what_does_not_apply_is_refused(base, goal, said):
    with pytest.raises(SalfError, match=said):
        Sweep.of(base, {"method": "salf"}, target=goal)


def test_python_compares_on_a_fleet_object_too():
    inputs = torch.randn(120, 6)
    labels = inputs[:, :3].argmax(1)
    fleet = salf.Fleet.of(speed=[1e5, 1e5, 1e4])
    settings = {"deadline": 0.02, "seconds": 0.3, "lr": 0.1, "batch_size": 5, "eval_seconds": 0.1}
    compared = salf.compare(
        lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)),
        (inputs[:90], labels[:90]),
        (inputs[90:], labels[90:]),
        methods=["fedavg", "salf+equal-time"],
        fleet=fleet,
        target=0.01,
        seeds=1,
        **settings,
    )
    frame = compared.to_pandas()
    assert list(frame["batches"]) == ["equal", "equal-time"]
    assert (frame["seconds_to_target"] <= 0.3).all()
    assert "SALF, equal-time" in str(compared)
    with pytest.raises(SalfError, match="leave out stragglers="):
        salf.compare(nn.Linear(6, 3), (inputs, labels), (inputs, labels), fleet=fleet,
                     stragglers=[0.5])  # fmt: skip
