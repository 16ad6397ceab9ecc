"""The Python samples of the README and the docs run as printed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def samples(page):
    """(page and line, code) of every Python block."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [
        pytest.param(block[1], id=f"{page}:{text[: block.start()].count(chr(10)) + 1}")
        for block in re.finditer(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    ]


PAGES = ("README.md", "docs/howto.md", "docs/fleets.md", "docs/plan.md")
SIMULATED = [sample for page in PAGES for sample in samples(page)]
LIVE = samples("docs/live.md")


def test_there_are_samples():
    assert len(SIMULATED) >= 7
    assert len(LIVE) >= 2


@pytest.mark.parametrize("code", SIMULATED)
def test_a_sample_runs_as_printed(code, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "sample", "exec"), {"__name__": "sample"})


@pytest.mark.slow
@pytest.mark.parametrize("code", LIVE)
def test_a_live_sample_runs_as_printed(code, tmp_path):
    (tmp_path / "sample.py").write_text(code)
    done = subprocess.run(
        [sys.executable, "sample.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout
