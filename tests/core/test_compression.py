"""Compression of updates: what arrives, what it weighs, and what is made up for later."""

import math

import numpy as np
import pytest
import torch

import interrupted
from salf.common.errors import SalfError
from salf.core.compression import Compression, Sender, unpacked, upload_bytes
from salf.core.draws import Keyed
from salf.core.layers import Layer, Layers
from salf.runs.presets import PRESETS
from salf.runs.run import Stopped, run
from salf.stages.compressed import Residuals

LAYERS = Layers([Layer("a", ("a.w", "a.b"), ("a.mean",)), Layer("b", ("b.w",))])
LIKE = {
    "a.w": torch.zeros(3, 4, requires_grad=True),
    "a.b": torch.zeros(3, requires_grad=True),
    "b.w": torch.zeros(2, requires_grad=True),
}


def update(seed=0):
    generator = torch.Generator().manual_seed(seed)
    gradients = {n: torch.randn(each.shape, generator=generator) for n, each in LIKE.items()}
    return {**gradients, "a.mean": torch.tensor([0.25])}


def through(text, sent, t=1, number=0):
    compression = Compression.parse(text)
    packed = Sender(compression, LAYERS, 0, number).packed(sent, t)
    return unpacked(packed, compression, LAYERS, LIKE)


@pytest.mark.parametrize("text", ["fp16", "qsgd:4", "topk:0.5"])
def test_names_shapes_and_types_are_those_of_an_update_and_buffers_are_untouched(text):
    sent = update()
    found = through(text, sent)
    assert found.keys() == sent.keys()
    for name, value in sent.items():
        assert found[name].shape == value.shape
        assert found[name].dtype == value.dtype
    assert torch.equal(found["a.mean"], sent["a.mean"])


def test_sixteen_bits_are_sixteen_bits():
    found = through("fp16", {"b.w": torch.tensor([0.1, 1e9])})
    assert found["b.w"].tolist() == [torch.tensor(0.1).half().item(), 65504.0]  # never infinite


def test_topk_sends_the_largest_of_a_layer_by_hand():
    sent = {"a.w": torch.zeros(3, 4), "a.b": torch.tensor([1.0, -3.0, 2.0])}
    sent["a.w"][1, 2] = -5.0
    found = through("topk:0.2", sent)  # three of 15
    assert found["a.w"][1, 2] == -5
    assert found["a.b"].tolist() == [0.0, -3.0, 2.0]
    assert found["a.w"].count_nonzero() == 1


def test_error_feedback_loses_nothing():
    """What arrived and what is still kept add up to all gradients, whichever layers were sent."""
    sender, total, arrived = Sender(Compression.parse("topk:0.1"), LAYERS, 0, 0), {}, {}
    for t in range(1, 30):
        sent = {n: v for n, v in update(t).items() if n == "b.w" or (n != "a.mean" and t % 3)}
        came = unpacked(sender.packed(sent, t), sender.compression, LAYERS, LIKE)
        for name, value in sent.items():
            total[name] = total.get(name, 0) + value
            arrived[name] = arrived.get(name, 0) + came[name]
    kept = torch.split(sender.residuals[0], [12, 3])
    torch.testing.assert_close(arrived["a.w"] + kept[0].view(3, 4), total["a.w"])
    torch.testing.assert_close(arrived["a.b"] + kept[1], total["a.b"])
    torch.testing.assert_close(arrived["b.w"] + sender.residuals[1], total["b.w"])


def test_qsgd_is_unbiased():
    """Over 4000 rounds, the mean of 20 entries is within 5 standard errors of each.

    By the normal distribution, a right implementation fails in 20 * 6e-7 = 1e-5 of such tests; the
    draws are fixed, so this one passes always or never.
    """
    vector = torch.from_numpy(np.random.default_rng(3).normal(size=20))
    compression, rounds = Compression.parse("qsgd:3"), 4000
    found = torch.stack(
        [
            compression.unpack(compression.pack(vector, Keyed(0, t), 5, 1), 20, vector)
            for t in range(1, rounds + 1)
        ]
    )
    level = float(vector.abs().max()) / 3
    assert found.sub(vector).abs().max() <= level * (1 + 1e-9)
    deviation = (found.mean(0) - vector).abs() / (found.std(0) / math.sqrt(rounds) + 1e-12)
    assert deviation.max() < 5
    # Rounding to the nearest level, the obvious mistake, would be seen.
    nearest = (vector / level).round() * level
    assert ((nearest - vector).abs() / (found.std(0) / math.sqrt(rounds) + 1e-12)).max() > 50


