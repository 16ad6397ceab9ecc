"""Robust aggregation: the rules and the attacks by hand, votes that end, attacks survived."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

import interrupted
from salf.common.errors import SalfError, TrainingDiverged
from salf.core.aggregate import LayerwiseAggregate
from salf.core.arrivals import Arrivals
from salf.core.layers import Layer, Layers
from salf.core.server import SGD
from salf.methods import Recalled, method
from salf.runs.config import Config
from salf.runs.presets import PRESETS
from salf.runs.run import Stopped, run
from salf.stages.attacks import Attack, Attacked, Attackers
from salf.stages.pipeline import Stages
from salf.stages.recall import LATELY, Recall
from salf.stages.robust import JUDGES, WINDOW, Robust, Voting, mixed, products
from salf.worlds.depth import PerUser

LAYERS = Layers([Layer("a", ("a.w",), ("a.mean", "a.count")), Layer("b", ("b.w",))])
LIKE = {
    "a.w": torch.zeros(3, dtype=torch.float64, requires_grad=True),
    "a.mean": torch.zeros(2, dtype=torch.float64),
    "a.count": torch.zeros((), dtype=torch.int64),
    "b.w": torch.zeros(2, dtype=torch.float64, requires_grad=True),
}


RULES = ["mixed", "median"]


class Federation:
    """Rounds of updates by user, and the votes that a rule keeps of them."""

    def __init__(self, rule="mixed", attackers=1, name="salf"):
        self.rule = Robust(rule, attackers)
        self.recall = self.rule.memory(method(name), LAYERS, LIKE)
        self.t = 0

    def round(self, updates, weights=None, divisor=None, own=None):
        """The step of these updates, by user, each of one weight in all layers."""
        self.t += 1
        plain = LayerwiseAggregate(LAYERS, LIKE)
        found = Voting(plain, self.recall, self.t, own or {}, self.rule)
        weights = [1 / max(1, len(updates))] * len(updates) if weights is None else weights
        for (user, update), weight in zip(updates.items(), weights, strict=True):
            found.add(update, [weight] * 2, user=user)
        return found.total([sum(weights)] * 2, divisor).values

    def sent(self, users, **more):
        """The step of layer b, in which these users send these numbers."""
        updates = {user: of("b.w", number, 0.0) for user, number in users.items()}
        return self.round(updates, **more).get("b.w", [None])[0]


def of(name, *values):
    return {name: torch.tensor(values, dtype=torch.float64)}


def values(rule, *numbers, attackers=1, **more):
    """The rule on one coordinate, in the first round."""
    return Federation(rule, attackers).sent(dict(enumerate(numbers)), **more)


def test_mixing_takes_the_mean_of_the_nearest_by_hand():
    # 3 and 10 are scaled down to the median norm, 2.5. 1 drops one of these, the others drop 1.
    found = values("mixed", 1.0, 2.0, 3.0, 10.0)
    assert float(found) == pytest.approx(((1 + 2 + 2.5) + 3 * (2 + 2.5 + 2.5)) / 12)


def test_mixing_drops_as_many_as_are_tolerated():
    # 4, 5 and three times 6.5: 4 and 5 take each other and a 6.5, these each other.
    found = values("mixed", 4.0, 5.0, 6.5, 20.0, 30.0, attackers=2)
    assert float(found) == pytest.approx((2 * (4 + 5 + 6.5) + 3 * (3 * 6.5)) / 15)


def test_the_median_is_that_of_every_coordinate():
    updates = [of("b.w", *each) for each in ((1.0, -5.0), (9.0, 7.0), (2.0, 0.0))]
    found = Federation("median").round(dict(enumerate(updates)))
    assert found["b.w"].tolist() == [2.0, 0.0]


def test_a_momentum_is_the_mean_of_few_updates_and_then_fades():
    fed, same = Federation("median"), dict.fromkeys("bc", 1.0)
    for number in range(1, WINDOW + 1):
        fed.sent({"a": number, **same})
    mean = (1 + WINDOW) / 2
    assert float(fed.recall.values("b.w")[0][0]) == pytest.approx(mean)
    fed.sent({"a": 100.0})
    assert float(fed.recall.values("b.w")[0][0]) == pytest.approx(mean + (100 - mean) / WINDOW)


def test_absent_users_keep_their_votes_and_a_lone_attacker_moves_nothing_far():
    fed = Federation("median")
    fed.sent({"a": 1.0, "b": 2.0, "c": 3.0})
    assert fed.sent({"d": -45.0}) == 1  # the lower one in the middle of -45, 1, 2 and 3
    assert fed.sent({}) is None  # the method says how far a layer moves


def test_a_vote_on_a_layer_that_is_not_renewed_ages_out():
    fed = Federation("median")
    fed.sent({"a": 1.0, "b": 2.0, "c": 3.0})
    for _ in range(LATELY - 2):
        fed.round({user: of("a.w", 1.0, 1.0, 1.0) for user in "abc"})  # the other layer
    assert fed.sent({"a": 1.0}) == 2
    assert fed.sent({"a": 1.0}) is None  # a alone is left
    assert fed.sent({"b": 8.0, "c": 9.0}) == 8  # which is not a mean with the old 2


def test_users_who_left_have_no_vote_and_their_place_is_given_away():
    fed = Federation("median")
    fed.sent({"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0})
    assert fed.recall.forget_others("abd") == ["c"]
    assert fed.recall.forget_others("abd") == []
    assert fed.sent({"a": 1.0}) == 2
    fed.recall.forget_others("ab")
    assert fed.sent({"a": 1.0}) is None
    fed.t += LATELY
    fed.sent({"e": 5.0})
    assert len(fed.recall.remembered) == 4


@pytest.mark.parametrize("rule", RULES)
def test_a_layer_stays_until_enough_users_have_sent_it(rule):
    fed = Federation(rule)
    assert fed.sent({"a": 4.0}) is None
    assert fed.sent({"a": 4.0}) is None  # it has one vote, however often it sends
    assert fed.sent({"b": 4.0}) is None
    assert float(fed.sent({"c": 4.0})) == pytest.approx(4)


@pytest.mark.parametrize("rule", RULES)
def test_equal_updates_make_the_step_of_the_method_and_no_weight_is_above_the_median(rule):
    weights, divisor = [0.5, 2.0, 1.0], [4.0, 0.7]
    same = {**of("a.w", 1.0, 2.0, 3.0), **of("b.w", 4.0, 5.0)}
    plain = LayerwiseAggregate(LAYERS, LIKE)
    for weight in weights:
        plain.add(same, [weight] * 2)
    wanted = plain.total([3.5] * 2, divisor).values
    found = Federation(rule).round(dict.fromkeys("abc", same), weights, divisor)
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value * (0.5 + 1 + 1) / 3.5)


def test_users_with_more_samples_weigh_more_in_the_mean_but_never_than_the_median_user():
    # Unequal weights of 1, 2, 2 and 2 (for 50): each judge drops the one furthest from itself.
    own = {0: 1.0, 1: 2.0, 2: 2.0, 3: 50.0}
    updates = [of("b.w", *each) for each in ((5.0, 0.0), (4.0, 3.0), (3.0, 4.0), (0.0, -5.0))]
    found = Federation().round(dict(enumerate(updates)), own=own)["b.w"]
    without_3 = (1 * updates[0]["b.w"] + 2 * updates[1]["b.w"] + 2 * updates[2]["b.w"]) / 5
    without_2 = (1 * updates[0]["b.w"] + 2 * updates[1]["b.w"] + 2 * updates[3]["b.w"]) / 5
    torch.testing.assert_close(found, (5 * without_3 + 2 * without_2) / 7)


@given(
    honest=st.lists(st.floats(-10, 10), min_size=2, max_size=6),
    bad=st.floats(-1e6, 1e6),
    weight=st.floats(0.01, 1e3),
)
def test_one_user_of_any_weight_takes_no_coordinate_far_from_the_others(honest, bad, weight):
    for rule in RULES:
        found = float(values(rule, *honest, bad, own={len(honest): weight}))
        low, high = min(honest), max(honest)
        if rule == "mixed":  # the attacker's own judgement counts, of a vector that is scaled down
            high = max(map(abs, honest))
            low = -high
        assert low - 1e-9 <= found <= high + 1e-9


def test_the_cost_grows_linearly_with_the_users():
    """Counted, not timed: beyond `JUDGES` users, twice as many cost twice the multiplications."""

    def flops(users):
        vectors = torch.randn(users, 50, generator=torch.Generator().manual_seed(0))
        with FlopCounterMode(display=False) as counter:
            who, inner, squares = products([vectors], users)
        assert inner.shape == (JUDGES, users)
        assert 0 < mixed(who, inner, squares, np.ones(users), 3).min() < 1
        return counter.get_total_flops()

    assert flops(1000) == 2 * flops(500) == 4 * flops(250)


def test_vectors_in_parts_are_compared_as_wholes():
    vectors = torch.randn(6, 9, dtype=torch.float64)
    _, inner, squares = products([vectors[:, :4], vectors[:, 4:]], 6)
    np.testing.assert_allclose(inner, vectors @ vectors.T)
    np.testing.assert_allclose(squares, inner.diagonal())


@pytest.mark.parametrize("rule", RULES)
def test_votes_are_in_a_checkpoint(rule):
    fed, again = Federation(rule), Federation(rule)
    for t in range(4):
        fed.sent({user: user + t * 0.3 for user in range(t % 2, 5)})
    kept, tensors = fed.recall.state()
    again.recall.load_state(
        json.loads(json.dumps(kept)), {n: v.clone() for n, v in tensors.items()}
    )
    again.t = fed.t
    for users in ({3: 2.5}, {1: -50.0}, {7: 2.0, 2: 7.0}):
        found = fed.sent(users)
        assert found == again.sent(users)
    assert found is not None


@pytest.mark.parametrize("rule", RULES)
def test_the_order_in_which_updates_come_does_not_change_a_bit(rule):
    updates = {f"user-{u}": of("b.w", *torch.randn(2).tolist()) for u in range(1, 13)}
    one, other = (
        Federation(rule).round(updates),
        Federation(rule).round(dict(reversed(updates.items()))),
    )
    assert torch.equal(one["b.w"], other["b.w"])


def test_of_buffers_the_last_values_are_combined_and_counters_are_as_always():
    def update(mean, count):
        return {**of("a.mean", mean, mean), "a.count": torch.tensor(count)}

    fed = Federation("median")
    found = fed.round({0: update(0.1, 1), 1: update(0.2, 1), 2: update(50.0, 9)}, divisor=[0.5, 1])
    # p_l makes up for gradients that were missing, never for statistics.
    assert found["a.mean"].tolist() == pytest.approx([0.2] * 2)
    assert found["a.count"] == 9
    found = fed.round({0: update(0.3, 1)})  # not the mean of two
    assert found["a.mean"].tolist() == pytest.approx([0.3] * 2)


def test_the_users_momenta_take_the_place_of_the_servers():
    stages, optimiser = Stages(Robust("mixed")).ready(SGD(0.5))
    assert (stages.robust.gain, optimiser) == (2.0, None)
    fed = Federation()
    fed.rule = stages.robust
    assert float(fed.sent({0: 1.0, 1: 1.0, 2: 1.0})) == pytest.approx(2)


def test_a_method_with_memory_moves_layers_that_nobody_sent():
    fed = Federation(name="mifa")
    fed.sent({0: 1.0, 1: 1.0, 2: 1.0})
    assert float(fed.sent({})) == pytest.approx(1)


HONEST = torch.tensor([[1.0, 0.0], [3.0, 0.0], [2.0, 3.0]], dtype=torch.float64)  # mean 2, 1


def wanted(text, honest=HONEST):
    return Attack.parse(text).wanted(honest)


def test_alie_ipm_and_mimic_are_those_of_their_papers():
    deviation = torch.tensor([(2 / 3) ** 0.5, 2**0.5], dtype=torch.float64)
    mean = torch.tensor([2.0, 1.0], dtype=torch.float64)
    torch.testing.assert_close(wanted("alie:1.5"), mean - 1.5 * deviation)
    torch.testing.assert_close(wanted("ipm:0.5"), -0.5 * mean)
    torch.testing.assert_close(wanted("mimic"), HONEST[0])


def test_min_max_goes_as_far_as_the_largest_distance_of_two_honest_vectors():
    apart = torch.cdist(HONEST, HONEST)
    found = torch.cdist(wanted("min-max")[None], HONEST)
    assert float(found.max()) == pytest.approx(float(apart.max()))
    direction = wanted("min-max") - HONEST.mean(0)
    deviation = HONEST.std(0, correction=0)
    torch.testing.assert_close(direction / direction.norm(), -deviation / deviation.norm())


def test_min_sum_goes_as_far_as_the_largest_sum_of_squared_distances():
    apart = torch.cdist(HONEST, HONEST).square().sum(1)
    found = torch.cdist(wanted("min-sum")[None], HONEST).square().sum()
    assert float(found) == pytest.approx(float(apart.max()))
    assert torch.equal(wanted("min-max", HONEST[:1]), HONEST[0])  # of one there is no deviation


class Listening(LayerwiseAggregate):
    def __init__(self):
        super().__init__(LAYERS, LIKE, separate=True)
        self.heard = {}

    def add(self, update, weights=None, held=None, user=None):
        self.heard[user] = update


def attacked(text, updates, votes=None, known=(), t=1):
    """What arrives of these updates, the last of which is an attacker's."""
    attackers = Attackers(Attack.parse(text), len(updates))
    found = Listening()
    stage = Attacked(found, attackers, LAYERS, t, votes, known)
    for user in reversed(range(len(updates))):  # the attacker's comes first, and waits
        stage.add(updates[user], [1.0, 1.0], user=user)
    assert len(updates) - 1 not in found.heard
    stage.total([1.0, 1.0])
    return found.heard


