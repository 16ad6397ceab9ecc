"""The server's round: what was accepted makes the step, and nothing else does."""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from nets import mlp
from salf.common.errors import SalfError
from salf.core.compression import Compression, Sender
from salf.core.layers import Layers
from salf.core.server import SGD
from salf.live.reach import ReachEstimate
from salf.live.server import LiveServer, ServerSettings
from salf.live.update import Rejected, Update, encode
from salf.problem import Problem

LR = 0.5


network = partial(mlp, 3, 4, 4, 2)


def server(**settings):
    model = network()
    settings = {"unreached": [0.0, 0.0, 0.0], **settings}
    return LiveServer(Problem.of(model), LR, ServerSettings(**settings))


def update(depth=1, seed=0):
    model = network()
    layers = Layers.of(model)
    shapes = dict(model.named_parameters())
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        name: torch.randn(shapes[name].shape, generator=generator)
        for layer in layers.reached(depth)
        for name in layer.parameters
    }
    return Update(depth, tensors, loss=float(seed))


def a_round(live, users, *updates):
    """A round of these users, of whom the first answer with these updates."""
    live.open(users)
    for user, each in zip(users, updates, strict=False):
        live.take(user, encode(each))
    return live.close()


def stepped(weights, updates, scale=1.0):
    """[salf_update_rule], the obvious way: each layer's mean over those who sent it."""
    moved = {}
    for name, weight in weights.items():
        sent = [u.tensors[name] for u in updates if name in u.tensors]
        mean = torch.stack(sent).mean(0) if sent else torch.zeros_like(weight)
        moved[name] = weight - LR * scale * mean
    return moved


def snapshot(live):
    return {name: tensor.detach().clone() for name, tensor in live.weights.items()}


def assert_same(live, expected):
    for name, tensor in expected.items():
        torch.testing.assert_close(live.weights[name].detach(), tensor)


def test_the_step_is_the_layerwise_mean_of_what_was_accepted():
    live, before = server(), snapshot(server())
    updates = [update(1, seed=1), update(3, seed=2), update(2, seed=3)]
    row = a_round(live, "abcd", *updates)
    assert row.round == 1
    assert_same(live, stepped(before, updates))
    assert row.depths == {"a": 1, "b": 3, "c": 2, "d": 4}  # d was not heard: L + 1
    assert row.reached == (1, 2, 3)
    assert row.train_loss == 2.0
    assert (row.late, row.rejected) == (0, ())
    live.open(["a"])
    with pytest.raises(SalfError, match="already open"):
        live.open(["a"])


@pytest.mark.parametrize(
    ("settings", "scale", "counted"),
    [({"method": "drop"}, 1.0, 2), ({"unreached": [0.5, 0.5, 0.5]}, 2.0, 3)],
)
def test_the_method_chooses_and_p_l_divides(settings, scale, counted):
    live, before = server(**settings), snapshot(server())
    updates = [update(1, seed=1), update(1, seed=2), update(2, seed=3)]
    assert a_round(live, "abc", *updates).depths["c"] == 2
    assert_same(live, stepped(before, updates[:counted], scale))


def test_bad_updates_cost_their_own_part_and_nothing_else():
    live, before = server(), snapshot(server())
    good = [update(1, seed=1), update(2, seed=2)]
    nan = update(2, seed=3)
    nan.tensors["4.bias"][0] = float("nan")
    live.open("abcde")
    live.take("c", encode(nan))
    live.take("a", encode(good[0]))
    live.take("d", encode(Update(1, {"4.bias": torch.zeros(7)})))
    assert live.missing() == {"b", "e"}
    live.take("e", b"no update at all")
    live.take("b", encode(good[1]))
    live.take("b", encode(update(1, seed=7)))  # a second one
    live.take("stranger", encode(update()))
    row = live.close()
    assert_same(live, stepped(before, good))
    reasons = dict(row.rejected)
    assert "not finite" in reasons["c"]
    assert "is missing" in reasons["d"]
    assert "not an update" in reasons["e"]
    assert "already sent an update" in reasons["b"]
    assert "not asked" in reasons["stranger"]
    assert len(row.rejected) == 5
    assert row.depths == {"a": 1, "b": 2, "c": 4, "d": 4, "e": 4}


def test_what_comes_late_is_counted_and_never_mixed_into_another_round():
    live = server()
    a_round(live, "ab", update())
    before = snapshot(live)
    live.open("ab")
    assert live.take("b", encode(update(seed=3)), asked=1) is not None
    assert live.take("b", b"rubbish", asked=1) is None
    live.refuse("a", Rejected("its process ended"), asked=1)
    row = live.close()
    assert (row.late, row.rejected, row.depths) == (3, (), {"a": 4, "b": 4})
    assert_same(live, before)
    assert math.isnan(row.train_loss)


def test_a_method_that_is_not_live_is_a_sentence():
    with pytest.raises(SalfError, match="heterofl"):
        server(method="heterofl")


def play(live, rounds):
    for t in rounds:
        a_round(live, "abc", *(update(1 + (t + i) % 4, 10 * t + i) for i in range(3)))


def test_a_server_that_is_killed_goes_on_after_the_last_closed_round(tmp_path):
    whole = server(optimiser=SGD(0.5), unreached=None)
    play(whole, range(1, 16))
    first = server(optimiser=SGD(0.5), unreached=None)
    play(first, range(1, 13))
    first.save(tmp_path / "state")
    first.open(["a", "b"])  # killed here
    again = server(optimiser=SGD(0.5), unreached=None)
    again.restore(tmp_path / "state")
    assert again.t == 12
    play(again, range(13, 16))
    for name, tensor in whole.weights.items():
        assert torch.equal(again.weights[name], tensor)


