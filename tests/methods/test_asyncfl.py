"""AsyncFL against a slow simulation written from the paper's sentence alone."""

import numpy as np
import pytest
import torch

from nets import small_mlp, small_normed
from reference import (
    ANY_MODEL,
    Scripted,
    assert_close,
    assert_same,
    copy_of,
    data,
    gradients,
    shape_of,
    simulate,
    steps,
)
from salf.core.draws import Keyed
from salf.methods import method
from salf.worlds.base import AtDeadline

USERS, SIZE = 4, 3
# Round by round: each user's depth, and who straggles. Busy users' entries do not matter.
#   user 1 straggles at depth 1 in round 1: busy in 1 and 2, delivers in 3
#   user 2 straggles at depth 2 in round 2: busy in 2..5, delivers in 6
#   user 1 straggles again in round 3, the round it delivers: depth 2, busy in 3..6, delivers in 7
#   user 3 straggles at depth 1 in round 5: busy in 5 and 6, delivers in 7, with user 1
SCRIPT = [[1, 1, 1, 1], [1, 1, 2, 1], [1, 2, 1, 1], [1, 1, 1, 1], [1, 1, 1, 1]] + [[1] * 4] * 4
STRAGGLERS = [[1], [2], [1], [], [3], [], [], [], []]
ROUNDS = len(SCRIPT)


def script():
    return Scripted(SCRIPT, 3, stragglers=STRAGGLERS)


def slow_asyncfl(
    net, inputs, targets, delay=2, stale="difference", discount=0.0, over_all=False, rate=0.1, m=0.0
):
    """One user at a time. Every user's batch is its whole share. Returns the weights by round."""
    w = copy_of(net)
    trainable = [name for name, _ in net.named_parameters()]
    velocity = {name: torch.zeros_like(w[name]) for name in trainable}
    job = {}  # user -> (model it was given, round it was given, round it delivers)
    history = []
    for t in range(1, ROUNDS + 1):
        taking_part = []  # (weight, the model it computed on)
        for user in range(USERS):
            if user in job and job[user][2] > t:
                continue
            late = user in STRAGGLERS[t - 1]
            if user in job:
                old, since, _ = job.pop(user)
                taking_part.append((user, (1 + t - since) ** -discount, old))
            elif not late:
                taking_part.append((user, 1.0, w))
            if late:
                job[user] = (w, t, t + delay * SCRIPT[t - 1][user])
        whole = USERS if over_all else sum(weight for _, weight, _ in taking_part)
        new = {name: value.clone() for name, value in w.items()}
        mean = {name: torch.zeros_like(value) for name, value in w.items()}
        for user, weight, model in taking_part:
            share = slice(user * SIZE, (user + 1) * SIZE)
            found = gradients(net, inputs[share], targets[share], weights=model)
            for name, value in found.items():
                if value.is_floating_point():
                    mean[name] += weight / whole * value
                    if stale == "model":
                        new[name] += weight / whole * (model[name] - w[name])
                else:
                    mean[name] = torch.maximum(mean[name], value)
        for name, value in mean.items():
            if name in velocity:
                velocity[name] = m * velocity[name] + value
                new[name] -= rate * velocity[name]
            else:
                new[name] += value
        w = new
        history.append(w)
    return history


@pytest.mark.parametrize("engine", ANY_MODEL)
@pytest.mark.parametrize("make", [small_mlp, small_normed])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"stale": "model"},
        {"delay": 1},
        {"delay": 3, "discount": 0.5},
        {"discount": 1.0, "stale": "model"},
        {"average": "all"},
        {"average": "all", "stale": "model", "discount": 2.0},
    ],
    ids=str,
)
def test_the_weights_are_those_of_the_slow_simulation(options, make, engine):
    net, said = make(), dict(options)
    inputs, targets = data(USERS, SIZE, shape_of(net))
    more = {"size": SIZE, "batch": SIZE, "momentum": 0.5}
    sim = simulate(net, "asyncfl", script(), engine=engine, options=options, **more)
    over_all = said.pop("average", "reached") == "all"
    wanted = slow_asyncfl(make(), inputs, targets, over_all=over_all, m=0.5, **said)
    for found, weights in zip(steps(sim, ROUNDS), wanted, strict=True):
        assert_close(found, weights, 1e-11)


def test_a_straggler_of_depth_d_delivers_2d_rounds_later_on_the_model_it_was_given():
    """Which user takes part in which round, and on which round's model."""
    rule, users, found = method("asyncfl"), np.arange(USERS), []
    world = rule.world(AtDeadline(script()))
    memory = world.start()
    for t in range(1, ROUNDS + 1):
        unreached = world.unreached(t, users, memory)
        arrived, memory = world.arrivals(t, Keyed(0, t), users, memory)
        groups = rule.plan(t, arrived, unreached).groups
        found.append({(int(user), group.given) for group in groups for user in group.users})
    assert found == [
        {(0, 1), (2, 1), (3, 1)},
        {(0, 2), (3, 2)},
        {(0, 3), (1, 1), (3, 3)},
        {(0, 4), (3, 4)},
        {(0, 5)},
        {(0, 6), (2, 2)},
        {(0, 7), (1, 3), (2, 7), (3, 5)},
        {(0, 8), (1, 8), (2, 8), (3, 8)},
        {(0, 9), (1, 9), (2, 9), (3, 9)},
    ]


@pytest.mark.parametrize("options", [{}, {"stale": "model"}])
def test_the_models_kept_are_those_of_users_who_have_not_delivered(options):
    net, kept = small_mlp(), []
    sim = simulate(net, "asyncfl", script(), size=SIZE, batch=SIZE, options=options)
    start = copy_of(net)
    for _ in range(ROUNDS):
        sim.step()
        kept.append(set(sim.old))
        if 1 in sim.old:
            assert_same({name: sim.old[1][name].detach() for name in start}, start)
    assert kept == [{1}, {1, 2}, {2, 3}, {2, 3}, {2, 3, 5}, {3, 5}, set(), set(), set()]


@pytest.mark.parametrize("engine", ANY_MODEL)
def test_when_everybody_is_busy_nothing_moves(engine):
    """All four straggle at depth 1 in round 1, so nobody takes part in rounds 1 and 2."""
    law = Scripted([[1] * 4] * 3, 3, stragglers=[[0, 1, 2, 3], [], []])
    net = small_mlp()
    start = copy_of(net)
    sim = simulate(net, "asyncfl", law, momentum=0.5, engine=engine)
    for _ in range(2):
        assert np.isnan(sim.step().train_loss)
        assert_same(copy_of(net), start)
    assert sim.step().reached == (4, 4, 4)
