"""Publishing results of the benchmark, in a clone with results of its own."""

import pytest

from salf.bench import results
from salf.bench.results import BenchRow, BenchRun, CellResult
from salf.bench.suite import REFERENCE, Entrant, load
from tools import publish_bench

SUITE = load("digits")
FIRST, SECOND = (cell.key for cell in SUITE.cells[:2])


def row(entrant, key, accuracy, version=SUITE.version):
    return BenchRow(entrant, version, {key: CellResult(0.1, {"0.1": 0.9}, [BenchRun(0, accuracy)])})


@pytest.fixture
def clone(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "published_folder", lambda: tmp_path / "results")
    monkeypatch.setattr(publish_bench, "DOCS", tmp_path / "bench.md")
    text = "before\n<!-- salf bench digits -->\nold\n<!-- end digits -->\nafter\n"
    (tmp_path / "bench.md").write_text(text)
    results.write(tmp_path / "results", row(Entrant("drop"), FIRST, 0.5))
    return tmp_path


def test_rows_are_published_and_the_tables_are_in_the_docs(clone):
    for entrant in (Entrant("salf"), REFERENCE, Entrant("fedavg")):
        results.write(clone / "out" / "rows", row(entrant, FIRST, 0.6))
    publish_bench.publish(SUITE, clone / "out", ["salf", "reference", "never run"])
    assert set(results.read_all(clone / "results")) == {"drop", "reference", "salf"}
    text = (clone / "bench.md").read_text()
    assert text.startswith("before\n<!-- salf bench digits -->\n\nRank by accuracy")
    assert text.endswith("<!-- end digits -->\nafter\n")
    assert "| SALF | 1.0 | " in text
    assert "| Drop | 2.0 | " in text
    assert "- SALF was not run in " in text
    assert "old" not in text
    assert "reference" not in text


@pytest.mark.parametrize("version", [SUITE.version, SUITE.version + 1])
def test_other_cells_of_the_same_version_stay(clone, version):
    results.write(clone / "out" / "rows", row(Entrant("drop"), SECOND, 0.6, version))
    publish_bench.publish(SUITE, clone / "out", ["drop"])
    kept = {FIRST, SECOND} if version == SUITE.version else {SECOND}
    assert set(results.read_all(clone / "results")["drop"].cells) == kept
