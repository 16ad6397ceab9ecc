"""A user for whom nothing seems to fit finds out, soon and at a bounded cost, if that is so."""

import random

import pytest

from devices import prepared
from salf.core.deadline.times import Retry


def test_nothing_is_run_when_the_forward_pass_and_the_last_layer_cannot_fit():
    _, backpropagation, device, loss = prepared(forward=2.0)
    for _ in range(3):
        backpropagation.within(None, loss)
    partial = backpropagation.within(2.9, loss)
    assert device.forwards == 3
    assert (partial.depth, partial.gradients, partial.loss, partial.total) == (4, {}, None, 0.0)
    assert backpropagation.within(3.0, loss).depth == 3


def test_hiccups_in_the_first_rounds_do_not_end_a_user():
    _, backpropagation, device, loss = prepared()
    depths = []
    for number in range(40):
        device.speed = 0.1 if 1 <= number <= 6 else 1.0
        depths.append(backpropagation.within(4.5, loss).depth)
    assert depths[0] == 1
    assert set(depths[1:7]) == {4}
    assert set(depths[-20:]) == {1}


def test_a_forward_pass_that_is_slow_now_and_then_is_still_tried():
    """What it brings most of the time is worth more than the rounds in which it is in vain."""
    _, backpropagation, device, loss = prepared()
    depths = []
    for number in range(40):
        device.forward = 3.0 if number % 3 == 0 else 1.0
        depths.append(backpropagation.within(3.5, loss).depth)
    assert device.forwards == 40
    assert set(depths[2::3]) == {2}
    assert set(depths[3::3]) == {4}


@pytest.mark.parametrize("over", [1.1, 1.5, 3.0, 30.0])
def test_a_user_that_never_fits_is_late_in_fewer_than_5_percent_of_the_rounds(over):
    _, backpropagation, device, loss = prepared(forward=3.0)
    backpropagation.within(None, loss)
    deadline = 4.0 / over  # for a forward pass of 3 and a last layer of 1
    tries = []
    for _ in range(400):
        before = device.forwards
        backpropagation.within(deadline, loss)
        tries.append(device.forwards - before)
    assert sum(tries[:2]) == 2  # it takes three rounds to believe it
    assert sum(tries[2:100]) <= 4
    assert 10 <= sum(tries[2:]) <= 20


def test_a_user_that_becomes_fast_enough_takes_part_again_with_all_its_layers():
    _, backpropagation, device, loss = prepared()
    device.speed = 0.2
    for _ in range(100):
        assert backpropagation.within(4.5, loss).depth == 4
    device.speed = 1.0
    depths = [backpropagation.within(4.5, loss).depth for _ in range(70)]
    assert min(depths[:24]) < 4
    assert set(depths[-20:]) == {1}


def test_a_hiccup_in_the_only_last_layer_seen_does_not_keep_it_from_being_run():
    _, backpropagation, device, loss = prepared(costs={3: 20.0})
    backpropagation.within(None, loss)
    device.costs[3] = 1.0
    depths = [backpropagation.within(2.5, loss).depth for _ in range(40)]
    assert set(depths[-10:]) == {3}


@pytest.mark.parametrize("chance", [0.0, 0.01, 0.05, 0.1, 0.12, 0.125, 1.0])
def test_the_share_of_rounds_that_are_started_follows_the_chance(chance):
    retry, rounds = Retry(), []
    for _ in range(1000):
        rounds.append(retry.starts(chance))
        retry.learn(chance, started=rounds[-1])
    assert sum(rounds[3:]) == pytest.approx(997 * min(1, max(8 * chance, 1 / 24)), abs=2)


def test_a_deadline_that_is_over_before_the_round_saves_up_no_tries():
    _, backpropagation, device, loss = prepared(forward=3.0)
    for _ in range(3):
        backpropagation.within(None, loss)
    for _ in range(200):
        backpropagation.within(-1.0, loss)
    assert [backpropagation.within(2.0, loss).loss for _ in range(4)] == [None] * 4
    assert device.forwards == 3


# How many times as long as usual a stage takes, from a generator; of most, long times are frequent.
SLOWER = {
    "log-normal": lambda chance: chance.lognormvariate(0, 0.3),
    "heavy tail": lambda chance: 0.72 * chance.paretovariate(3),
}


def rounds_served(slower, seed, deadline, slow=range(0)):
    """Of 300: a forward pass of 30 seconds in three modules, and a last layer of 5, both noisy."""
    chance = random.Random(seed)
    model, backpropagation, device, loss = prepared(forward=0.0, costs={2: 2.0, 1: 4.0})
    left = {}
    for module, part in ((model[0], 15.0), (model[2], 12.0), (model[4], 3.0)):
        module.register_forward_hook(lambda *_, part=part: device.wait(part * left["forward"]))
    served = []
    for round in range(300):
        load = 2.0 if round in slow else 1.0
        left["forward"] = load * slower(chance)
        device.costs[3] = 5.0 * load * slower(chance)
        partial = backpropagation.within(deadline, loss)
        served.append(partial.depth <= 3 and partial.total <= deadline)
    return served


@pytest.mark.slow
@pytest.mark.parametrize("slower", SLOWER)
def test_users_for_whom_a_round_in_five_fits_are_served_alike(slower):
    """All users together, not only those that were lucky in their first rounds."""
    served = [sum(rounds_served(SLOWER[slower], seed, 29.0)) for seed in range(6)]
    assert min(served) >= max(served) / 2, served


@pytest.mark.slow
def test_users_that_were_too_slow_for_a_while_are_served_again():
    served = [
        rounds_served(SLOWER["log-normal"], seed, 33.0, slow=range(50, 90)) for seed in range(6)
    ]
    after = [sum(one[150:]) for one in served]
    assert min(after) >= max(after) / 2, after
