"""`salf bench`, as people call it."""

import json
from pathlib import Path

import pytest

from command import salf
from salf.bench import results
from salf.bench.results import BenchRow, BenchRun, CellResult
from salf.bench.suite import Entrant, load

TINY = str(Path(__file__).parents[1] / "bench" / "tiny.toml")
OWN = """
from dataclasses import dataclass
from salf.methods.drop import Drop

@dataclass(frozen=True)
class Mine(Drop):
    rate: float = 1.0
    name = "mine"
"""
pytestmark = pytest.mark.usefixtures("no_processes")


def test_methods_by_name_and_of_ones_own_get_a_row_a_page_and_a_csv(tmp_path):
    (tmp_path / "bench_mine.py").write_text(OWN)
    arguments = ("--suite", TINY, "--scenario", "phones", "--out", "b")
    done = salf("bench", *arguments, "--method", "salf,bench_mine:Mine", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Mean rank" in done.stdout
    assert "Mine" in done.stdout
    assert "wrote b/report.html" in done.stdout
    row = json.loads((tmp_path / "b/rows/bench_mine_Mine.json").read_text())
    assert row["method"] == "bench_mine:Mine"
    assert len(row["cells"]["digits/phones"]["runs"]) == 2
    page = (tmp_path / "b/report.html").read_text()
    for part in ("Ranks", "SALF", "Mine", "digits", "version 7", "slowest tenth"):
        assert part in page
    assert len((tmp_path / "b/results.csv").read_text().splitlines()) == 1 + 2 * 2


def test_options_and_settings_make_rows_of_their_own(tmp_path):
    (tmp_path / "bench_mine.py").write_text(OWN)
    arguments = ("--suite", TINY, "--scenario", "phones", "--out", "b", "--batches", "equal-time")
    method = ("--method", "bench_mine:Mine", "--option", "rate=0.5")
    done = salf("bench", *arguments, *method, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (row,) = [
        each for each in results.read_all(tmp_path / "b/rows").values() if each.name != "reference"
    ]
    assert row.name == "bench_mine:Mine(rate=0.5)+equal-time"
    assert "Mine(rate=0.5), equal-time" in done.stdout


@pytest.fixture
def published(tmp_path, monkeypatch):
    """A clone with results of its own."""
    folder = tmp_path / "clone" / "src" / "salf" / "bench" / "results"
    monkeypatch.setattr(results, "published_folder", lambda: folder)
    runs = [BenchRun(seed, 0.9) for seed in range(5)]
    cells = {"digits/phones": CellResult(0.1, {"0.1": 0.9}, runs, [0.9] * 40)}
    version = load("digits").version
    results.write(folder, BenchRow(Entrant("drop"), version, cells))
    results.write(folder, BenchRow(Entrant("salf"), version - 1, cells))
    return folder


def test_without_a_method_the_published_results_are_shown(tmp_path, published):
    done = salf("bench", "--suite", "digits", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "0.900 ±0.000" in done.stdout
    assert "Drop was not run in Mixture (digits (8x8 images))" in done.stdout
    assert "salf is left out: its results are from version" in done.stderr
    assert "SALF  " not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--suite", "cor"), "unknown suite 'cor'"),
        (("--scenario", "phone"), "unknown scenario 'phone'"),
        (("--method", "slaf"), "unknown method 'slaf'"),
        (("--option", "a=1"), "choose one with --method"),
        (("--method", "all", "--option", "a=1"), "choose one with --method"),
    ],
)
def test_mistakes_are_sentences(tmp_path, arguments, said):
    done = salf("bench", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
