"""Updates on the wire and their inspection: what is broken is rejected, and changes nothing."""

import json
import struct
from dataclasses import replace
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load, save
from torch import nn

from salf.core.layers import Layer, Layers
from salf.live.inspection import Inspection
from salf.live.server import LiveServer, ServerSettings
from salf.live.update import (
    Rejected,
    Update,
    decode,
    encode,
    encode_model,
    size_of,
)
from salf.problem import Problem

INF, NAN = float("inf"), float("nan")


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 2))


MODEL = network()
LAYERS = Layers.of(MODEL)
WEIGHTS = {**dict(MODEL.named_parameters()), **dict(MODEL.named_buffers())}
SIZE = size_of(WEIGHTS)


def good(depth=1, scale=1.0, seconds=0.0):
    """An update as an honest user sends it."""
    tensors = {
        name: torch.ones_like(WEIGHTS[name], requires_grad=False)
        * (scale if WEIGHTS[name].is_floating_point() else 1)
        for layer in LAYERS.reached(depth)
        for name in (*layer.parameters, *layer.buffers)
    }
    return Update(depth, tensors, loss=0.5, seconds=seconds)


def inspected(update, inspection=None):
    (inspection or Inspection(LAYERS, WEIGHTS)).check(update)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_an_update_survives_the_wire(depth):
    sent = good(depth, seconds=0.25)
    came = decode(encode(sent), SIZE)
    assert (came.depth, came.loss, came.seconds) == (depth, 0.5, 0.25)
    assert came.tensors.keys() == sent.tensors.keys()
    for name, tensor in sent.tensors.items():
        assert came.tensors[name].dtype == tensor.dtype
        assert torch.equal(came.tensors[name], tensor)
        came.tensors[name].add_(0)  # it can be written to
    inspected(came)


def test_tensors_of_any_kind_survive_the_wire():
    """Also what is not contiguous, or shares memory."""
    kinds = torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.bool, torch.complex64
    sent = {
        f"{shape}/{kind}": (torch.randn(shape) * 9).to(kind)
        for kind in kinds
        for shape in ((), (3,), (2, 0), (2, 5))
    }
    table = torch.arange(6.0).reshape(2, 3)
    sent |= {"table": table, "turned": table.T}
    came = load(encode_model(sent))
    assert came.keys() == sent.keys()
    for name, tensor in sent.items():
        assert came[name].dtype == tensor.dtype
        assert torch.equal(came[name], tensor)


def without(name):
    tensors = dict(good().tensors)
    del tensors[name]
    return {"tensors": tensors}


def with_(**tensors):
    return {"tensors": {**good().tensors, **{k.replace("_", "."): v for k, v in tensors.items()}}}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"steps": 0}, "0 of 1 local steps, outside 1..1"),
        ({"steps": 2}, "2 of 1 local steps, outside 1..1"),
        ({"steps": 2, "planned": 2}, "2 of 2 local steps, outside 1..1"),
        ({"depth": 0}, "outside 1..3"),
        ({"depth": 4}, "outside 1..3"),
        ({"depth": 2}, "its depth does not reach"),
        ({"depth": 3}, "its depth does not reach"),
        (without("0.weight"), "'0.weight' is missing"),
        (without("3.bias"), "'3.bias' is missing"),
        (without("1.running_mean"), "'1.running_mean' is missing"),
        (with_(stranger=torch.zeros(2)), "'stranger', which is not in the model"),
        (with_(**{"3.bias": torch.zeros(3)}), "has shape (3,), expected (2,)"),
        (with_(**{"3.bias": torch.zeros(2, dtype=torch.float64)}), "has type torch.float64"),
        (with_(**{"3.bias": torch.tensor([0.0, float("nan")])}), "'3.bias' is not finite"),
        (with_(**{"0.bias": torch.tensor([0.0, 1.0, float("inf")])}), "'0.bias' is not finite"),
    ],
)
def test_what_is_wrong_is_said(changes, reason):
    with pytest.raises(Rejected) as told:
        inspected(replace(good(), **changes))
    assert reason in str(told.value)


def test_a_given_bound_holds_for_every_layer():
    tight = Inspection(LAYERS, WEIGHTS, max_norm=2.0)
    tight.check(good(depth=2, scale=0.5))
    with pytest.raises(Rejected, match=r"gradient of layer 2 .* is 2\.83, above the limit 2$"):
        tight.check(good(depth=2))


class TestBuffers:
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))

    def inspection(self):
        weights = {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}
        return Inspection(Layers.of(self.model), weights)

    def update(self, mean=0.1, var=0.0, count=1):
        tensors = {name: torch.ones_like(p) for name, p in self.model.named_parameters()}
        tensors["1.running_mean"] = torch.full((3,), mean)
        tensors["1.running_var"] = torch.full((3,), var)
        tensors["1.num_batches_tracked"] = torch.tensor(count)
        return Update(1, tensors)

    def test_must_not_make_a_variance_negative(self):
        with pytest.raises(Rejected, match="makes a variance negative"):
            self.inspection().check(self.update(var=-1.1))

    def test_must_be_finite(self):
        with pytest.raises(Rejected, match=r"'1.running_mean' is not finite"):
            self.inspection().check(self.update(mean=float("nan")))


