"""`salf plan`: what it prints and leaves, and what it says to those who ask for too little."""

import json

import pytest

from command import salf

ASKED = ["plan", "mlp", "--data", "digits", "--users", "6", "--batch-size", "8"]
FLEET = ["--fleet", "slow-classes", "--seconds", "10"]


@pytest.mark.slow
def test_a_plan_leaves_a_config_that_a_run_follows(tmp_path, no_processes, monkeypatch):
    monkeypatch.setattr("salf.runs.plan.SHARES", (0.5, 0.9))
    fixed = ["--method", "salf", "--batches", "equal", "--seeds", "1"]
    done = salf(*ASKED, *FLEET, *fixed, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Run SALF, deadline")
    assert "Compute-bound: 0%" in done.stdout
    written = {path.name for path in (tmp_path / "plan").iterdir()}
    assert written == {"config.toml", "live.toml", "plan.html", "search"}
    followed = salf("run", "plan/config.toml", "--out", "followed", cwd=tmp_path)
    assert followed.returncode == 0, followed.stderr
    again = salf(*ASKED, *FLEET, *fixed, cwd=tmp_path)
    assert again.stdout == done.stdout
    as_json = salf(*ASKED, *FLEET, *fixed, "--json", cwd=tmp_path)
    assert json.loads(as_json.stdout)["method"] == "salf"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "a plan needs a fleet, such as --fleet phones."),
        (["--fleet", "pis"], "a plan needs a time or a target, such as --seconds 600"),
        ([*FLEET, "--target", "2"], "the target is an accuracy above 0 and at most 1, not 2"),
        ([*FLEET, "--deadline", "1"], "a time needs a unit"),
        ([*FLEET, "--method", "best"], "unknown method 'best'"),
    ],
)
def test_what_cannot_be_planned_is_one_sentence(arguments, told, tmp_path):
    done = salf(*ASKED, *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert told in done.stderr
    assert done.stderr.startswith("salf: ")
    assert done.stderr.count("\n") == 1
