"""The command from end to end at a tiny size, with an item of each kind."""

import csv
import os
import shutil
from dataclasses import replace

import pytest

import pools
from reproduction.items import ITEMS
from reproduction.reproduce import PAGE, STATE, TEXT, reproduce
from reproduction.sizes import QUICK
from reproduction.verdicts import Verdict
from salf.common.errors import SalfError
from salf.runs import pool
from salf.runs.config import Config

# On one worker, which makes everything once.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("reproduce")]

MADE = ["fig-mlp", "fig-vgg", "lemma1"]
PNG = b"\x89PNG\r\n"


@pytest.fixture(scope="module")
def tiny():
    """All items in seconds: a few rounds, a few users, two deadlines, a CNN in VGG's place."""
    base = Config(
        data="synthetic", users=10, rounds=2, batch_size=2, eval_every=1, threads=1, lr=0.05
    )
    configs = {name: replace(base, model=name) for name in ("mlp", "cnn")}
    configs["vgg11"] = replace(base, model="cnn", users=3)
    return replace(
        QUICK,
        name="tiny",
        nets=("vgg11",),
        nets_by_share=("vgg11",),
        deadlines=(1, 9),
        draws=300,
        theorem_rounds=60,
        theorem_repeats=4,
        configs=configs,
    )


@pytest.fixture(scope="module")
def done(tiny, tmp_path_factory):
    out = tmp_path_factory.mktemp("out")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool, "ProcessPoolExecutor", pools.Here)
        return out, reproduce(MADE, tiny, out, seeds=2, workers=1)


def test_every_item_leaves_a_csv_a_png_and_an_svg(done):
    out, made = done
    assert sorted(made.made) == sorted(MADE)
    assert made.skipped == {}
    for name in MADE:
        with (out / f"{name}.csv").open(newline="") as stream:
            rows = list(csv.DictReader(stream))
        assert rows, name
        assert all(None not in row and None not in row.values() for row in rows), name
        assert (out / "figures" / f"{name}.png").read_bytes().startswith(PNG)
        assert (out / "figures" / f"{name}.svg").read_text().startswith("<svg")


def test_the_page_and_the_text_have_every_item_and_every_claim(done):
    out, made = done
    page, text = (out / PAGE).read_text(), (out / TEXT).read_text()
    for name, item in made.made.items():
        assert f"## {item.title} ({name})" in text
        assert f"(figures/{name}.svg)" in text
        for finding in item.outcome.findings:
            assert f"**{finding.verdict.value}**: {finding.claim}" in text
            assert ("Not a claim of the paper" in text) or not finding.ours
            assert finding.reason in text
    assert page.count('<div class="statement ') == text.count("\n- **")
    assert page.count('<div class="charts">') == len(MADE)
    assert "python -m reproduction fig-mlp" in text
    assert str(out) not in page + text


def test_the_same_call_again_computes_nothing_and_gives_the_same_page(done, tiny, monkeypatch):
    out, _ = done
    before = (out / PAGE).read_text(), (out / TEXT).read_text()

    def never(*arguments, **more):
        raise AssertionError("there is nothing left to run")

    monkeypatch.setattr("reproduction.reproduce.run_all", never)
    reproduce(MADE, tiny, out, seeds=2)
    assert ((out / PAGE).read_text(), (out / TEXT).read_text()) == before


@pytest.fixture
def copied(done, tmp_path):
    """A folder in which everything was made, to do something to."""

    def copy(source, target):
        # Models are large, and never changed in place.
        (os.link if source.endswith(".safetensors") else shutil.copy2)(source, target)

    shutil.copytree(done[0], tmp_path / "out", copy_function=copy)
    return tmp_path / "out"


def sections(out):
    return [name for name in ITEMS if f" ({name})\n" in (out / TEXT).read_text()]