UPDATES = [of("b.w", *row.tolist()) for row in HONEST] + [
    {**of("a.w", 9.0, 9.0, 9.0), **of("b.w", 9.0, 9.0), **of("a.mean", 0.5, 0.5)}
]


def test_attackers_know_the_honest_updates_of_the_round_and_nothing_of_layers_without_any():
    heard = attacked("ipm", UPDATES)
    torch.testing.assert_close(heard[3]["b.w"], -HONEST.mean(0))
    assert heard[3]["a.w"].tolist() == [9.0] * 3  # as it is
    assert heard[3]["a.mean"].tolist() == [0.5] * 2
    assert torch.equal(heard[0]["b.w"], HONEST[0])


@pytest.mark.parametrize(
    ("where", "changed"),
    [("first", {"a.w"}), ("last", {"b.w"}), ("rare", {"a.w"}), ("all", {"a.w", "b.w"})],
)
def test_attacks_on_some_layers_leave_the_others_honest(where, changed):
    text = "flip:1" if where == "all" else f"flip:1@{where}"
    sent = attacked(text, UPDATES)[3]  # no honest user sends layer a
    assert {
        name for name, value in sent.items() if not torch.equal(value, UPDATES[3][name])
    } == changed


def test_attackers_answer_a_server_that_compares_momenta():
    """They send what makes their momentum the one that they want."""
    fed = Federation("median")
    for scale in (1.0, 2.0, 3.0):
        updates = [{name: scale * value for name, value in each.items()} for each in UPDATES]
        fed.t += 1
        stage = Attacked(
            Voting(LayerwiseAggregate(LAYERS, LIKE), fed.recall, fed.t, {}, fed.rule),
            Attackers(Attack.parse("ipm"), 4), LAYERS, fed.t, fed.recall,
        )  # fmt: skip
        for user, update in enumerate(updates):
            stage.add(update, [1.0, 1.0], user=user)
        stage.total([4.0, 4.0])
        momenta = fed.recall.values("b.w")[fed.recall.rows_of(range(4))]
        torch.testing.assert_close(momenta[3], -momenta[:3].mean(0))


