"""Robust aggregation: the rules by hand, layers with too few users, attacks that are survived."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import interrupted
from salf.common.errors import SalfError, TrainingDiverged
from salf.core.aggregate import LayerwiseAggregate
from salf.core.arrivals import Arrivals
from salf.core.layers import Layer, Layers
from salf.runs.config import Config
from salf.runs.presets import PRESETS
from salf.runs.run import Stopped, run
from salf.stages.attacks import Attack, Attackers
from salf.stages.robust import Robust, RobustAggregate, Votes
from salf.worlds.depth import PerUser

LAYERS = Layers([Layer("a", ("a.w",), ("a.mean", "a.count")), Layer("b", ("b.w",))])
LIKE = {
    "a.w": torch.zeros(3, dtype=torch.float64, requires_grad=True),
    "a.mean": torch.zeros(2, dtype=torch.float64),
    "a.count": torch.zeros((), dtype=torch.int64),
    "b.w": torch.zeros(2, dtype=torch.float64, requires_grad=True),
}


def of(name, *values):
    return {name: torch.tensor(values, dtype=torch.float64)}


def step_of(votes, updates, weights=None, divisor=None):
    """The step of these updates, by user, each of the same weight in all layers."""
    found = RobustAggregate(votes, LAYERS, LIKE)
    weights = [1.0] * len(updates) if weights is None else weights
    for (user, update), weight in zip(updates.items(), weights, strict=True):
        found.add(update, [weight] * 2, user=user)
    return found.total([sum(weights)] * 2, divisor).values


def combined(rule, updates, weights=None, attackers=1, divisor=None):
    """The step of the first round in which there are votes."""
    weights = [1 / len(updates)] * len(updates) if weights is None else weights
    return step_of(Votes(Robust(rule, attackers)), dict(enumerate(updates)), weights, divisor)


def values(rule, *numbers, **more):
    """The rule on one coordinate."""
    return combined(rule, [of("b.w", n, 0.0) for n in numbers], **more).get("b.w", [None])[0]


def test_the_median_is_that_of_every_coordinate():
    assert values("median", 1.0, 9.0, 2.0) == 2
    assert values("median", 1.0, 9.0, 2.0, 4.0) == 3  # between the two in the middle
    updates = [of("b.w", 1.0, -5.0), of("b.w", 2.0, 7.0), of("b.w", 3.0, 0.0)]
    assert combined("median", updates)["b.w"].tolist() == [2.0, 0.0]


def test_the_trimmed_mean_is_without_the_values_furthest_from_the_median():
    # Not without the largest and the smallest: only one of four users is bad, so one is left out.
    assert values("trimmed", 1.0, 2.0, 3.0, 100.0) == 2
    assert values("trimmed", 1.0, 2.0, 6.0) == 1.5
    assert values("trimmed", -9.0, 1.0, 2.0, 3.0, 80.0, attackers=2) == 2


def test_no_term_counts_for_more_than_the_one_of_median_norm():
    updates = [of("b.w", 3.0, 4.0), of("b.w", 0.0, 1.0), of("b.w", 60.0, 80.0)]  # 5, 1, 100
    found = combined("clip", updates)["b.w"]
    assert found.tolist() == pytest.approx([(3 + 0 + 3) / 3, (4 + 1 + 4) / 3])


@pytest.mark.parametrize("rule", ["trimmed", "median", "clip"])
def test_equal_updates_make_the_step_of_the_method_whatever_their_weights(rule):
    weights, divisor = [0.5, 2.0, 1.0], [4.0, 0.7]
    same = [{**of("a.w", 1.0, 2.0, 3.0), **of("b.w", 4.0, 5.0)}] * 3
    plain = LayerwiseAggregate(LAYERS, LIKE)
    for update, weight in zip(same, weights, strict=True):
        plain.add(update, [weight] * 2)
    wanted = plain.total([3.5] * 2, divisor).values
    # Of a heavy user only as much as of the median one.
    wanted = {name: value * (0.5 + 1 + 1) / 3.5 for name, value in wanted.items()}
    found = combined(rule, same, weights, divisor=divisor)
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value)


def test_weights_that_differ_weigh_what_is_left():
    found = values("trimmed", 1.0, 2.0, 90.0, weights=[0.5, 1.0, 1.0])
    assert float(found) == pytest.approx(2.5 * (0.5 + 2) / 1.5)
    # 0 and 9 are left out; of 1, 2 and 3 the last has more than half of the weight.
    found = values("median", 0.0, 1.0, 2.0, 3.0, 9.0, weights=[1, 0.4, 0.4, 1, 1])
    assert float(found) == pytest.approx(3.8 * 3)


@given(
    honest=st.lists(st.floats(-10, 10), min_size=2, max_size=6),
    bad=st.floats(-1e6, 1e6),
    weight=st.floats(0.01, 1e3),
)
def test_one_user_of_any_weight_takes_no_coordinate_far_from_the_others(honest, bad, weight):
    for rule in ("trimmed", "median"):
        weights = [1.0] * len(honest) + [weight]
        capped = [min(each, sorted(weights)[len(honest) // 2]) for each in weights]
        found = float(values(rule, *honest, bad, weights=weights)) / sum(capped)
        spread = max(honest) - min(honest)
        slack = spread if rule == "trimmed" else 0.0  # as far from the median as an honest one
        assert min(honest) - slack - 1e-9 <= found <= max(honest) + slack + 1e-9


def sent_by(robust, users, weight=1.0):
    """The step of a round in which these users send these numbers of layer b."""
    updates = {user: of("b.w", number, 0.0) for user, number in users.items()}
    return step_of(robust, updates, [weight] * len(users)).get("b.w", [None])[0]


@pytest.mark.parametrize("rule", ["trimmed", "median", "clip"])
def test_a_layer_stays_until_enough_users_have_ever_sent_it(rule):
    robust = Votes(Robust(rule))
    assert sent_by(robust, {"a": 1.0}) is None
    assert sent_by(robust, {"a": 5.0}) is None  # it has one vote, however often it sends
    assert sent_by(robust, {"b": 4.0}) is None
    # 5, 4 and 4.5: the first is as far from the median as the second, and a is not there.
    assert sent_by(robust, {"c": 4.5}) == 4.5


@pytest.mark.parametrize("rule", ["trimmed", "median", "clip"])
def test_a_lone_update_is_compared_with_what_other_users_last_sent(rule):
    robust = Votes(Robust(rule))
    sent_by(robust, {"a": 1.0, "b": 2.0, "c": 3.0})
    assert sent_by(robust, {"d": -45.0}) is None  # the furthest of four
    assert sent_by(robust, {"a": 4.0}) == 3.5  # now d is; clipped to the median of 2, 3, 4, 45
    assert sent_by(robust, {"a": 1.5}, weight=0.5) == 0.75
    # The other one of the round has the weight of both.
    assert sent_by(robust, {"a": 1.5, "d": -45.0}, weight=0.5) == 1.5


def test_few_updates_are_compared_with_the_latest_of_other_users():
    robust = Votes(Robust("trimmed"))
    sent_by(robust, dict.fromkeys(range(7), 100.0))
    for t in range(7):
        sent_by(robust, {f"later {t}": 1.0})
    assert list(robust.kept[1]) == [f"later {t}" for t in reversed(range(7))]
    assert sent_by(robust, {"now": 0.5}) is None  # the furthest
    assert sent_by(robust, {"now": 0.5, "far": 9.0}) == 0.5 * 2


def test_a_user_with_larger_updates_is_clipped_and_not_silenced():
    """Twice the local steps, or half the batch: larger, in the same direction."""
    robust = Votes(Robust("trimmed"))
    sent_by(robust, {0: 1.0, 1: 1.1, 2: 0.9, 3: 1.2})
    assert float(sent_by(robust, {4: 2.0})) == pytest.approx(1.1)
    assert sent_by(robust, {5: 20.0}) is None


def test_among_few_updates_one_that_moves_only_buffers_is_left_out():
    robust = Votes(Robust("trimmed"))

    def sent(users):
        return step_of(
            robust,
            {
                user: {
                    **of("a.w", gradient, gradient, gradient),
                    **of("a.mean", mean, mean),
                    "a.count": torch.tensor(1),
                }
                for user, (gradient, mean) in users.items()
            },
        )

    sent({user: (1.0 + user / 10, 0.01 * user) for user in range(4)})
    moved = sent({0: (1.0, 0.01), 9: (0.0, 5.0)})
    assert moved["a.mean"].tolist() == pytest.approx([0.01] * 2)
    assert sent({9: (0.0, 5.0)}).get("a.mean") is None


def test_what_is_kept_is_in_a_checkpoint():
    robust, other = Votes(Robust("trimmed")), Votes(Robust("trimmed"))
    sent_by(robust, {0: 1.0, 1: 2.0, 2: 3.0})
    sent_by(robust, {0: 2.0})
    kept, tensors = robust.state()
    other.load_state(json.loads(json.dumps(kept)), tensors)
    assert list(other.kept[1]) == [0, 1, 2]
    assert other.kept[1][0][0] == 2
    for users in ({3: 2.5}, {1: -50.0}, {4: 2.0, 5: 7.0}):
        found = sent_by(robust, users)
        assert found == sent_by(other, users)
    assert found is not None


def test_buffers_are_combined_too_and_counters_are_as_always():
    def update(mean, count):
        return {**of("a.mean", mean, mean), "a.count": torch.tensor(count)}

    updates = [update(0.1, 1), update(0.2, 1), update(50.0, 9)]
    for rule, wanted in (("median", 0.2), ("trimmed", 0.15), ("clip", 0.5 / 3)):
        found = combined(rule, updates)
        assert found["a.mean"].tolist() == pytest.approx([wanted] * 2)
        assert found["a.count"] == 9
    # p_l makes up for gradients that were missing, never for statistics.
    found = combined("median", updates, divisor=[0.5, 0.5])
    assert found["a.mean"].tolist() == pytest.approx([0.2] * 2)


def test_attacks_by_hand():
    update = {**of("a.w", 3.0, 0.0, 4.0), **of("b.w", 0.0, 2.0), **of("a.mean", 0.5, 0.5)}

    def sent(text, t=1, user=5):
        return Attack.parse(text).sent(update, LAYERS, t, user)

    assert sent("flip:2")["a.w"].tolist() == [-6.0, 0.0, -8.0]
    assert sent("flip:2")["a.mean"].tolist() == [0.5, 0.5]  # buffers are as they are
    assert sent("constant:2")["b.w"].tolist() == pytest.approx([8**0.5] * 2)
    assert sent("large-first")["b.w"].tolist() == [0.0, 200.0]
    assert sent("large-first", t=2)["b.w"].tolist() == [0.0, 2.0]
    assert float(sent("random:3")["a.w"].norm()) == pytest.approx(15)
    assert torch.equal(sent("random")["a.w"], sent("random")["a.w"])
    assert not torch.equal(sent("random")["a.w"], sent("random", t=2)["a.w"])
    assert not torch.equal(sent("random")["a.w"], sent("random", user=6)["a.w"])


SMALL = PRESETS["digits-mlp"].changed(users=8, stragglers=0.5, rounds=100, lr=0.1, threads=1)


def accuracy(**settings):
    return run(SMALL.changed(**settings)).history.test_accuracy


@pytest.mark.parametrize("stragglers", [0.5, 1.0])  # of all 8, none surely finishes
def test_one_attacker_of_eight_costs_little(stragglers):
    """Few reach the first layer if all are stragglers, and the attacker always does."""
    honest = accuracy(stragglers=stragglers)
    for attack in ("flip", "random", "constant", "large-first"):
        found = accuracy(attack=attack, robust="trimmed", stragglers=stragglers)
        assert found >= honest - 0.05, attack


def test_one_attacker_costs_little_where_one_honest_user_reaches_the_first_layer():
    """One user always finishes, and the six others of depths L and L + 1 do once in a while."""
    slow = {"depth": f"{__name__}:one_fast", "rounds": 200}
    honest = accuracy(**slow)
    for attack in ("flip", "constant"):
        assert accuracy(attack=attack, robust="trimmed", **slow) >= honest - 0.05


def one_fast(users, layers):
    fast = [1.0] + [0.0] * layers
    slow = [0.05] + [0.0] * (layers - 2) + [0.45, 0.5]
    return PerUser(np.array([fast] + [slow] * (users - 1)))


def test_without_a_rule_an_attacker_wins():
    try:
        found = accuracy(attack="flip")
    except TrainingDiverged:
        return
    assert found < 0.5


def test_methods_that_remember_are_robust_too():
    """What is remembered of an attacker is left out of the mean as well."""
    honest = accuracy(method="mifa")
    assert accuracy(method="mifa", attack="flip", robust="trimmed") >= honest - 0.05


@pytest.mark.parametrize("engine", ["fused", "grouped"])
def test_engines_agree(engine):
    settings = {"rounds": 5, "robust": "trimmed", "attack": "random"}
    assert accuracy(engine=engine, **settings) == pytest.approx(
        accuracy(engine="loop", **settings), abs=0.01
    )


def test_a_run_that_is_resumed_is_the_run(tmp_path):
    """Layers that wait for users wait on."""
    settings = {"stragglers": 1.0, "robust": "trimmed", "attack": "flip", "rounds": 12}
    config = replace(SMALL.changed(**settings), eval_every=3)
    whole = run(config)

    with pytest.raises(Stopped):
        run(config, tmp_path / "run", on_round=interrupted.at(7, Stopped))
    resumed = run(config, tmp_path / "run", resume=True)
    assert resumed.history.curve == whole.history.curve
    assert [row.train_loss for row in resumed.history.rows] == [
        row.train_loss for row in whole.history.rows
    ]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"robust": "trimmed", "users": 2}, "needs at least 3, not 2"),
        ({"robust": "clip", "users": 8, "tolerate": 4}, "needs at least 9"),
        ({"robust": "clip", "method": "heterofl"}, "heterofl train parts of the network"),
        ({"tolerate": 0}, "tolerate must be at least 1"),
        ({"attack": "flap"}, "Did you mean 'flip'"),
        ({"attack": "flip:x"}, "strength is a positive number"),
        ({"attack": "flip", "attackers": 31}, "from 1 to 30"),
    ],
)
def test_what_cannot_be_is_said(settings, reason):
    with pytest.raises(SalfError, match=reason):
        Config(**settings)


def test_arrivals_of_attackers_have_all_layers():
    arrived = Arrivals(np.array([3, 4, 4]))
    found = Attackers(Attack.parse("flip"), 3).arrived(arrived)
    assert found.depth.tolist() == [3, 4, 1]
