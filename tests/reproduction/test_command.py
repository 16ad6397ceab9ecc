"""The command of the reproduction as a person meets it."""

from dataclasses import replace
from functools import partial

import pytest

from command import salf
from reproduction.__main__ import main as reproduce
from reproduction.sizes import SIZES

command = partial(salf, main=reproduce)


@pytest.mark.slow
def test_the_command_prints_verdicts_and_leaves_a_page(tmp_path, monkeypatch, no_processes):
    monkeypatch.setitem(SIZES, "quick", replace(SIZES["quick"], draws=2_000))
    done = command("lemma1", "--out", "r", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "lemma1 is done (holds: 3)" in done.stderr
    assert "holds: “the cardinality of the set [U^l]" in done.stdout
    assert "wrote r/reproduction.html in " in done.stdout
    for name in ("lemma1.csv", "figures/lemma1.png", "figures/lemma1.svg", "reproduction.md"):
        assert (tmp_path / "r" / name).stat().st_size > 500


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["lema1"], "Did you mean 'lemma1'"),
        (["lemma9"], "unknown item 'lemma9'. Allowed: all"),  # three are near: no guess
        (["lemma1", "--size", "papers"], "Did you mean 'paper'"),
        (["lemma1", "--data-dir", "nowhere"], "the data folder nowhere does not exist"),
        (["lemma1", "--seeds", "0"], "seeds"),
    ],
)
def test_the_command_says_what_is_wrong_in_a_sentence(tmp_path, arguments, told):
    done = command(*arguments, "--out", "r", cwd=tmp_path)
    assert done.returncode == 2
    assert told in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "r").exists()