def test_an_attacker_that_knows_only_itself_uses_its_own_mean_and_deviation_over_time():
    known = [Recall(LAYERS, LIKE, Recalled(0.0, None, 9), 10) for _ in range(2)]
    first = attacked("alie-own:2", [of("b.w", 0.0, 0.0), of("b.w", 1.0, 5.0)], None, known)
    assert first[1]["b.w"].tolist() == pytest.approx([1.0, 5.0])  # no deviation yet
    sent = attacked("alie-own:2", [of("b.w", 0.0, 0.0), of("b.w", 3.0, 5.0)], None, known, 2)
    assert sent[1]["b.w"].tolist() == pytest.approx([2 - 2 * 1, 5.0])  # of 1 and 3: mean 2


def test_labels_are_flipped_and_triggers_set_in_attackers_data():
    inputs, labels = torch.zeros(4, 1, 5, 5), torch.tensor([0, 1, 2, 9])
    inputs[0, 0, 0, 0] = 7.0
    flipped = Attack.parse("label-flip").rows(inputs, labels, 10)
    assert torch.equal(flipped[0], inputs)
    assert flipped[1].tolist() == [9, 8, 7, 0]
    found, wanted = Attack.parse("backdoor").rows(inputs, labels, 10)
    assert wanted.tolist() == [0, 1, 0, 9]
    assert (found[2, 0, -3:, -3:] == 7).all()
    assert found[2].sum() == 9 * 7
    assert torch.equal(found[1::2], inputs[1::2])
    seen, wanted = Attack.parse("backdoor").tests(inputs, labels)
    assert wanted.tolist() == [0, 0, 0]
    assert (seen[:, 0, -3:, -3:] == 7).all()


