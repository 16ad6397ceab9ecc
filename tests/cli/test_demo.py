"""`salf demo`: on MNIST, and on digits, labelled as such, where MNIST is out of reach."""

from dataclasses import replace

import pytest
import torch

import salf as salf_package
from command import salf
from salf.cli import demo
from salf.common.registry import duration
from salf.data import loading
from salf.data.named import RECIPES
from salf.models import build


@pytest.fixture
def short(monkeypatch):
    methods = ["fedavg", "fedavg+equal-time", "salf+equal-time"]
    monkeypatch.setitem(demo.BY_CLOCK, "method", methods)
    for clock in demo.CLOCKS.values():
        monkeypatch.setitem(clock, "seconds", clock["seconds"] / 100)
    for name, few in {"method": ["salf"], "split": ["iid"], "average": ["reached"]}.items():
        monkeypatch.setitem(demo.BY_ROUND, name, few)
    monkeypatch.setattr(demo, "SEEDS", 1)
    for name in ("mnist-mlp", "digits-mlp"):
        monkeypatch.setitem(demo.PRESETS, name, demo.PRESETS[name].changed(rounds=3))


def test_where_mnist_is_out_of_reach_it_says_so_in_one_line_and_shows_digits(
    tmp_path, monkeypatch, short, no_processes
):
    nowhere = replace(RECIPES["mnist"], sources=())
    monkeypatch.setitem(loading.RECIPES, "mnist", nowhere)
    monkeypatch.setenv("SALF_CACHE", str(tmp_path / "cache"))
    done = salf("demo", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("MNIST is not available")
    assert done.stderr.count("\n") == 1
    assert "on digits (8x8 images)" in done.stdout
    page = (tmp_path / "demo" / "report.html").read_text()
    assert "digits (8x8 images)" in page
    assert "MNIST" not in page
    assert "salf compare digits-mlp" in page  # how to make it again
    # The verdict first, then seconds, then rounds.
    seconds, rounds = page.index("over simulated seconds"), page.index("mixture of stragglers")
    assert page.index("has the highest test accuracy") < seconds < rounds
    assert done.stdout.index("SALF, equal-time") < done.stdout.index("by ratio of stragglers")
    for name in ("accuracy.png", "accuracy.svg", "accuracy-per-round.png"):
        assert (tmp_path / "demo" / name).exists()

    refused = salf("compare", "--data", "mnist", "--methods", "salf", cwd=tmp_path)
    assert refused.returncode == 2  # who asks for MNIST never gets other data
    assert "MNIST was not found and could not be downloaded" in refused.stderr


@pytest.mark.parametrize("preset", ["mnist-mlp", "digits-mlp"])
def test_about_half_of_the_users_finish_by_the_deadline_of_the_demo(preset):
    width = 28 if preset == "mnist-mlp" else 8
    model = build("mlp", (1, width, width), 10, 0)
    finish = [
        salf_package.Fleet(demo.FLEET, users=30, seed=seed)
        .preview(
            model,
            duration(demo.CLOCKS[preset]["deadline"]),
            example=torch.zeros(2, 1, width, width),
        )
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
