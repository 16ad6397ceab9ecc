"""`salf plan`: what it prints and leaves, and what it says to those who ask for too little."""

import csv

import pytest

from command import salf

ASKED = ["plan", "--data", "synthetic", "--users", "6", "--batch-size", "8", "--lr", "0.1"]
FLEET = ["--fleet", "slow-classes", "--seconds", "20"]


@pytest.mark.slow
def test_a_plan_leaves_a_schedule_that_a_run_follows(tmp_path):
    search = ["--seeds", "1", "--deadlines", "1s,4s", "--workers", "1", "--out", "plan"]
    done = salf(*ASKED, *FLEET, *search, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Search by simulation" in done.stdout
    assert "Rank correlation" in done.stdout
    assert {path.name for path in (tmp_path / "plan").iterdir()} == {
        "plan.csv",
        "curve.csv",
        "plan.png",
        "plan.svg",
        "plan.html",
        "search",
    }
    with (tmp_path / "plan" / "plan.csv").open() as stream:
        deadlines = [float(line["deadline"]) for line in csv.DictReader(stream)]
    assert sum(deadlines) <= 20 * 1.001
    run = ["run", *ASKED[1:], *FLEET, "--deadline", "plan/plan.csv"]
    followed = salf(*run, cwd=tmp_path)
    assert followed.returncode == 0, followed.stderr


def test_the_bound_alone(tmp_path):
    done = salf(*ASKED, *FLEET, "--seeds", "0", "--g2", "3", "--bound", "sharp", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "G^2 = 3 (given)" in done.stdout
    assert "Sharp bound, schedule" in done.stdout
    assert "Accuracy" not in done.stdout
    assert "Nothing was saved" in done.stderr


def test_without_the_report_extra_there_are_tables(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "altair", None)
    done = salf(*ASKED, *FLEET, "--seeds", "0", "--out", "plan", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "No figure and no page will be written" in done.stderr
    assert {path.name for path in (tmp_path / "plan").iterdir()} == {"plan.csv", "curve.csv"}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "a plan needs a fleet, such as --fleet phones."),
        (["--fleet", "pis"], "a plan needs a budget of simulated seconds, such as --seconds 600."),
        ([*FLEET, "--deadlines", "1"], "a time needs a unit"),
        ([*FLEET, "--g2", "nan"], "g2 must be of type float"),
        ([*FLEET, "--rho-c", "3", "--rho-s", "1"], "0 < rho_c <= rho_s"),
        ([*FLEET, "--bound", "loose"], "loose"),
    ],
)
def test_what_cannot_be_planned_is_one_sentence(arguments, told, tmp_path):
    done = salf(*ASKED, *arguments, "--seeds", "0", cwd=tmp_path)
    assert done.returncode == 2
    assert told in done.stderr
    assert done.stderr.startswith("salf: ")
    assert done.stderr.count("\n") == 1