def test_attacks_of_a_given_norm_by_hand():
    update = {**of("a.w", 3.0, 0.0, 4.0), **of("a.mean", 0.5, 0.5), **of("b.w", 0.0, 2.0)}

    def sent(text, t=1, user=5):
        updates = [of("b.w", 1.0, 1.0)] * user + [update]
        return attacked(text, updates, t=t)[user]

    assert sent("flip:2")["a.w"].tolist() == [-6.0, 0.0, -8.0]
    assert sent("flip:2")["a.mean"].tolist() == [0.5, 0.5]  # buffers are as they are
    assert sent("constant:2")["b.w"].tolist() == pytest.approx([8**0.5] * 2)
    assert sent("large-first")["b.w"].tolist() == [0.0, 200.0]
    assert sent("large-first", t=2)["b.w"].tolist() == [0.0, 2.0]
    assert float(sent("random:3")["a.w"].norm()) == pytest.approx(15)
    assert torch.equal(sent("random")["a.w"], sent("random")["a.w"])
    assert not torch.equal(sent("random")["a.w"], sent("random", t=2)["a.w"])
    assert not torch.equal(sent("random")["a.w"], sent("random", user=6)["a.w"])


SMALL = PRESETS["digits-mlp"].changed(users=8, stragglers=0.5, rounds=250, lr=0.1, threads=1)