def test_p_l_is_learned_and_comes_close_to_the_truth():
    rng = np.random.default_rng(0)
    estimate, chances = ReachEstimate(3), np.array([0.2, 0.5, 0.9])
    learned = []
    for _ in range(3000):
        depths = 4 - (rng.random((5, 1)) < chances).sum(1)
        estimate.learn(depths.tolist())
        learned.append(estimate.unreached())
    # The prior of 5 rounds in some 55 makes it a tenth too small; the mean is over 60 windows.
    assert np.mean(learned, axis=0) == pytest.approx(0.91 * (1 - chances) ** 5, abs=0.03)


def test_where_somebody_always_finishes_p_l_is_0_however_slow_the_others_are():
    live, before = server(unreached=None), snapshot(server())
    for t in range(1, 30):
        updates = [update(1, seed=t), update(4), update(3)]
        before = snapshot(live)
        row = a_round(live, ["fast", "slow", "slower", "never"], *updates)
        assert row.unreached == (0.0, 0.0, 0.0)
    assert_same(live, stepped(before, updates))


@pytest.mark.parametrize(
    ("depths", "least", "most"),
    [
        ([2], 0.0, 0.2),  # one empty round does not blow up a step
        ([1] * 50 + [2], 0.0, 0.03),
        ([2] * 10, 0.5, 0.75),  # nor does a layer that was not reached for long
        ([2] * 5000, 0.75, 0.75),
        ([1] * 200, 0.0, 0.0),
        ([1] * 200 + [1, 2] * 100, 0.42, 0.58),  # devices that become slow
    ],
)
def test_p_l_of_one_layer_after_rounds_in_which_it_was_reached_or_not(depths, least, most):
    estimate = ReachEstimate(1)
    for depth in depths:
        estimate.learn([depth])
    assert least <= estimate.unreached()[0] <= most


@pytest.mark.parametrize("unreached", [[0.0, 0.0], [0.0, 0.0, 1.0], [0.0, -0.1, 0.0]])
def test_chances_that_are_none_are_refused(unreached):
    with pytest.raises(SalfError, match=r"unreached must be 3 probabilities in \[0, 1\)"):
        server(unreached=unreached)


@pytest.mark.parametrize("damage", ["shape", "missing", "layers", "rubbish"])
def test_a_state_of_another_model_is_refused_in_a_sentence(tmp_path, damage):
    other = server()
    if damage == "shape":
        other.weights["0.bias"] = torch.zeros(1)
    elif damage == "missing":
        del other.weights["0.bias"]
    elif damage == "layers":
        other.reach = ReachEstimate(2)
    other.save(tmp_path / "state")
    if damage == "rubbish":
        (tmp_path / "state").write_bytes(b"rubbish")
    live = server()
    before = snapshot(live)
    with pytest.raises(SalfError, match="cannot be read"):
        live.restore(tmp_path / "state")
    assert live.t == 0
    assert_same(live, before)


def test_a_stranger_has_no_vote():
    live = server(robust="mixed")
    live.open("abc")
    for user in ("a", "stranger", "b", "c"):
        live.take(user, encode(update(1, seed=1)))
    assert "not asked" in dict(live.close().rejected)["stranger"]
    assert live.pipeline.recall.remembered == ["a", "b", "c"]


@pytest.mark.parametrize("rule", ["mixed", "median"])
def test_a_robust_server_moves_a_layer_when_enough_users_sent_it_also_after_a_restart(
    rule, tmp_path
):
    live, again, before = server(robust=rule), server(robust=rule), snapshot(server())
    last, first = update(3, seed=1), update(1, seed=1)
    whole = replace(first, tensors={**first.tensors, **last.tensors})
    row = a_round(live, "abc", whole, last, last)
    assert row.reached == (1, 1, 3)
    assert_same(live, stepped(before, [last]))  # equal updates: their mean
    live.save(tmp_path / "state")
    again.restore(tmp_path / "state")
    for each in (live, again):
        a_round(each, "bca", first, first)
    assert not torch.equal(live.weights["0.weight"], before["0.weight"])
    assert_same(again, snapshot(live))


@pytest.mark.parametrize("compress", ["fp16", "qsgd:8", "topk:0.3"])
def test_compressed_updates_are_smaller_and_are_unpacked_before_they_are_inspected(compress):
    live, before = server(compress=compress), snapshot(server())
    sender = Sender(Compression.parse(compress), live.layers, 0, 0)
    sent, other = update(seed=1), update(seed=2)
    packed = replace(sent, tensors=sender.packed(sent.tensors, 1))
    sizes = [sum(t.nbytes for t in each.tensors.values()) for each in (sent, packed, other)]
    assert sizes[1] < sizes[0]
    row = a_round(live, "ab", packed, other)  # as it is: also a good update
    assert row.rejected == ()
    assert row.bytes == sizes[1] + sizes[2]
    for layer in live.layers:
        name = layer.parameters[0]
        moved = (before[name] - live.weights[name].detach()) / LR
        mean = (sent.tensors[name] + other.tensors[name]) / 2
        assert (moved - mean).norm() < 0.6 * mean.norm()


def test_what_is_compressed_wrongly_is_refused():
    live = server(compress="topk:0.3")
    sender = Sender(Compression.parse("topk:0.3"), live.layers, 0, 0)
    packed = sender.packed(update().tensors, 1)
    packed["layer 1: places"] = packed["layer 1: places"].flip(0)
    row = a_round(live, "a", Update(1, packed))
    assert "wrong compression: indices are not sorted" in row.rejected[0][1]