def test_an_item_made_at_another_size_keeps_the_others_on_the_page(copied, tiny, no_processes):
    larger = replace(tiny, name="larger", draws=400)
    seen, told = [], []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("reproduction.reproduce.SIZES", {"tiny": tiny})
        reproduce(
            ["lemma1"],
            larger,
            copied,
            workers=1,
            on_item=lambda name, _: seen.append(name),
            report=told.append,
        )
    assert seen == ["lemma1"]
    assert sections(copied) == MADE
    assert told == ["lemma1 was made at size tiny; now at size larger."]
    assert "Size larger." in (copied / TEXT).read_text()


def test_an_item_whose_runs_are_gone_is_left_out_and_not_called_diverged(copied, tiny):
    shutil.rmtree(next((copied / "runs").glob("mlp-salf-*")))
    told = []
    made = reproduce(["lemma1"], tiny, copied, workers=1, report=told.append)
    assert "fig-mlp" not in made.made
    assert "fig-mlp" not in sections(copied)
    assert "diverged" not in (copied / TEXT).read_text()
    assert any("fig-mlp is no longer on the page" in line for line in told)


def test_a_state_that_cannot_be_read_is_a_sentence(copied, tiny):
    (copied / STATE).write_text("rubbish")
    with pytest.raises(SalfError, match="cannot be read"):
        reproduce(["lemma1"], tiny, copied)
    (copied / STATE).write_text('{"lemma1": {"preset": 3}}')
    with pytest.raises(SalfError, match="cannot be read"):
        reproduce(["lemma1"], tiny, copied)


def test_runs_that_diverge_are_said_and_not_tried_again(tiny, tmp_path, monkeypatch, no_processes):
    wild = {name: replace(config, lr=1e29) for name, config in tiny.configs.items()}
    diverging = replace(tiny, name="wild", configs=wild, seeds=1)
    made = reproduce(["fig-mlp"], diverging, tmp_path, workers=1)
    assert len(made.diverged) >= 5
    assert all("diverged" in reason for reason in made.diverged.values())
    verdicts = {finding.verdict for finding in made.made["fig-mlp"].outcome.findings}
    assert Verdict.HOLDS not in verdicts
    told = (tmp_path / TEXT).read_text().split("## Runs that diverged")[1].split("##")[0]
    # They stay on the page whatever is made next.
    assert reproduce(["lemma1"], diverging, tmp_path, workers=1).diverged == {}
    text = (tmp_path / TEXT).read_text()
    assert told in text
    monkeypatch.setattr("reproduction.reproduce.run_all", None)  # nothing is left to do
    again = reproduce(["fig-mlp"], diverging, tmp_path)
    assert again.diverged == made.diverged
    assert (tmp_path / TEXT).read_text() == text


def test_what_was_interrupted_goes_on_and_ends_the_same(copied, tiny, done, no_processes):
    """Some runs are there, some are gone and one is half done; a measurement is gone, too."""
    asked = ["fig-mlp", "lemma1"]
    there = sorted((copied / "runs").glob("mlp-*-0.9-*"))
    for gone in there[::3]:
        shutil.rmtree(gone)
    (there[1] / "summary.json").unlink()  # written last
    next((copied / "measured").glob("lemma1-*")).unlink()
    for name in asked:
        (copied / f"{name}.csv").unlink()
    (copied / STATE).unlink()
    made = reproduce(asked, tiny, copied, seeds=2, workers=1)
    assert list(made.made) == asked
    for name in asked:
        assert (copied / f"{name}.csv").read_bytes() == (done[0] / f"{name}.csv").read_bytes()
        assert made.made[name].outcome.findings == done[1].made[name].outcome.findings


def test_items_without_their_data_are_left_out_and_the_rest_is_made(tiny, tmp_path, no_processes):
    gone = replace(tiny.configs["vgg11"], data=f"folder:{tmp_path / 'nowhere'}")
    lacking = replace(tiny, configs={**tiny.configs, "vgg11": gone})
    out = tmp_path / "out"
    made = reproduce(["fig-vgg", "lemma1"], lacking, out, seeds=1, workers=1)
    assert list(made.made) == ["lemma1"]
    assert "nowhere" in made.skipped["fig-vgg"]
    assert "not run" in (out / TEXT).read_text()
    with pytest.raises(SalfError, match="nowhere"):
        reproduce(["fig-vgg"], lacking, out)
