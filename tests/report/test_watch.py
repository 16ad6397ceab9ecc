"""A folder that is followed: a run, a comparison, a live federation, from its files alone."""

import os
import shutil
import time
from io import StringIO

import pytest
from rich.console import Console
from test_live_page import folder_of, row

from salf.cli.watch import board
from salf.comparing import Sweep
from salf.core import rows
from salf.report import watch
from salf.report.watch import Watched
from salf.runs.config import Config
from salf.runs.folder import METRICS, ROUNDS, SUMMARY

BASE = Config(data="synthetic", model="mlp", users=3, rounds=4, threads=1)


@pytest.fixture(autouse=True)
def looking_at_once(monkeypatch):
    """However long the look before it took."""
    monkeypatch.setattr(
        Watched, "_next", property(lambda self: 0.0, lambda *_: None), raising=False
    )


def looked(watched):
    watched.look()
    return watched.status()


def test_a_comparison_at_work_is_its_cases_and_how_many_runs_are_done(tmp_path):
    asked = {"method": ["fedavg", "salf"], "stragglers": [0.3, 0.9], "options": {}}
    Sweep.of(BASE, asked, seeds=2).run(tmp_path, workers=0)
    finished = Watched(tmp_path)
    words, mood = looked(finished)
    assert (words.partition(".")[0], mood) == ("Finished", "good")
    assert finished.page.sections[0].heading == "Results"
    (table, *_) = finished.page.sections[0].blocks
    assert [line[0] for line in table.rows] == ["FedAvg (waits)", "SALF"]
    assert list(table.columns) == ["Method", "30 %", "90 %"]  # FedAvg's one run is in both
    one, other, *_ = sorted((tmp_path / "runs").iterdir())
    (one / SUMMARY).unlink()
    shutil.rmtree(other)
    words, mood = looked(finished)
    assert "4 of 6 runs finished." in words
    assert mood == "none"
    assert finished.page.intro == ["4 of 6 runs are finished; those begun have 4 rounds."]
    assert finished.page.sections[0].heading == "So far, on held-out data"


def test_a_live_run_is_followed_round_by_round_in_80_columns(tmp_path):
    watched = Watched(folder_of(tmp_path, [row(1)]))
    assert looked(watched)[0].endswith("0 of 1 runs finished.")
    rows.append(tmp_path / ROUNDS, row(2, accuracy=0.5, rejected=[("user-1", "why " * 40)]))
    looked(watched)
    assert "Not finished: 2 of 4 rounds" in watched.page.intro[0]
    text = StringIO()
    Console(file=text, width=80).print(board(watched))
    lines = text.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert "Last new data" in lines[0]
    assert any("user-1, 8x slower" in line for line in lines)


def test_data_that_stopped_coming_are_told_by_what_is_new_and_not_by_the_times_of_files(
    tmp_path, monkeypatch
):
    folder_of(tmp_path, [row(1), row(2)])
    old = time.time() - 3600
    for file in tmp_path.iterdir():
        os.utime(file, (old, old))
    watched = Watched(tmp_path)
    words, mood = looked(watched)
    assert words.startswith("No new data for 60 minutes: the run was stopped or killed")
    assert mood == "bad"
    os.utime(tmp_path / ROUNDS)  # the same content is copied again
    assert looked(watched)[1] == "bad"
    rows.append(tmp_path / ROUNDS, row(3))
    assert looked(watched)[1] == "none"
    monkeypatch.setattr(watch, "QUIET", -1.0)
    assert looked(watched)[1] == "bad"


def test_a_file_that_is_half_copied_leaves_the_page_as_it_was(tmp_path):
    watched = Watched(folder_of(tmp_path, [row(1, accuracy=0.25)]))
    looked(watched)
    before = watched.page
    (tmp_path / SUMMARY).write_text('{"test": ')
    assert "Some files cannot be read (JSONDecodeError)." in looked(watched)[0]
    assert watched.page is before
    (tmp_path / SUMMARY).unlink()
    assert "cannot be read" not in looked(watched)[0]


def test_a_folder_that_is_not_there_yet_is_waited_for(tmp_path):
    watched = Watched(tmp_path / "later")
    assert looked(watched)[1] == "none"
    folder_of(tmp_path / "later", [row(1)])
    looked(watched)
    assert "1 of 4 rounds" in watched.page.intro[0]


def test_nothing_that_a_followed_config_names_is_imported(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.py").write_text("raise SystemExit('imported')")
    named = BASE.to_toml().replace('"mlp"', '"evil:Net"').replace('"salf"', '"evil:Method"')
    (tmp_path / "config.toml").write_text(named)
    rows.write_csv(tmp_path / METRICS, [row(1, accuracy=0.5), row(2, accuracy=0.75)])
    watched = Watched(tmp_path)
    assert looked(watched)[1] == "none"
    assert "Method on synthetic" in watched.page.title