def test_qsgd_draws_are_each_users_and_rounds_own():
    sent = update()
    one = through("qsgd:2", sent)["a.w"]
    assert torch.equal(one, through("qsgd:2", sent)["a.w"])
    assert not torch.equal(one, through("qsgd:2", sent, t=2)["a.w"])
    assert not torch.equal(one, through("qsgd:2", sent, number=1)["a.w"])


@pytest.mark.parametrize(
    ("text", "bytes_"),
    [
        # Layers of 15 and 2 numbers of 4 bytes; the first has a buffer of 4 bytes.
        ("fp16", [30 + 4, 4]),
        ("qsgd:4", [8 + 4 + 4, 1 + 4]),  # and the scale
        ("topk:0.2", [3 * 8 + 4, 8]),  # of every place and value 4 bytes; one at least
    ],
)
def test_bytes_by_hand_are_those_that_are_sent(text, bytes_):
    compression = Compression.parse(text)
    weights = {**LIKE, "a.mean": torch.zeros(1)}
    assert upload_bytes(LAYERS, weights, compression) == bytes_
    packed = Sender(compression, LAYERS, 0, 0).packed(update(), 1)
    assert sum(tensor.nbytes for tensor in packed.values()) == sum(bytes_)


@pytest.mark.parametrize("text", ["fp16", "qsgd:4", "topk:0.5"])
def test_what_cannot_be_unpacked_is_said(text):
    compression = Compression.parse(text)
    packed = Sender(compression, LAYERS, 0, 0).packed(update(), 1)
    for key in [key for key in packed if key.startswith("layer")]:
        alone = {} if text == "fp16" else {k: v for k, v in packed.items() if k != key}
        for bad in (
            alone or {**packed, "layer 1: more": packed[key]},
            {**packed, key: packed[key][:-1]},
            {**packed, key: packed[key].double()},
        ):
            with pytest.raises(ValueError, match=r"it has|wrong"):
                unpacked(bad, compression, LAYERS, LIKE)
    if text == "topk:0.5":
        for places in ([0], [2], [-1]):
            bad = {**packed, "layer 2: places": torch.tensor(places, dtype=torch.int32)}
            if places == [0]:
                unpacked(bad, compression, LAYERS, LIKE)
                continue
            with pytest.raises(ValueError, match="outside"):
                unpacked(bad, compression, LAYERS, LIKE)


@pytest.mark.parametrize("text", ["fp32", "fp16:2", "qsgd", "qsgd:1", "qsgd:9", "topk:0", "topk:2"])
def test_what_there_is_not_is_said(text):
    with pytest.raises(SalfError, match="compress must be"):
        PRESETS["digits-mlp"].changed(compress=text)


SMALL = PRESETS["digits-mlp"].changed(users=6, stragglers=0.3, rounds=60, threads=1)


@pytest.mark.parametrize(
    ("method", "text"), [("salf", "fp16"), ("drop", "qsgd:6"), ("mifa", "topk:0.2")]
)
def test_training_gets_about_as_far(method, text):
    plain = run(SMALL.changed(method=method)).history.test_accuracy
    assert run(SMALL.changed(method=method, compress=text)).history.test_accuracy > plain - 0.1


def test_uploads_take_less_time_and_bytes_on_a_fleets_link():
    fleet = SMALL.changed(fleet="phones", deadline="1000s", rounds=2)
    whole, less = (run(c).history.rows[-1] for c in (fleet, fleet.changed(compress="fp16")))
    assert less.clock < whole.clock
    assert less.bytes == pytest.approx(0.75 * whole.bytes)  # the download is as it was


def test_a_resumed_run_goes_on_with_what_users_have_not_sent(tmp_path):
    config = SMALL.changed(compress="topk:0.05", rounds=10)

    with pytest.raises(Stopped):
        run(config, tmp_path / "run", on_round=interrupted.at(4, Stopped))
    resumed = run(config, tmp_path / "run", resume=True)
    assert [row.train_loss for row in resumed.history.rows] == [
        row.train_loss for row in run(config).history.rows
    ]


def test_narrow_networks_have_no_residuals():
    with pytest.raises(SalfError, match="use compress='fp16'"):
        run(SMALL.changed(method="heterofl", compress="topk:0.1", rounds=1))
    assert run(SMALL.changed(method="heterofl", compress="qsgd:8", rounds=2)).history.rows


def test_only_topk_keeps_something():
    for text, kept in (("fp16", 0), ("topk:0.5", 2)):
        residuals = Residuals(Compression.parse(text), LAYERS, 0)
        residuals.of_round(1)(update(), None, 3)
        assert len(residuals.state()[1]) == kept
