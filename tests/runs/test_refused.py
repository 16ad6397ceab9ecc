"""What is combined wrongly is refused in a sentence, and what is right is taken however given."""

import pytest
import torch
from torch import nn

import salf
from salf.cli.options import with_settings
from salf.methods import named
from salf.runs.live_config import LiveConfig, live
from salf.runs.presets import PRESETS, read_toml

POINTS = torch.randn(60, 4), torch.randint(0, 3, (60,))
QUICK = {"users": 4, "rounds": 2, "lr": 0.1, "batch_size": 4}


def linear():
    return nn.Linear(4, 3)


def test_a_method_and_what_it_needs_are_set_together():
    settings = {"method": "feddyn", "momentum": 0.0}
    options = {"options": {"alpha": "0.1"}}
    made = with_settings(PRESETS["digits-mlp"], settings | options, salf.Config.changed)
    assert (made.method, made.options) == ("feddyn", {"alpha": 0.1})
    made = live(PRESETS["digits-mlp"], deadline="50ms", **settings)
    assert (made.method, made.momentum) == ("feddyn", 0)
    of_another = salf.Config(method="asyncfl", options={"delay": 3})
    assert with_settings(of_another, {"method": "salf"}, salf.Config.changed).options == {}
    assert live(of_another, method="salf", deadline=1).options == {}


def test_a_file_may_write_settings_as_python_does_and_a_deadline_without_a_fleet_is_real():
    assert read_toml("local_steps = 2").local_steps == 2
    assert isinstance(read_toml("deadline = '40ms'"), LiveConfig)
    assert isinstance(read_toml("deadline = '40ms'\nfleet = 'phones'"), salf.Config)
    with pytest.raises(salf.SalfError, match="unknown setting 'local-stepz'") as error:
        read_toml("local_stepz = 2")
    assert "given" not in str(error.value)


def test_fleets_are_compared_with_a_model_of_ones_own():
    found = salf.compare(
        linear(), POINTS, POINTS, methods=["salf"], fleet=["phones", "pis"], deadline=0.3,
        seeds=1, **QUICK,
    )  # fmt: skip
    assert {dict(case.more)["fleet"] for case in found.results} == {"phones", "pis"}


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"seed": 3}, r"pass seeds="),
        ({"splits": []}, "nothing to compare"),
        ({"split": []}, "nothing to compare"),
        ({"loss": [nn.functional.mse_loss]}, "call compare once for each"),
        ({"options": [{}]}, "call compare once for each"),
    ],
)
def test_what_a_comparison_does_not_sweep_is_refused(settings, reason):
    with pytest.raises(salf.SalfError, match=reason):
        salf.compare(linear(), POINTS, POINTS, **QUICK, **settings)


def test_models_and_data_sets_are_compared_by_name(no_processes):
    settings = {**QUICK, "methods": ["salf"], "seeds": 1, "workers": 1}
    found = salf.compare("mlp", ["digits", "synthetic:5"], **settings)
    assert {dict(case.more)["data"] for case in found.results} == {"digits", "synthetic:5"}
    assert "What is said of data here is of the first value" in str(found)
    with pytest.raises(salf.SalfError, match="by their names"):
        salf.compare([linear(), linear()], POINTS, POINTS, **settings)


@pytest.mark.parametrize("name", ["scaffold", "feddyn"])
def test_a_sum_over_all_users_is_not_robust(name):
    with pytest.raises(salf.SalfError, match="robust='none'"):
        salf.Config(method=name, momentum=0, robust="mixed")


def test_settings_without_an_effect_are_refused():
    with pytest.raises(salf.SalfError, match="needs an attack"):
        salf.train(linear(), POINTS, attackers=3, **QUICK)
    with pytest.raises(salf.SalfError, match="needs an attack"):
        salf.Config(attackers=3)
    with pytest.raises(salf.SalfError, match="resume=True needs out="):
        salf.train(linear(), POINTS, resume=True, **QUICK)


def test_a_class_defined_again_in_a_notebook_takes_its_place():
    def defined(module):
        return type("Anew", (type(salf.method("drop")),), {"__module__": module})()

    assert named(defined("here")) == named(defined("here")) == "Anew"
    with pytest.raises(salf.SalfError, match="two methods called Anew"):
        named(defined("elsewhere"))


def test_a_history_without_rounds_is_an_empty_frame():
    pytest.importorskip("pandas")
    assert salf.History((), {}).to_pandas().empty


def test_robust_auto_on_flower_is_refused_before_anything_starts():
    from salf.live.launch import Joining, trusting

    config = LiveConfig(method="scaffold", deadline=5.0, backend="flower")
    with pytest.raises(salf.SalfError, match="robust='none'"):
        trusting(config, Joining(), print)
