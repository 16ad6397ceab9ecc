"""The plan in words, as a table and as a page."""

from dataclasses import replace
from pathlib import Path

import pytest

from salf.core.rows import Row
from salf.report.plan import described, page, table, verdict, why
from salf.runs.config import Config
from salf.runs.plan import ADEL, Asked, Planned, Regime
from salf.runs.search import Candidate, Race
from salf.runs.training import History

SALF = Candidate("salf", 0.5, "equal-time", 4, "fp16", 0.1)
DROP, WAITING = Candidate("drop", 1.5, lr=0.2), Candidate("fedavg", lr=0.2)
REGIME = Regime({"links": 0.7, "fixed": 0.1, "rows": 0.2}, 3.0, 0.5, 0.8, 0.1)


def history(level, test):
    rows = [Row(k, 1.0, (1, 2), level * k / 10, clock=10.0 * k) for k in range(1, 11)]
    return History(tuple(rows), {"accuracy": test})


@pytest.fixture
def planned():
    """Accuracies rise in a straight line: 0.6 is reached at 100 * 0.6 / level."""
    levels = {SALF: (0.9, 0.8), DROP: (0.88, 0.82), WAITING: (0.5, 0.4)}
    found = {
        (each, seed): history(level, level)
        for each, both in levels.items()
        for seed, level in enumerate(both)
    }
    race = Race(None, None, Path(), None, 10.0, found)
    config = Config(method="salf", fleet="phones", deadline=0.5, seconds=100.0)
    return Planned(config, Asked(None, 2), None, [*levels], race, REGIME)


def test_the_verdict_comes_first_and_a_tie_is_called_one(planned):
    said = verdict(planned)
    assert said.startswith(
        "Run SALF with 4 local steps, deadline 500 ms, equal-time batches, fp16, lr 0.1: test "
        "accuracy 0.850 ±"
    )
    assert f" Next best: {described(DROP)} (+0.000 ±0.229 (tie) of accuracy)." in said
    assert f" Waiting: {described(WAITING)} (−0.360 ±0.000 of accuracy)." in said
    against = [row[-1] for row in table(planned).rows]
    assert against == ["–", "+0.000 ±0.229 (tie)", "−0.360 ±0.000"]


def test_with_a_target_times_are_compared(planned):
    timed = replace(planned, asked=Asked(0.6, 2), target=0.6)
    assert "0.600 on held-out data after 70.8 ±53 s" in verdict(timed)
    rows = {row[0].split(",")[0]: row for row in table(timed).rows}
    assert rows["FedAvg"][-2:] == ["not reached", "–"]
    assert rows["SALF with 4 local steps"][-1] == "–"


def test_why_names_what_decides(planned):
    said = why(planned)
    assert "Link-bound: 70% of the median user's round is download and upload" in said
    assert "labels are skewed (total variation 0.80)" in said
    assert "users are absent 50% of the time" in said
    shares = {**REGIME.shares, "links": 0.4}
    other = why(replace(planned, regime=replace(REGIME, shares=shares, skew=0.1, available=1.0)))
    assert other.startswith("Compute-bound")
    assert "similar labels" in other
    assert "absent" not in other


def test_the_page_has_curves_and_the_config(planned):
    adel = replace(SALF, deadline="adel-fl.csv", note=ADEL)
    planned = replace(planned, finalists=[*planned.finalists, adel])
    html = page(planned, ["plan", "mnist-mlp"]).html()
    assert "salf plan mnist-mlp" in html
    assert "deadlines and batches by ADEL-FL" in html
    assert "Held-out accuracy" in html
    assert "Users that reached each layer" in html
