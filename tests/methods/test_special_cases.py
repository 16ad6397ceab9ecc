"""Where the methods must coincide, and where nothing may move."""

import numpy as np
import pytest
import torch

from nets import small_mlp, small_normed
from reference import (
    ANY_MODEL,
    ANY_WORLD,
    Scripted,
    assert_close,
    assert_same,
    copy_of,
    data,
    equal_shares,
    has_average,
    simulate,
    steps,
)
from salf.methods import METHODS
from salf.worlds.depth import Mixture

USERS, SIZE = 4, 4
MODELS = {"mlp": small_mlp, "batch norm": small_normed}


def run(name, depth, model="mlp", rounds=3, momentum=0.5, **more):
    sim = simulate(MODELS[model](), name, depth, size=SIZE, momentum=momentum, **more)
    return steps(sim, rounds)[-1], sim


@pytest.mark.parametrize("engine", ANY_MODEL)
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    ("name", "average"),
    [
        (name, average)
        for name in sorted(set(ANY_WORLD) - {"fedavg", "feddyn"})
        for average in (("reached", "all") if has_average(name) else ("reached",))
    ],
)
def test_with_no_stragglers_every_method_is_fedavg(name, average, model, engine):
    """Bit for bit, unless a method adds things up in another order.

    HeteroFL divides the sum instead of summing shares; methods with memory add what is new, and
    SCAFFOLD changes every user's gradient. FedDyn's step is another one.
    """
    depth = Mixture(USERS, 3, 0.0)
    found, _ = run(name, depth, model, engine=engine, options={"average": average})
    wanted, _ = run("fedavg", depth, model, engine=engine)
    adds_differently = METHODS[name]().asks.narrows and average == "reached"
    made = METHODS[name]()
    if adds_differently or made.defines("server_state") or made.memory() is not None:
        assert_close(found, wanted, 1e-14)
    else:
        assert_same(found, wanted)


def test_with_stragglers_no_method_is_fedavg():
    """Otherwise the test above would compare FedAvg with itself."""
    depth = Mixture(USERS, 3, 0.75)
    wanted, _ = run("fedavg", depth)
    for name in set(ANY_WORLD) - {"fedavg"}:
        found, _ = run(name, depth)
        assert any(not torch.equal(found[key], wanted[key]) for key in wanted), name


@pytest.mark.parametrize("engine", ANY_MODEL)
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("average", ["reached", "all"])
@pytest.mark.parametrize("name", ["salf", "drop"])
def test_when_nobody_sends_anything_nothing_moves(name, average, model, engine):
    """After rounds that filled the momentum; weights, buffers and momentum stay bit for bit."""
    busy, none = [1, 1, 2, 1], [4] * USERS
    script = Scripted([busy, busy, none, none], 3)
    options = {"average": average}
    found, sim = run(name, script, model, rounds=2, engine=engine, options=options)
    velocity = {key: value.clone() for key, value in sim.server.state["velocity"].items()}
    assert max(value.abs().max().item() for value in velocity.values()) > 0
    for _ in range(2):
        record = sim.step()
        assert record.reached == (0, 0, 0)
        assert np.isnan(record.train_loss)
    assert_same(copy_of(sim.model), found)
    assert_same(sim.server.state["velocity"], velocity)


@pytest.mark.parametrize("engine", ANY_MODEL)
@pytest.mark.parametrize("model", MODELS)
def test_a_layer_nobody_reached_stays_bit_for_bit_while_others_move(model, engine):
    """Layers 1 and 2 are reached in round 1 only, so their momentum is not zero in round 2."""
    script = Scripted([[1, 1, 1, 1], [3, 4, 3, 3]], 3)
    before, sim = run("salf", script, model, rounds=1, engine=engine)
    velocity = {key: value.clone() for key, value in sim.server.state["velocity"].items()}
    assert sim.step().reached == (0, 0, 3)
    after = copy_of(sim.model)
    layers = sim.engine.layers
    for name, index in layers.index_of.items():
        moved = not torch.equal(after[name], before[name])
        assert moved == (index == 2), name
        if name in velocity:
            kept = torch.equal(sim.server.state["velocity"][name], velocity[name])
            assert kept == (index != 2), name


@pytest.mark.parametrize("engine", ANY_MODEL)
def test_server_momentum_is_the_users_own_momentum_when_all_take_part(engine):
    """Each user with torch's SGD and a momentum of its own, the server averaging their models.

    Equal in exact arithmetic, here to rounding.
    """
    rounds, rate, momentum = 5, 0.1, 0.5
    net = small_mlp()
    inputs, targets = data(USERS, SIZE, (4,))
    w = copy_of(net)
    # Batch = share, so each round's batch is the whole share and known here.
    shares, more = equal_shares(USERS, SIZE), {"size": SIZE, "batch": SIZE, "engine": engine}
    sim = simulate(net, "salf", Mixture(USERS, 3, 0.0), rate=rate, momentum=momentum, **more)
    nets = [small_mlp() for _ in range(USERS)]
    optimisers = [torch.optim.SGD(own.parameters(), rate, momentum) for own in nets]
    for _ in range(rounds):
        sim.step()
        for own, optimiser, share in zip(nets, optimisers, shares, strict=True):
            own.load_state_dict(w)
            optimiser.zero_grad()
            loss = torch.nn.functional.cross_entropy(own(inputs[share]), targets[share])
            loss.backward()
            optimiser.step()
        users = [copy_of(own) for own in nets]
        w = {name: sum(user[name] for user in users) / USERS for name in w}
    assert_close(copy_of(net), w, 1e-13)
    plain, _ = run("salf", Mixture(USERS, 3, 0.0), momentum=0.0, rounds=rounds)
    assert any((plain[name] - w[name]).abs().max() > 1e-3 for name in w)
