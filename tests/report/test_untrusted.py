"""A folder from elsewhere: to look at its run runs no code that its config names."""

import sys

import pytest
from test_live_page import CONFIG_OF_ALL, row, salf

from salf.common.errors import SalfError
from salf.core import rows
from salf.live.replays import replay
from salf.report.watch import write_page
from salf.runs.config import Config
from salf.runs.folder import CONFIG, ROUNDS, RunFolder
from salf.runs.presets import load_config, read_toml

CODE = "from pathlib import Path\nPath('ran').touch()\n"
NAMED = ("method", "model", "data", "depth", "engine", "fleet")  # settings that take import paths


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """One whose every import path leads to code in the folder itself, where we are."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "hostile.py").write_text(CODE)
    rows.rewrite(tmp_path / ROUNDS, [row(1), row(2)])
    yield tmp_path
    assert not (tmp_path / "ran").exists()
    assert "hostile" not in sys.modules


def naming(folder, *names, live=True):
    lines = CONFIG_OF_ALL.to_toml().splitlines() if live else []
    kept = [line for line in lines if line.partition(" =")[0] not in names]
    given = [f'{name} = "hostile:Name"' for name in names]
    (folder / CONFIG).write_text("\n".join([*given, *kept]))


def test_a_page_imports_nothing(folder, monkeypatch):
    naming(folder, "method", "model", "data")
    assert salf(monkeypatch, "page", ".") == 0
    page = (folder / "live.html").read_text()
    assert "Name live on hostile:Name" in page


def test_a_page_is_the_same_whether_its_config_is_tried_or_only_read(folder):
    naming(folder)
    assert load_config(CONFIG, look=True) == load_config(CONFIG) == CONFIG_OF_ALL
    write_page(folder)


@pytest.mark.parametrize("name", ["method", "model", "data"])
def test_a_replay_asks_before_it_runs_code(folder, name, capsys, monkeypatch):
    naming(folder, name)
    assert salf(monkeypatch, "replay", ".") == 2
    said = capsys.readouterr().err
    assert "'hostile:Name', whose code would be run: give --trust if you trust it" in said
    with pytest.raises(SalfError, match="give trust=True"):
        replay(folder)


def test_a_replay_does_not_call_what_is_imported_already(folder):
    """`os:abort` needs no arguments, as a data set or a model."""
    for name in ("data", "model"):
        naming(folder, name)
        text = (folder / CONFIG).read_text().replace("hostile:Name", "os:abort")
        (folder / CONFIG).write_text(text)
        with pytest.raises(SalfError, match="'os:abort', whose code would be run"):
            replay(folder)


@pytest.mark.parametrize("name", NAMED)
def test_a_run_into_a_folder_does_not_run_the_code_that_is_named_there(folder, name):
    naming(folder, name, live=False)
    if name != "data":  # which is looked up when it is loaded
        with pytest.raises(SalfError, match="whose code would be run"):
            RunFolder(folder).config()
    with pytest.raises(SalfError):
        RunFolder(folder).claim(Config(rounds=3), resume=True)


def test_with_trust_it_is_run(folder, monkeypatch):
    naming(folder, "method")
    (folder / "hostile.py").unlink()
    with pytest.raises(SalfError, match="cannot import the method 'hostile:Name'"):
        replay(folder, trust=True)


def test_what_is_only_read_is_checked_for_types_and_names():
    with pytest.raises(SalfError, match="users must be at least 1"):
        read_toml("users = 0", look=True)
    with pytest.raises(SalfError, match="unknown setting"):
        read_toml("userz = 1", look=True)
