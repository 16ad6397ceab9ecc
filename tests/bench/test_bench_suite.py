"""The suite as data."""

import hashlib
import json
import tomllib
from importlib.resources import files

import pytest
import torch

from salf.bench.suite import REFERENCE, Entrant, load
from salf.common.errors import SalfError
from salf.core.layers import Layers
from salf.models import build
from salf.worlds.fleet.cost import Cost

SUITE = load("full")
SHAPES = {"digits": (1, 8, 8), "cifar10": (3, 32, 32)}


def test_a_change_of_the_suite_needs_a_new_version():
    table = tomllib.loads((files("salf.bench") / "suites.toml").read_text("utf-8"))
    version = table.pop("version")
    del table["methods"]  # more rows change no result
    for scenario in table["scenarios"].values():
        del scenario["about"]  # nor does its description
    digest = hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()[:12]
    known = {2: "05fb92061636"}
    assert known.get(version) == digest, "raise `version`, and pin the new digest here"


def test_every_cell_of_every_suite_makes_configs_for_every_method():
    for name in ("digits", "full"):
        suite = load(name)
        for cell in suite.cells:
            for entrant in (*suite.entrants, REFERENCE):
                assert cell.config(entrant, 0, 0.1).data == cell.data


def test_results_are_not_tuned_on_their_own_seeds():
    assert not set(SUITE.seeds) & set(SUITE.tuning_seeds)
    assert list(SUITE.seeds) == [0, 1, 2, 3, 4]


def test_budgets_are_whole_deadlines_and_a_batch_takes_the_median_device_as_said():
    for cell in (*SUITE.cells, *load("digits").cells):
        config = cell.config(SUITE.entrants[0], 0, 0.1)
        if not cell.scenario.clocked:
            assert (config.rounds, config.seconds) == (cell.scenario.rounds, None)
            continue
        assert config.seconds == cell.scenario.rounds * config.deadline
        if "speed=" in config.fleet:
            speed = float(config.fleet.partition("speed=")[2])
            assert cell.work / speed == pytest.approx(cell.scenario.batch_seconds, rel=1e-5)


@pytest.mark.parametrize("cell", [load("digits").cells[0], *SUITE.cells[:1], SUITE.cells[-1]])
def test_the_work_of_a_batch_is_that_of_the_model(cell):
    shape = SHAPES.get(cell.data, (1, 28, 28))
    example, model = torch.zeros(16, *shape), build(cell.model, shape, 10, 0)
    cost = Cost.of(model, Layers.of(model, None, example), example)
    assert 16 * (cost.forward.sum() + cost.backward.sum()) == cell.work


def test_the_reference_waits_without_a_clock_for_as_many_rounds():
    for cell in SUITE.cells:
        config = cell.config(REFERENCE, 0, 0.1)
        assert (config.method, config.fleet, config.stragglers) == ("fedavg", "", 0.0)
        assert config.rounds == cell.scenario.rounds
        assert config.split == cell.config(SUITE.entrants[0], 0, 0.1).split


def test_without_a_clock_batches_are_equal():
    cell = next(cell for cell in SUITE.cells if not cell.scenario.clocked)
    plain, equal_time = (SUITE.entrant(name) for name in ("salf", "salf+equal-time"))
    assert cell.config(plain, 0, 0.1) == cell.config(equal_time, 0, 0.1)


@pytest.mark.parametrize(
    ("entrant", "name"),
    [
        (Entrant("salf"), "salf"),
        (Entrant("salf", {}, {"batches": "equal-time"}), "salf+equal-time"),
        (Entrant("asyncfl", {"delay": 3}, {"local_steps": 5}), "asyncfl(delay=3)+local-steps=5"),
        (Entrant("asyncfl", {"delay": 3}, given_name="late"), "late"),
    ],
)
def test_names_say_what_differs(entrant, name):
    assert entrant.name == name


def test_a_row_of_the_suite_brings_its_settings_and_others_are_read():
    assert SUITE.entrant("salf+equal-time") in SUITE.entrants
    assert SUITE.entrant("drop+equal-time").settings == {"batches": "equal-time"}
    assert SUITE.entrant("mypkg:Mine").method == "mypkg:Mine"


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (lambda: SUITE.entrant("salf+fast"), "write a method as in"),
        (lambda: Entrant("salf", {}, {"seed": 3}), "unknown setting of a method 'seed'"),
        (lambda: SUITE.only(["phone"]), r"unknown scenario 'phone'.*Did you mean 'phones'"),
        (lambda: load("cor"), "unknown suite 'cor'"),
        (lambda: load("none.toml"), "cannot read the suite"),
    ],
)
def test_mistakes_are_sentences(wrong, told):
    with pytest.raises(SalfError, match=told):
        wrong()
