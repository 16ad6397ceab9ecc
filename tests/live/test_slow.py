"""Users made slow: by pauses, in every layer, and before the deadline."""

import time
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from salf.common.errors import SalfError
from salf.core.deadline import Backpropagation
from salf.core.layers import Layers
from salf.live import slow
from salf.live.slow import Slowdown, slowness


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(200, 200), nn.ReLU(inplace=True), nn.Linear(200, 200), nn.Linear(200, 5)
    )


class Clock:
    """Processor time, in which other programs have no part, and pauses."""

    def __init__(self):
        self.paused = 0.0

    def now(self):
        return time.thread_time() + self.paused

    def sleep(self, seconds):
        self.paused += seconds


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    shown = SimpleNamespace(sleep=clock.sleep, thread_time=time.thread_time, perf_counter=clock.now)
    monkeypatch.setattr(slow, "time", shown)
    return clock


def passes(factor, clock):
    """A model's forward and whole backward pass."""
    model = network()
    if factor > 1:
        Slowdown(model, factor)
    backpropagation = Backpropagation(model, Layers.of(model), now=clock.now)
    inputs, labels = torch.randn(256, 200), torch.randint(0, 5, (256,))

    def once():
        return backpropagation.within(None, lambda: F.cross_entropy(model(inputs), labels))

    return once


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_every_stage_takes_that_many_times_as_long_and_the_gradients_are_the_same(clock):
    plain, slowed = passes(1, clock), passes(10, clock)
    pairs = [(plain(), slowed()) for _ in range(15)][5:]
    for ours, theirs in pairs:
        for name, gradient in ours.gradients.items():
            assert torch.equal(gradient, theirs.gradients[name])

    def middle(times):
        return sorted(times)[len(times) // 2]

    for stage in (lambda p: p.forward, *(lambda p, n=n: p.layers[n] for n in (1, 2, 3))):
        ratio = middle([stage(theirs) for _, theirs in pairs]) / middle(
            [stage(ours) for ours, _ in pairs]
        )
        assert 3 < ratio < 30  # 10, on a machine where nothing else happens


def test_a_slow_user_stops_at_the_deadline_like_any_other(clock):
    model = network()
    Slowdown(model, 50)
    backpropagation = Backpropagation(model, Layers.of(model), now=clock.now)
    inputs, labels = torch.randn(256, 200), torch.randint(0, 5, (256,))

    def loss():
        return F.cross_entropy(model(inputs), labels)

    full = min((backpropagation.within(None, loss) for _ in range(5)), key=lambda p: p.total)
    assert full.depth == 1
    assert backpropagation.within(0.8 * full.total, loss).depth > 1


@pytest.mark.parametrize(
    ("spec", "users", "expected"),
    [
        ("", 3, [1, 1, 1]),
        ("0.5x8", 4, [8, 8, 1, 1]),
        ("0.25x4,0.5x16", 4, [4, 16, 16, 1]),
        ("1x2", 2, [2, 2]),
        (".1x1.5", 10, [1.5] + [1] * 9),
    ],
)
def test_who_is_slow(spec, users, expected):
    assert slowness(spec, users) == expected


@pytest.mark.parametrize("spec", ["8", "0.5", "x8", "0.5x", "2x8", "0.5x0.5", "0.6x2,0.6x3", "ax"])
def test_what_cannot_be_read_is_refused_in_a_sentence(spec):
    with pytest.raises(SalfError, match=r"SHARExFACTOR|share must be|slows down more users"):
        slowness(spec, 10)
