"""What somebody asks for is done, or refused in one sentence: never another thing in silence."""

import os
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import salf
import salf.live
from salf.cli.live import live as live_command
from salf.methods.drop import Drop
from salf.methods.salf import SALF
from salf.runs import training as training_module
from salf.runs.folder import RunFolder
from salf.runs.live_config import LiveConfig
from salf.runs.presets import load_config, simulated
from salf.worlds.base import World

DATA = torch.randn(60, 4), torch.randint(0, 3, (60,))
SMALL = {"users": 3, "rounds": 2, "batch_size": 4, "threads": 1}


def net():
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"method": Drop}, r"method= takes a name or an object .*, not the class Drop"),
        ({"method": None}, "method= takes a name or an object .*, not None"),
        ({"depth": None}, "depth= takes a name or an object .*, not None"),
        ({"deadline": "50ms"}, "deadline needs a fleet"),
        ({"backend": "flower"}, "unknown setting 'backend'"),
    ],
)
def test_train_takes_what_it_can_use_and_refuses_the_rest(arguments, said):
    with pytest.raises(salf.SalfError, match=said):
        salf.train(net(), DATA, **SMALL, **arguments)


def test_the_config_of_a_live_run_is_not_simulated_with_made_up_depths(tmp_path):
    config = salf.live.config(salf.PRESETS["digits-mlp"], deadline="50ms")
    (tmp_path / "live.toml").write_text(config.to_toml())
    with pytest.raises(salf.SalfError, match="of a live run: use `salf live` or `salf replay`"):
        simulated(str(tmp_path / "live.toml"))


@pytest.mark.parametrize(("source", "users"), [("own.toml", 20), ("digits-mlp", 8)])
def test_live_takes_the_users_of_a_file_and_few_of_a_preset(tmp_path, monkeypatch, source, users):
    def found(config, *_, **more):
        assert config.users == users
        raise salf.SalfError("that is all")

    monkeypatch.setattr("salf.live.launch.run", found)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.toml").write_text('data = "digits"\nusers = 20\n')
    with pytest.raises(salf.SalfError, match="that is all"):
        live_command.__wrapped__(settings={"deadline": "50ms"}, source=source)


def test_the_history_of_a_finished_live_run_has_every_user_s_depth(tmp_path):
    row = salf.core.rows.Row(1, 0.5, (1, 1), depths={"user-1": 1}, unreached=(0.0, 0.0))
    folder = RunFolder(tmp_path)
    salf.core.rows.append(folder.rounds, row)
    folder.write_metrics([row])
    summary = {"test": {"accuracy": 0.5}, "engine": "ray", "why": "", "stopped": False, "loss": ""}
    assert folder.history(summary).rows[0].depths == {"user-1": 1}


@pytest.mark.skipif(os.name == "nt", reason="sends a signal to itself")
def test_ctrl_c_during_the_last_evaluation_is_not_lost(tmp_path, monkeypatch):
    before = training_module.Evaluation.tested

    def interrupted(self):
        signal.raise_signal(signal.SIGINT)
        return before(self)

    monkeypatch.setattr(training_module.Evaluation, "tested", interrupted)
    config = salf.Config(data="digits", **SMALL)
    with pytest.raises(KeyboardInterrupt):
        salf.run(config, tmp_path / "r")
    assert RunFolder(tmp_path / "r").finished(config) is not None


def test_a_run_that_was_stopped_can_be_given_more_rounds(tmp_path):
    def stop(row, model):
        raise salf.StopTraining

    config = salf.Config(data="digits", **(SMALL | {"rounds": 4}))
    assert len(salf.run(config, tmp_path / "r", on_round=stop).history.rows) == 1
    assert len(salf.run(config, tmp_path / "r", resume=True).history.rows) == 1  # it has ended
    more = config.changed(rounds=6)
    assert len(salf.run(more, tmp_path / "r", resume=True).history.rows) == 6
    assert not isinstance(load_config(str(tmp_path / "r" / "config.toml")), LiveConfig)


class Odd(World):
    """Two users and two layers, and one thing wrong."""

    users, layers = 3, 2

    def __init__(self, arrived, unreached=(0.0, 0.0)):
        self.arrived, self.chances = arrived, unreached

    def arrivals(self, t, draws, users, memory):
        return self.arrived, memory

    def unreached(self, t, users, memory):
        return self.chances


ONES = np.ones(3, np.int64)


@pytest.mark.parametrize(
    ("world", "said"),
    [
        (Odd(ONES), "Odd.arrivals must return salf.Arrivals, not a ndarray"),
        (
            Odd(replace(salf.Arrivals(ONES), depth=[1, 1, 1])),
            "must return depth as an array of shape",
        ),
        (Odd(salf.Arrivals(ONES), (0.0,)), "unreached must return 2 probabilities"),
    ],
)
def test_a_world_that_gives_something_else_is_refused_in_a_sentence(world, said):
    with pytest.raises(salf.SalfError, match=said):
        salf.train(net(), DATA, depth=world, **SMALL)


def test_a_model_that_was_not_kept_is_said():
    class Old(Odd):
        def arrivals(self, t, draws, users, memory):
            age = np.array([0, 0, t - 1])
            return salf.Arrivals(ONES, age=age), memory

    with pytest.raises(salf.SalfError, match="the model of round 1, which was not kept"):
        salf.train(net(), DATA, depth=Old(None), method=SALF(), **SMALL)
