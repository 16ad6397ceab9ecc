"""A method of one's own that keeps a state: run, stopped and resumed, compared, and refused."""

import shutil
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn

import interrupted
import ownstate
import salf
from command import salf as command
from salf.runs.run import run

CONFIG = salf.Config(
    data="synthetic", model="mlp", users=5, rounds=8, eval_every=4, lr=0.1, stragglers=0.6,
    method="ownstate:Leans", batch_size=4, local_steps=3, cohort=3, momentum=0.0,
)  # fmt: skip


class Killed(Exception):
    pass


def weights(folder):
    return (folder / "model.safetensors").read_bytes()


@pytest.mark.parametrize("method", ["ownstate:Leans", "scaffold", "feddyn"])
@pytest.mark.parametrize("settings", [{}, {"engine": "loop"}, {"local_steps": 1}], ids=str)
def test_a_run_that_was_stopped_ends_as_one_that_was_not(tmp_path, method, settings):
    config = CONFIG.changed(method=method, **settings)
    run(config, tmp_path / "whole")
    with pytest.raises(Killed):
        run(config, tmp_path / "parts", on_round=interrupted.at(5, Killed))
    run(config, tmp_path / "parts", resume=True)
    assert weights(tmp_path / "whole") == weights(tmp_path / "parts")


def test_one_object_used_twice_begins_twice():
    torch.manual_seed(0)
    inputs = torch.randn(200, 4)
    data, rule, found = (inputs, (inputs[:, 0] > 0).long()), ownstate.Leans(), []
    for _ in range(2):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        salf.train(model, data, method=rule, users=5, rounds=6, momentum=0.0)
        found.append(model[0].weight.detach().clone())
    assert torch.equal(*found)


@pytest.mark.slow
def test_it_is_compared_with_others_by_the_command(tmp_path):
    shutil.copy(ownstate.__file__, tmp_path / "copied.py")
    words = "compare digits-mlp --methods salf,copied:Leans --rounds 4 --users 4 --seeds 1 --out c"
    done = command(*words.split(), "--stragglers", "0.5", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Leans" in done.stdout


class OnItself(salf.Method):
    calls = 0

    def divisor(self, closing):
        type(self).calls += 1
        return np.maximum(closing.shares, 1)


class InADict(salf.Method):
    def divisor(self, closing):
        vars(self)["calls"] = vars(self).get("calls", 0) + 1
        return np.maximum(closing.shares, 1)


@dataclass(frozen=True)
class InAField(salf.Method):
    calls: int = 0

    def divisor(self, closing):
        self.calls += 1
        return np.maximum(closing.shares, 1)


class Late(salf.Method):
    """Only in rounds that the trial does not see."""

    seen: ClassVar = []

    def divisor(self, closing):
        if closing.users == 3:
            self.seen.append(closing.round)
        return np.maximum(closing.shares, 1)


@pytest.mark.parametrize("cls", [OnItself, InADict, InAField, Late])
def test_a_method_that_counts_in_itself_is_refused_with_the_right_way(cls):
    torch.manual_seed(0)
    inputs = torch.randn(60, 4)
    model = nn.Sequential(nn.Linear(4, 2))
    with pytest.raises(salf.SalfError, match=r"its own '(calls|seen)'.*server_state.*learned"):
        salf.train(model, (inputs, (inputs[:, 0] > 0).long()), method=cls(), users=3, rounds=5)
