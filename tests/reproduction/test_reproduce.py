"""The command from end to end, every item of it, at a tiny size."""

import csv
import json
import re
import struct
from dataclasses import replace

import numpy as np
import pytest

from salf.errors import SalfError
from salf.experiments.config import Config
from salf.reproduction.items import ITEMS
from salf.reproduction.presets import QUICK
from salf.reproduction.reproduce import PAGE, TEXT, reproduce
from salf.reproduction.verdicts import Verdict

# On one worker, which makes everything once.
pytestmark = pytest.mark.xdist_group("reproduce")

PNG, VERDICTS = b"\x89PNG\r\n", {verdict.value for verdict in Verdict}


def write_images(folder, pixels, count=120):
    """A data set of noisy images in ten classes, as idx files."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    for part in ("train", "t10k"):
        labels = np.arange(count, dtype=np.uint8) % 10
        images = rng.integers(0, 120, (count, pixels, pixels), dtype=np.uint8)
        images[np.arange(count), labels, :] = 250  # a bright row says which
        for name, array in (("images-idx3", images), ("labels-idx1", labels)):
            head = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
            (folder / f"{part}-{name}-ubyte").write_bytes(head + array.tobytes())
    return f"idx:{folder}"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """All items in seconds: a few rounds, a few users, two deadlines, one VGG."""
    place = tmp_path_factory.mktemp("data")
    small, large = write_images(place / "small", 28), write_images(place / "large", 32)
    base = Config(users=10, rounds=2, batch_size=2, eval_every=1, threads=1, lr=0.05)
    configs = {name: replace(base, data=small, model=name) for name in ("mlp", "cnn")}
    configs["vgg11"] = replace(base, data=large, model="vgg11", users=3)
    return replace(
        QUICK,
        name="tiny",
        seeds=2,
        nets=("vgg11",),
        deadlines=(1, 9),
        draws=300,
        theorem_rounds=60,
        theorem_repeats=4,
        configs=configs,
    )


@pytest.fixture(scope="module")
def done(tiny, tmp_path_factory):
    out = tmp_path_factory.mktemp("out")
    return out, reproduce(["all"], tiny, out, seeds=1, workers=1)


def test_every_item_leaves_a_csv_a_png_and_an_svg(done):
    out, made = done
    assert list(made.made) == list(ITEMS)
    assert made.skipped == {}
    for name in ITEMS:
        with (out / f"{name}.csv").open(newline="") as stream:
            rows = list(csv.DictReader(stream))
        assert rows, name
        assert all(None not in row and None not in row.values() for row in rows), name
        assert (out / "figures" / f"{name}.png").read_bytes().startswith(PNG)
        assert (out / "figures" / f"{name}.svg").read_text().startswith("<svg")


def test_every_claim_has_a_verdict_and_a_reason(done):
    for name, item in done[1].made.items():
        assert item.outcome.findings, name
        for finding in item.outcome.findings:
            assert finding.verdict.value in VERDICTS
            assert finding.claim, name
            assert finding.reason, finding.claim


def test_the_page_and_the_text_have_every_item_and_every_claim(done):
    out, made = done
    page, text = (out / PAGE).read_text(), (out / TEXT).read_text()
    for name, item in made.made.items():
        assert f"## {name}: {item.title}" in text
        assert f"(figures/{name}.svg)" in text
        for finding in item.outcome.findings:
            assert f"**{finding.verdict.value}**: {finding.claim}" in text
            assert finding.reason in text
    assert page.count('<div class="statement ') == text.count("\n- **")
    assert page.count('<div class="chart">') == len(ITEMS)
    assert "salf reproduce table1" in text
    assert str(out) not in page + text


def test_the_page_opens_with_no_network(done):
    page = (done[0] / PAGE).read_text()
    assert "default-src 'none'" in page
    without_scripts = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    assert not re.findall(r"(?:src|href)\s*=", without_scripts)
    assert "http" not in re.sub(r"http-equiv", "", without_scripts)
    specs = re.findall(r'<script type="application/json">(.*?)</script>', page, re.DOTALL)
    assert len(specs) == len(ITEMS)
    for spec in specs:
        assert "http" not in json.dumps(json.loads(spec))


def test_the_same_call_again_computes_nothing_and_gives_the_same_page(done, tiny, monkeypatch):
    out, _ = done
    before = (out / PAGE).read_text(), (out / TEXT).read_text()

    def never(*arguments, **more):
        raise AssertionError("there is nothing left to run")

    monkeypatch.setattr("salf.reproduction.reproduce.run_all", never)
    reproduce(["all"], tiny, out, seeds=1)
    assert ((out / PAGE).read_text(), (out / TEXT).read_text()) == before


def test_one_item_made_later_keeps_the_others_on_the_page(done, tiny, monkeypatch):
    out, _ = done
    seen = []
    reproduce(["lemma1"], tiny, out, seeds=1, on_item=lambda name, item: seen.append(name))
    assert seen == ["lemma1"]
    text = (out / TEXT).read_text()
    assert all(f"## {name}: " in text for name in ITEMS)


def test_an_unknown_item_is_a_sentence(tiny, tmp_path):
    with pytest.raises(SalfError, match=r"tabel1.*table1"):
        reproduce(["tabel1"], tiny, tmp_path)


def test_items_without_their_data_are_left_out_and_the_rest_is_made(tiny, tmp_path):
    gone = replace(tiny.configs["vgg11"], data=f"idx:{tmp_path / 'nowhere'}")
    lacking = replace(tiny, configs={**tiny.configs, "vgg11": gone})
    out = tmp_path / "out"
    made = reproduce(["fig-vgg", "lemma1"], lacking, out, workers=1)
    assert list(made.made) == ["lemma1"]
    assert "nowhere" in made.skipped["fig-vgg"]
    assert "not run" in (out / TEXT).read_text()
    with pytest.raises(SalfError, match="nowhere"):
        reproduce(["fig-vgg"], lacking, out)
