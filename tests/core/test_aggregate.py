"""Sums fed one update at a time, and the averages made of them."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from salf.common.errors import SalfError
from salf.core.aggregate import LayerwiseAggregate
from salf.core.layers import Layer, Layers

LAYERS = Layers([Layer("a", ("a.w", "a.b"), ("a.mean", "a.count")), Layer("b", ("b.w",))])
LIKE = {
    "a.w": torch.zeros(4, 3, dtype=torch.float64),
    "a.b": torch.zeros(4, dtype=torch.float64),
    "a.mean": torch.zeros(4, dtype=torch.float64),
    "a.count": torch.zeros((), dtype=torch.int64),
    "b.w": torch.zeros(2, 4, dtype=torch.float64),
}
for name in ("a.w", "a.b", "b.w"):
    LIKE[name].requires_grad_()


def aggregate():
    return LayerwiseAggregate(LAYERS, LIKE)


def full(name, value):
    return torch.full_like(LIKE[name], value, requires_grad=False)


def test_the_mean_is_over_the_users_that_reached_the_layer_and_corrected_by_p():
    found = aggregate()
    found.add({"a.w": full("a.w", 1.0), "b.w": full("b.w", 2.0)})
    found.add({"b.w": full("b.w", 6.0)})
    assert found.reached.tolist() == [1, 2]
    step = found.average()
    assert step.values["a.w"][0, 0].item() == 1
    assert step.values["b.w"][0, 0].item() == 4
    step = found.total([1, 2], divisor=[1 * 0.5, 2 * 0.8])
    assert step.values["a.w"][0, 0].item() == pytest.approx(2)
    assert step.values["b.w"][0, 0].item() == pytest.approx(5)


def test_a_layer_nobody_reached_is_not_in_the_step():
    found = aggregate()
    found.add({"b.w": full("b.w", 1.0)})
    assert set(found.total([0, 1]).values) == {"b.w"}
    assert aggregate().average().values == {}


def test_the_total_weighs_each_layer_by_its_own_weight():
    found = aggregate()
    found.add({"a.w": full("a.w", 1.0), "b.w": full("b.w", 1.0)}, [0.5, 0.25])
    found.add({"a.w": full("a.w", 2.0), "b.w": full("b.w", 4.0)}, [0.1, 0.5])
    step = found.total([0.6, 0.75])
    assert step.values["a.w"][0, 0].item() == pytest.approx(0.7)
    assert step.values["b.w"][0, 0].item() == pytest.approx(2.25)


def test_buffers_are_averaged_like_their_layer_and_counters_are_not_averaged():
    found = aggregate()
    for mean, count in ((1.0, 1), (3.0, 2)):
        found.add({"a.mean": full("a.mean", mean), "a.count": full("a.count", count)}, [0.5, 0])
    assert found.total([1, 0]).values["a.mean"][0].item() == 2
    assert found.average().values["a.count"].item() == 2
    assert found.average().values["a.count"].dtype == torch.int64


def test_buffers_are_not_stretched_by_p_because_they_would_overshoot():
    found = aggregate()
    found.add({"a.w": full("a.w", 1.0), "a.mean": full("a.mean", 1.0)}, [4.0, 1.0])
    found.add({"a.w": full("a.w", 3.0), "a.mean": full("a.mean", 3.0)}, [4.0, 1.0])
    step = found.total([8.0, 2.0])  # c = 1/(2 (1 - 7/8))
    assert step.values["a.w"][0, 0].item() == 16
    assert step.values["a.mean"][0].item() == 2

    found = aggregate()
    found.add({"a.w": full("a.w", 1.0), "a.mean": full("a.mean", 1.0)})
    step = found.total([1, 0], divisor=[0.25, 1])
    assert step.values["a.w"][0, 0].item() == 4
    assert step.values["a.mean"][0].item() == 1


def test_updates_are_not_kept_or_written_to():
    """Fed one at a time: what was handed in may be changed or thrown away afterwards."""
    found, update = aggregate(), {"b.w": full("b.w", 1.0)}
    found.add(update)
    found.add(update)
    assert update["b.w"].unique().tolist() == [1]
    update["b.w"].fill_(100)
    assert found.average().values["b.w"].unique().tolist() == [1]


def test_a_sum_over_several_users_counts_as_that_many():
    found = aggregate()
    found.add_sum({"a.w": full("a.w", 6.0), "b.w": full("b.w", 6.0)}, users=[2, 3])
    found.add({"b.w": full("b.w", 6.0)})
    assert found.reached.tolist() == [2, 4]
    assert found.average().values["a.w"][0, 0].item() == 3
    assert found.average().values["b.w"][0, 0].item() == 3


def test_names_outside_the_layers_are_refused():
    with pytest.raises(SalfError, match=r"'c.w', which is in no layer"):
        aggregate().add({"c.w": torch.zeros(1)})


HALF = {"a.w": (slice(2), slice(3)), "a.b": (slice(2),), "b.w": (slice(2), slice(2))}


def narrow(value):
    return {
        name: torch.full_like(LIKE[name][where], value, requires_grad=False)
        for name, where in HALF.items()
    }


@given(st.lists(st.tuples(st.booleans(), st.floats(-5, 5)), min_size=1, max_size=8))
def test_entries_are_averaged_over_their_holders_whatever_the_order_of_arrival(users):
    """Against a numpy loop over entries."""
    found = aggregate()
    sums = {name: np.zeros(LIKE[name].shape) for name in HALF}
    holders = {name: np.zeros(LIKE[name].shape) for name in HALF}
    for is_narrow, value in users:
        if is_narrow:
            found.add(narrow(value), held=HALF)
        else:
            found.add({name: full(name, value) for name in HALF})
        for name, where in HALF.items():
            where = where if is_narrow else ...
            sums[name][where] += value
            holders[name][where] += 1
    step = found.average()
    for name in HALF:
        wanted = sums[name] / np.maximum(holders[name], 1)
        np.testing.assert_allclose(step.values[name].numpy(), wanted, rtol=1e-12, atol=1e-12)
        if (holders[name] == 0).any():
            np.testing.assert_array_equal(step.held[name].numpy(), holders[name] > 0)
        else:
            assert name not in step.held


def test_a_name_that_only_some_users_of_a_layer_send_is_averaged_over_those_who_sent_it():
    """HeteroFL's narrow users send no running statistics; a mean must not count them."""
    for order in ("whole, narrow", "narrow, whole"):
        found = aggregate()
        for user in order.split(", "):
            if user == "narrow":
                found.add(narrow(1.0), held=HALF)
            else:
                found.add({"a.w": full("a.w", 1.0), "a.mean": full("a.mean", 8.0)})
        assert found.average().values["a.mean"].unique().tolist() == [8]
