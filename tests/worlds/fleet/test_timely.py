"""TimelyFL against rounds worked out by hand."""

import by_hand
import numpy as np
import pytest
import torch
from by_hand import HALF, rounds, timing

import salf
from nets import small_mlp
from reference import assert_close, copy_of
from salf.common.errors import SalfError
from salf.core.arrivals import Arrivals
from salf.core.draws import Keyed
from salf.methods import method
from salf.worlds.base import AtDeadline
from salf.worlds.depth import Uniform
from salf.worlds.fleet.devices import MULTIPLY_ADDS
from salf.worlds.fleet.jitter import Jitter
from salf.worlds.fleet.world import OnFleet

# Seconds of layer 2 (with the forward pass) and of all of a step: 0.6 of 1, 1.2 of 2, 2 of 3 1/3.
SPEEDS = [5.0, 2.5, 1.5]


@pytest.fixture(autouse=True, params=[MULTIPLY_ADDS, HALF], ids=["rows", "launches"])
def kind(request, monkeypatch):
    monkeypatch.setattr(by_hand, "CLASSES", [request.param])
    return request.param


def timely(fastest, **settings):
    return method("timelyfl", fastest=fastest).world(
        OnFleet(timing(**{"speeds": SPEEDS, **settings}), None)
    )


@pytest.mark.parametrize(
    ("fastest", "seconds", "steps", "depths"),
    [
        # T = 1 s: user 0 does a step; users 1 and 2 have no layer by then.
        (1 / 3, 1.0, [1, 1, 1], [1, 3, 3]),
        # T = 2 s: user 0 does two steps, user 2 layer 2 alone.
        (2 / 3, 2.0, [2, 1, 1], [1, 1, 2]),
        # T = 3.33 s: user 0 does three steps; user 1 one, which its time for two is too short for.
        (1.0, 10 / 3, [3, 1, 1], [1, 1, 1]),
    ],
)
def test_users_are_given_what_fits_into_the_time_of_the_fastest(fastest, seconds, steps, depths):
    found, memory = rounds(timely(fastest), 2)
    for arrived in found:
        assert arrived.steps.tolist() == steps
        assert arrived.depth.tolist() == depths
        assert arrived.spent.seconds == pytest.approx(seconds)
    assert memory[0, 0] == pytest.approx(2 * seconds)


def test_what_was_done_and_waited_is_that_of_the_work_given():
    """A step is 5 multiply-adds, layer 2 with the forward pass 3; done after 2, 2 and 2 s."""
    ((arrived,), _) = rounds(timely(2 / 3), 1)
    assert arrived.spent.work.tolist() == [10, 5, 3]
    assert arrived.spent.counted.tolist() == [10, 5, 3]
    np.testing.assert_allclose(arrived.spent.waited, 0, atol=1e-12)


def test_links_count_once_however_many_steps_there_are():
    """30 bytes at 30 bytes/s down and up: t_com = 2 s; t_cmp = 1, 2, 3.33 s; T = 4 s with k = 2.

    User 0 has 2 s to compute: two steps. User 2 has layer 2 after 1 + 2 + 10/30 s.
    """
    ((arrived,), _) = rounds(timely(2 / 3, up=30.0, down=30.0), 1)
    assert arrived.spent.seconds == pytest.approx(4.0)
    assert arrived.steps.tolist() == [2, 1, 1]
    assert arrived.depth.tolist() == [1, 1, 2]


def test_planned_local_steps_are_repeated_as_a_whole():
    """Two steps take 2, 4 and 6.67 s. T = 4 s: 4 steps, 2 steps, and 1 complete step and no more.

    User 2 has 3.33 s for a step and 5.33 s for layer 2 of the next one.
    """
    ((arrived,), _) = rounds(timely(2 / 3, steps=2), 1)
    assert arrived.planned.tolist() == [4, 2, 2]
    assert arrived.steps.tolist() == [4, 2, 1]
    assert arrived.depth.tolist() == [1, 1, 1]
    assert arrived.straggler.tolist() == [False, False, True]


class Slower(Jitter):
    """In round 1 user 1 needs 1.5 times as long as usual."""

    def complete(self, nominal, draws, users):
        factor = np.where((users == 1) & (draws.t == 1), 1.5, 1.0)
        return nominal.cumsum(axis=1) * factor[:, None]


def test_a_user_that_is_slower_in_a_round_is_given_less():
    """T is 3 s, the second fastest of 1, 3 and 3.33 s: 3 steps, 1 step, layer 2."""
    first, second = rounds(timely(2 / 3, jitter=Slower()), 2)[0]
    assert first.steps.tolist() == [3, 1, 1]
    assert first.depth.tolist() == [1, 1, 2]
    assert first.spent.seconds == pytest.approx(3.0)
    assert second.spent.seconds == pytest.approx(2.0)


def test_each_layer_is_averaged_over_those_that_trained_it():
    arrived = Arrivals(np.array([1, 1, 2]), steps=np.array([2, 1, 1]), planned=np.array([2, 1, 1]))
    found = method("timelyfl").weights(arrived, np.zeros(2))
    np.testing.assert_allclose(found, [[1 / 2, 1 / 2, 0], [1 / 3, 1 / 3, 1 / 3]])


def test_only_some_users_are_asked():
    """Of users 0 and 2 the faster one is done after 1 s."""
    made = timely(0.5)
    arrived, _ = made.arrivals(1, Keyed(0, 1), np.array([0, 2]), made.start())
    assert arrived.user.tolist() == [0, 2]
    assert arrived.spent.seconds == pytest.approx(1.0)
    assert arrived.depth.tolist() == [1, 3]


def trained(engine):
    torch.manual_seed(0)
    data = torch.randn(40, 4).double(), torch.randint(0, 3, (40,))
    fleet, model = salf.Fleet.of([8e3, 2e3, 1.3e3, 5e2]), small_mlp()
    settings = {"users": 4, "rounds": 3, "batch_size": 5, "momentum": 0.0, "lr": 0.1}
    history = salf.train(
        model, data, method=method("timelyfl"), fleet=fleet, engine=engine, **settings
    )
    return history, copy_of(model)


def test_a_run_takes_more_local_steps_than_planned_where_they_fit_on_any_engine_for_them():
    loop, stacked = trained("loop"), trained("stacked")
    assert_close(stacked[1], loop[1], 1e-10)
    for history, _ in (loop, stacked):
        assert [row.reached for row in history.rows] == [(2, 2, 3)] * 3
    assert trained("auto")[0].engine == "stacked"
    work = loop[0].rows[0].work
    assert work > 3 * 5 * 68 * 2  # four steps of user 0 and one of user 1, of 68 weights


def test_it_says_what_it_needs():
    with pytest.raises(SalfError, match="needs a clock"):
        method("timelyfl").world(AtDeadline(Uniform(3, 2)))
    with pytest.raises(SalfError, match="fastest of timelyfl must be above 0"):
        method("timelyfl", fastest=0)
    with pytest.raises(SalfError, match="at least 1, not 0"):
        method("timelyfl", most=0)


@pytest.mark.parametrize("most", [2, 1000])
def test_no_user_repeats_its_steps_more_often_than_allowed(most):
    """In the 2 s of the second user, the first could do its step 20 times."""
    devices = OnFleet(timing(speeds=[50.0, 2.5, 1.5]), None)
    world = method("timelyfl", fastest=2 / 3, most=most).world(devices)
    ((arrived,), _) = rounds(world, 1)
    assert arrived.steps.tolist()[:2] == [min(most, 20), 1]
