"""What all items made of training runs have in common, from runs made up by hand."""

from dataclasses import replace

import pytest
from made_up_runs import found

from reproduction.item import label
from reproduction.items import ITEMS
from reproduction.sizes import QUICK
from reproduction.verdicts import Verdict
from salf.common.pictures import svg

NAMES = ("table1", "fig-mlp", "fig-cnn", "fig-latency", "fig-vgg", "fig-vgg90")
SMALL = replace(QUICK, deadlines=(1, 9))


def rising(config):
    end = 0.9 - config.stragglers / 10 - 0.001 * config.seed
    return [end - 0.02, end - 0.01, end]


def outcome(name, accuracies=rising, size=SMALL):
    item = ITEMS[name]
    return item.outcome(size, found(item.tasks(size), accuracies))


@pytest.mark.parametrize("name", NAMES)
def test_every_run_is_in_the_rows_once_and_the_texts_are_filled_in(name):
    made = outcome(name)
    rows = [tuple(value for key, value in row.items() if key != "accuracy") for row in made.rows]
    assert len(set(rows)) == len(rows)
    assert len({tuple(row) for row in made.rows}) == 1
    told = " ".join(f.claim + f.reason for f in made.findings) + made.intro + made.caption
    assert not set("{}") & set(told.replace("_{t+1}", ""))
    assert "</svg>" in svg(made.figure)


@pytest.mark.parametrize("name", NAMES)
def test_training_that_diverged_makes_no_claim_hold(name):
    made = outcome(name, lambda config: None)
    assert Verdict.HOLDS not in {finding.verdict for finding in made.findings}
    assert all("diverged" in f.reason for f in made.findings if f.verdict is Verdict.FAILS)
    assert svg(made.figure)


@pytest.mark.parametrize("name", ["fig-mlp", "fig-cnn"])
def test_one_seed_that_diverged_leaves_its_method_without_a_result(name):
    gone = label(next(c for c in ITEMS[name].tasks(SMALL) if (c.method, c.seed) == ("drop", 1)))
    made = outcome(name, lambda config: None if label(config) == gone else rising(config))
    assert any("Drop: training diverged" in finding.reason for finding in made.findings)
    assert len(made.rows) == len(outcome(name).rows) - 3  # what there is, is in the table


@pytest.mark.parametrize("name", NAMES[1:])
def test_one_seed_decides_nothing_between_methods_and_is_said(name):
    one = replace(SMALL, seeds=1, vgg_seeds=1)
    made = outcome(name, size=one)
    assert any("One seed" in finding.reason for finding in made.findings)
    assert "opacity" not in svg(made.figure)  # no bands