def test_complex_parameters_are_looked_at_too():
    weights = {"w": nn.Parameter(torch.zeros(2, dtype=torch.complex64))}
    inspection = Inspection(Layers([Layer("w", ("w",))]), weights)
    inspection.check(Update(1, {"w": torch.tensor([1j, 2.0])}))
    with pytest.raises(Rejected, match="not finite"):
        inspection.check(Update(1, {"w": torch.tensor([1j * torch.nan, 2])}))


def test_huge_but_finite_values_do_not_overflow_the_norm():
    with pytest.raises(Rejected, match="norm"):
        Inspection(LAYERS, WEIGHTS, max_norm=1.0).check(good(depth=2, scale=3e38))


def test_an_update_larger_than_the_model_is_not_even_read():
    with pytest.raises(Rejected, match="too large"):
        decode(b"\0" * (SIZE + 1), SIZE)


def raw(about, tensors=None):
    return save(tensors or {}, {"update": json.dumps(about)})


ABOUT = {
    **{"depth": 3, "steps": 1, "planned": 1, "rows": 0},
    **{"loss": 0.0, "seconds": 0.0, "pace": 0.0},
}


@pytest.mark.parametrize(
    "change",
    [
        *({"depth": value} for value in (None, -1, 1.5, True, "1", 10**400)),
        {"steps": None},
        {"planned": 2.5},
        {"loss": "0"},
        *({key: value} for key in ("loss", "seconds") for value in (NAN, INF, 10**400, -(10**400))),
    ],
)
def test_a_broken_header_is_rejected(change):
    decode(raw(ABOUT), SIZE)
    with pytest.raises(Rejected):
        decode(raw({**ABOUT, **change}), SIZE)


@cache
def a_server():
    return LiveServer(Problem(network(), LAYERS), 1.0, ServerSettings(unreached=[0.0, 0.0]))


def attempt(data):
    """Feed bytes to a server; whether they were accepted. If not, nothing has moved."""
    server = a_server()
    server.open(["a"])
    if server.take("a", data) is not None:
        a_server.cache_clear()
        return True
    row = server.close()
    assert row.depths == {"a": 3}
    assert row.rejected
    for name, tensor in server.weights.items():
        assert torch.equal(tensor, WEIGHTS[name])
    return False


WHOLE = encode(good())


@settings(max_examples=500)
@given(st.integers(0, 10**6), st.integers(0, 255), st.sampled_from(["set", "cut", "insert"]))
def test_a_damaged_update_is_rejected_or_a_whole_one(place, byte, how):
    at = place % len(WHOLE)
    damaged = {
        "set": WHOLE[:at] + bytes([byte]) + WHOLE[at + 1 :],
        "cut": WHOLE[:at],
        "insert": WHOLE[:at] + bytes([byte]) + WHOLE[at:],
    }[how]
    if attempt(damaged):  # a byte of a number may have become another
        assert len(damaged) == len(WHOLE)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


@settings(max_examples=100)
@given(json_values, st.integers(-8, 8), st.binary(max_size=400))
def test_anything_is_rejected_unless_it_is_an_update(header, off_by, data):
    assert not attempt(data)
    text = json.dumps(header).encode()
    length = max(0, len(text) + off_by)
    assert not attempt(struct.pack("<Q", length) + text)
    metadata = json.dumps({"__metadata__": {"update": json.dumps(header)}}).encode()
    assert not attempt(struct.pack("<Q", len(metadata)) + metadata)


def test_a_header_nested_without_end_is_rejected():
    deep = b"[" * 3000
    assert not attempt(struct.pack("<Q", len(deep)) + deep)


@settings(max_examples=100)
@given(
    st.dictionaries(
        st.sampled_from([*WEIGHTS, "stranger", ""]),
        st.tuples(
            st.lists(st.integers(0, 5), max_size=3),
            st.sampled_from([torch.float32, torch.float64, torch.int64, torch.bool]),
            st.sampled_from([0.0, 1.0, 1e30, float("nan"), float("-inf")]),
        ),
    ),
    st.integers(-1, 5),
)
def test_tensors_of_any_kind_are_accepted_only_as_a_whole_good_update(tensors, depth):
    made = {}
    for name, (shape, dtype, value) in tensors.items():
        finite = value == value and abs(value) < 1e29
        made[name] = torch.full(shape, value if dtype.is_floating_point or finite else 0).to(dtype)
    if attempt(raw({**ABOUT, "depth": depth}, made)):
        due = {n for layer in LAYERS.reached(depth) for n in (*layer.parameters, *layer.buffers)}
        assert made.keys() == due
        assert all(torch.isfinite(t).all() and t.shape == WEIGHTS[n].shape for n, t in made.items())