def accuracy(**settings):
    return run(SMALL.changed(**settings)).history.test_accuracy


@pytest.mark.parametrize("stragglers", [0.5, 1.0])  # of all 8, none surely finishes
def test_one_attacker_of_eight_costs_little(stragglers):
    """Few reach the first layer if all are stragglers, and the attacker always does."""
    honest = accuracy(stragglers=stragglers)
    for attack in ("flip", "random", "constant", "large-first"):
        found = accuracy(attack=attack, robust="mixed", stragglers=stragglers)
        assert found >= honest - 0.05, attack


def test_an_attacker_does_not_win_where_one_honest_user_reaches_the_first_layer():
    """One user always finishes, and the six others of depths L and L + 1 do once in a while."""
    slow = {"depth": f"{__name__}:one_fast", "rounds": 200}
    assert accuracy(robust="mixed", **slow) >= accuracy(**slow) - 0.1
    assert accuracy(attack="flip", robust="mixed", **slow) >= 0.5


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
    assert accuracy(method="mifa", attack="flip", robust="mixed") >= honest - 0.05


@pytest.mark.parametrize("engine", ["fused", "grouped"])
def test_engines_agree(engine):
    settings = {"rounds": 5, "robust": "mixed", "attack": "random"}
    assert accuracy(engine=engine, **settings) == pytest.approx(
        accuracy(engine="loop", **settings), abs=0.01
    )


def test_a_run_that_is_resumed_is_the_run(tmp_path):
    """Layers that wait for users wait on."""
    settings = {"stragglers": 1.0, "robust": "mixed", "attack": "flip", "rounds": 12}
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
        ({"robust": "mixed", "users": 2}, "needs at least 3, not 2"),
        ({"robust": "median", "users": 8, "tolerate": 4}, "needs at least 9"),
        ({"robust": "median", "method": "heterofl"}, "heterofl train parts of the network"),
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


def test_the_success_of_a_backdoor_is_in_the_summary_and_a_rule_keeps_it_low():
    found = [
        run(SMALL.changed(rounds=120, attack="backdoor", robust=rule)).summary["test"]
        for rule in ("none", "mixed")
    ]
    assert found[1]["backdoor_success"] < found[0]["backdoor_success"]
