"""The simulated clock on the command line."""

import csv
import json

import pytest

from command import salf

FLEET = ["digits-mlp", "--fleet", "phones", "--users", "6", "--deadline", "50ms"]
RUN = ["run", *FLEET, "--threads", "1"]


def test_a_run_says_its_simulated_seconds_and_may_be_given_more(tmp_path):
    done = salf(*RUN, "--seconds", "1", "--out", "r", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "r" / "summary.json").read_text())
    clock = f"{summary['simulated_seconds']:.4g} simulated seconds"
    assert done.stdout.startswith("salf, phones, deadline 50 ms: test accuracy 0.")
    assert f"after {summary['rounds']} rounds and {clock} in" in " ".join(done.stdout.split())
    more = salf(*RUN, "--seconds", "2", "--out", "r", "--resume", cwd=tmp_path)
    assert more.returncode == 0, more.stderr
    longer = json.loads((tmp_path / "r" / "summary.json").read_text())
    assert 1.5 < longer["simulated_seconds"] < 2 + 1e-9  # however the sum is rounded


def test_compare_answers_by_the_clock_and_leaves_its_columns(tmp_path, no_processes):
    methods = ["--methods", "fedavg,salf,salf+equal-time", "--seeds", "1"]
    done = salf("compare", *FLEET, "--seconds", "1", *methods, "--out", "c", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "phones, deadline 50 ms" in done.stdout
    assert "Seconds to target" in done.stdout
    with (tmp_path / "c" / "results.csv").open() as stream:
        lines = list(csv.DictReader(stream))
    assert [line["batches"] for line in lines] == ["equal", "equal", "equal-time"]
    assert "over simulated seconds" in (tmp_path / "c" / "report.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([*RUN, "--stragglers", "0.5"], "leave out --stragglers"),
        ([*RUN, "--depth", "uniform"], "leave out --depth"),
        (["compare", *FLEET, "--stragglers", "0.5"], "leave out --stragglers"),
        (["compare", *FLEET, "--target", "2"], "an accuracy above 0 and at most 1, not 2"),
        (["compare", *FLEET, "--batches", "equal,uneven"], "uneven"),
        (["compare", "digits-mlp", "--target", "0.9"], "a target needs the simulated clock"),
        (["compare", "digits-mlp", "--batches", "equal-time"], "equal-time needs a fleet"),
        ([*RUN, "--method", "asyncfl", "--option", "buffer=2"], "leave out --deadline"),
        ([*RUN, "--seconds", "0.0001"], "no round ends within 0.0001 simulated seconds"),
    ],
)
def test_what_does_not_apply_is_one_sentence(tmp_path, arguments, says):
    done = salf(*arguments, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert says in done.stderr
    assert done.stderr.count("\n") == 1
