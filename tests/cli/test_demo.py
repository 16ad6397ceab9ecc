"""`salf demo`: on MNIST, and on digits, labelled as such, where MNIST is out of reach."""

import json
import re
from dataclasses import replace

import pytest
import torch

from command import salf
from salf.cli import demo
from salf.common.registry import duration
from salf.data import loading
from salf.data.named import RECIPES
from salf.models import build
from salf.worlds.fleet.devices import Fleet


@pytest.fixture
def short(monkeypatch):
    for data, parts in demo.PARTS.items():
        shorter = tuple(replace(part, seconds=part.seconds / 100) for part in parts)
        monkeypatch.setitem(demo.PARTS, data, shorter)
    monkeypatch.setattr(demo, "SEEDS", 1)


def test_where_mnist_is_out_of_reach_it_says_so_in_one_line_and_shows_digits(
    tmp_path, monkeypatch, short, no_processes
):
    nowhere = replace(RECIPES["mnist"], sources=())
    monkeypatch.setitem(loading.RECIPES, "mnist", nowhere)
    monkeypatch.setenv("SALF_CACHE", str(tmp_path / "cache"))
    done = salf("demo", "--json", cwd=tmp_path)
    headings = {part.heading for part in demo.PARTS["digits"]}
    assert {*json.loads(done.stdout)} == headings
    done = salf("demo", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("MNIST is not available")
    assert done.stderr.count("\n") == 1
    assert "on digits (8x8 images)" in done.stdout
    page = (tmp_path / "demo" / "report.html").read_text()
    assert "digits (8x8 images)" in page
    assert "MNIST" not in page
    assert "salf compare digits-mlp" in page  # how to make it again
    # The verdicts first, then each part.
    assert "".join(f"<h2>{part.heading}" for part in demo.PARTS["digits"]) in re.sub(
        r"(?s)</h2>.*?(?=<h2>Where|$)", "", page[page.index("<h2>Where") :]
    )
    assert page.index("has the highest test accuracy") < page.index("<h2>")
    assert re.search(r"Devices: phones.*952 phone models.*\d% is download and upload", page, re.S)
    for name in ("phones.png", "phones.svg", "microcontrollers.png"):
        assert (tmp_path / "demo" / f"accuracy-{name}").exists()

    refused = salf("compare", "--data", "mnist", "--methods", "salf", cwd=tmp_path)
    assert refused.returncode == 2  # who asks for MNIST never gets other data
    assert "MNIST was not found and could not be downloaded" in refused.stderr


PARTS = [part for parts in demo.PARTS.values() for part in parts]


@pytest.mark.parametrize("part", PARTS, ids=lambda part: f"{part.preset}, {part.heading}")
def test_about_half_of_the_users_finish_by_the_deadline_of_the_demo(part):
    width = 8 if part.preset == "digits-mlp" else 28
    model = build(demo.PRESETS[part.preset].model, (1, width, width), 10, 0)
    example = torch.zeros(2, 1, width, width)
    finish = [
        Fleet(part.fleet, 30, seed)
        .preview(model, duration(part.deadline), example=example)
        .reach[0]
        .mean()
        for seed in range(demo.SEEDS)
    ]
    assert 0.4 < sum(finish) / len(finish) < 0.6


def test_a_data_folder_that_does_not_exist_is_an_error_and_not_other_data(tmp_path):
    done = salf("demo", "--data-dir", "nowhere", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "salf: the data folder nowhere does not exist.\n"
    assert not (tmp_path / "demo").exists()
