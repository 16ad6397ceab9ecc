"""Several local steps: what a user delivers, and the engines that compute it."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import salf
from nets import make as make_net
from nets import small_mlp, small_normed
from reference import (
    ANY_WORLD,
    Scripted,
    assert_close,
    assert_same,
    copy_of,
    data,
    equal_shares,
    gradients,
    simulate,
)
from salf.common.errors import SalfError
from salf.core.arrivals import Arrivals
from salf.core.draws import Keyed
from salf.core.layers import Layers
from salf.data import Partitioned, Samples
from salf.data.sampling import Batches, LocalWork
from salf.engines import LocalSteps, LoopEngine, StackedEngine, engine
from salf.methods import method
from salf.worlds.base import AtDeadline
from salf.worlds.depth import Mixture, Uniform

RATE = 0.3


class Own(nn.Module):
    """An MLP as people write it."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.first, self.last = nn.Linear(4, 5), nn.Linear(5, 3)
        self.dropout = dropout

    def forward(self, value):
        value = torch.tanh(self.first(value))
        if self.dropout:
            value = F.dropout(value, self.dropout, self.training)
        return self.last(value)


class Steps:
    """User u's batch of local step j is the j-th run of `size` of its rows."""

    def __init__(self, inputs, targets, users, size):
        self.inputs = inputs.unflatten(0, (users, -1, size))
        self.targets = targets.unflatten(0, (users, -1, size))

    def __call__(self, users, step=1):
        return self.inputs[users, step - 1].flatten(0, 1), self.targets[users, step - 1].flatten()

    def sizes(self, users, step=1):
        return np.full(len(users), self.inputs.shape[2])


def delivered(model, layers, rows, user, steps, depth):
    """The sum of the gradients of all steps but the last, plus the last one's layers d..L."""
    twin = {name: value.clone() for name, value in model.state_dict().items()}
    total = {}
    for step in range(1, steps + 1):
        found = gradients(model, *rows(np.array([user]), step), weights=twin)
        for name, value in found.items():
            if step < steps or depth <= layers.index_of[name] + 1:
                total[name] = total.get(name, 0) + value
            is_buffer = name not in dict(model.named_parameters())
            twin[name] = twin[name] + (value if is_buffer else -RATE * value)
    return total


@pytest.mark.parametrize(("make", "shape"), [(small_mlp, (4,)), (small_normed, (2, 4, 4))])
@pytest.mark.parametrize(("steps", "depth"), [(1, 1), (1, 3), (2, 2), (3, 1), (3, 3), (3, 4)])
def test_a_user_stopped_in_step_k_at_depth_d_delivers_the_formula(make, shape, steps, depth):
    model = make()
    layers = Layers.of(model)
    rows = Steps(*data(1, 9, shape), users=1, size=3)
    arrived = Arrivals(np.array([depth]), steps=np.array([steps]), planned=np.array([3]))
    plan = method("salf").plan(1, arrived, np.zeros(3))
    wanted = delivered(model, layers, rows, 0, steps, depth)
    before = copy_of(model)
    found = LoopEngine(model, layers).round(plan, 1, {}, rows, LocalSteps(lambda t: RATE))
    assert_close(found.step.values, wanted, 1e-12)
    assert_same(copy_of(model), before)
    if make is small_mlp:
        stacked = StackedEngine(model, layers).round(plan, 1, {}, rows, LocalSteps(lambda t: RATE))
        assert_close(stacked.step.values, wanted, 1e-12)
        assert stacked.loss == pytest.approx(found.loss, rel=1e-12)


def fedavg(inputs, labels, shares, weights, rounds, steps, rate):
    """FedAvg on a network of two linear layers, without salf: w <- mean of the users' weights."""
    for _ in range(rounds):
        ends = []
        for share in shares:
            own = [w.clone().requires_grad_() for w in weights]
            for _ in range(steps):
                hidden = torch.relu(inputs[share] @ own[0].T + own[1])
                outputs = hidden @ own[2].T + own[3]
                loss = (outputs.logsumexp(1) - outputs[range(len(share)), labels[share]]).mean()
                found = torch.autograd.grad(loss, own)
                own = [
                    (w - rate * g).detach().requires_grad_()
                    for w, g in zip(own, found, strict=True)
                ]
            ends.append(own)
        weights = [torch.stack(tensors).mean(0).detach() for tensors in zip(*ends, strict=True)]
    return weights


@pytest.mark.parametrize("kind", ["loop", "stacked"])
@pytest.mark.parametrize("rates", [{"lr": 1.0, "client_lr": 0.2}, {"lr": 0.2}], ids=str)
@pytest.mark.parametrize("work", [{"local_steps": 5}, {"local_epochs": 5}], ids=str)
def test_fedavg_with_five_local_steps_is_that_of_thirty_independent_lines(kind, rates, work):
    inputs, labels = salf.load("digits").train.rows()
    inputs, labels = inputs[:120].flatten(1).double(), labels[:120]
    shares = [list(range(30 * u, 30 * u + 30)) for u in range(4)]  # a batch is the whole share
    torch.manual_seed(0)
    classes = int(labels.max()) + 1
    model = nn.Sequential(nn.Linear(inputs.shape[1], 8), nn.ReLU(), nn.Linear(8, classes)).double()
    start = [value.detach().clone() for value in model.parameters()]
    settings = {"method": "fedavg", "momentum": 0.0, "batch_size": 30, "rounds": 3, "engine": kind}
    salf.train(model, (inputs, labels), split=shares, **settings, **rates, **work)
    wanted = fedavg(inputs, labels, shares, start, 3, 5, 0.2)
    for ours, theirs, before in zip(model.parameters(), wanted, start, strict=True):
        assert float((ours.detach() - theirs).abs().max()) < 1e-6
        assert float((theirs - before).abs().max()) > 1e-3


LOCAL = [
    *((name, LocalWork(epochs=2), 2**25) for name in ANY_WORLD),
    *((name, LocalWork(3, rate=0.05), 1) for name in ("salf", "asyncfl", "heterofl", "scaffold")),
]


@pytest.mark.parametrize(("name", "local", "chunk_bytes"), LOCAL, ids=str)
def test_the_engines_agree_over_rounds_with_local_steps(name, local, chunk_bytes):
    shares = [np.arange(start, end) for start, end in ((0, 5), (5, 12), (12, 17), (17, 25))]
    ends, records = [], []
    for kind, options in (("loop", {}), ("stacked", {"chunk_bytes": chunk_bytes})):
        net = small_mlp()
        sim = simulate(
            net,
            name,
            Mixture(4, 3, 0.7),
            data(5, 5, (4,)),
            shares,
            momentum=0.5,
            batch=3,
            engine=kind,
            local=local,
            **options,
        )
        records.append([sim.step() for _ in range(5)])
        ends.append(copy_of(net))
    assert_close(ends[1], ends[0], 1e-10)
    for loop, stacked in zip(*records, strict=True):
        assert stacked.reached == loop.reached
        assert stacked.train_loss == pytest.approx(loop.train_loss, rel=1e-10)
    assert any((ends[0][name] != value).any() for name, value in copy_of(small_mlp()).items())


def test_an_epoch_passes_through_every_sample_once():
    numbers = torch.arange(9.0)
    shares = Partitioned(Samples(numbers, numbers), [np.arange(4), np.arange(4, 9)])
    users = np.arange(2)
    assert LocalWork(epochs=2).planned(shares.sizes(users), 2).tolist() == [4, 6]
    rows = Batches(shares, 2, epochs=2).of_round(Keyed(0, 1), users)
    assert [rows.sizes(users, step).tolist() for step in (1, 2, 3)] == [[2, 2], [2, 2], [2, 1]]
    drawn = [rows(users[1:], step)[0].tolist() for step in range(1, 7)]
    for epoch in (drawn[:3], drawn[3:]):
        assert sorted(row for batch in epoch for row in batch) == [4, 5, 6, 7, 8]
    assert drawn[:3] != drawn[3:]
    alone = Batches(shares, 2, epochs=2).of_round(Keyed(0, 1), users[1:])
    assert [alone(users[1:], step)[0].tolist() for step in range(1, 7)] == drawn


@pytest.mark.slow
def test_a_straggler_stops_in_any_step_and_p_l_accounts_for_it():
    """Uniform depths, 2 users, 2 layers, 2 and 3 steps: p_1 = (2/3)^2 / 6, p_2 = (1/3)^2 / 6."""
    world, planned = AtDeadline(Uniform(2, 2)), np.array([2, 3])
    both = np.arange(2)
    assert world.checked_unreached(1, both, planned, world.start()) == pytest.approx(
        [4 / 54, 1 / 54]
    )
    empty, seen, draws = np.zeros(2), set(), 4_000
    for t in range(1, draws + 1):
        keyed = Keyed(0, t)
        arrived = world.in_steps(world.arrivals(t, keyed, both, world.start())[0], planned, keyed)
        empty += ~world.checked(arrived, t).reach(2).any(axis=1)
        seen |= {(int(k), bool(s)) for k, s in zip(arrived.steps, arrived.straggler, strict=True)}
    assert empty / draws == pytest.approx([4 / 54, 1 / 54], abs=0.015)
    assert {(1, True), (2, True), (3, True), (3, False)} <= seen
    assert (1, False) not in seen


def test_drop_keeps_users_with_all_their_steps_only():
    arrived = Arrivals(np.array([1, 1, 2]), steps=np.array([3, 2, 3]), planned=np.array([3, 3, 3]))
    assert arrived.finished.tolist() == [True, False, False]
    assert method("drop", lucky="kept").share(arrived, 2)[0].tolist() == [1, 0, 0]
    assert method("drop").share(arrived, 2)[0].tolist() == [1, 0, 0]
    assert method("salf").share(arrived, 2).tolist() == [[1, 1, 1], [1, 1, 1]]


@pytest.mark.parametrize(
    ("make", "name", "why"),
    [
        (small_mlp, "stacked", "together"),
        (lambda: Own().double(), "stacked", "together"),
        (lambda: Own(dropout=0.5).double(), "stacked", "together"),
        (lambda: nn.Sequential(nn.RReLU(), nn.Linear(4, 3)).double(), "loop", "random numbers"),
        (
            lambda: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).double(),
            "loop",
            "buffer 1.running_mean",
        ),
        (
            lambda: nn.Sequential(
                nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 2, 2), nn.Flatten(), nn.Linear(6, 3)
            ).double(),
            "loop",
            "convolutions",
        ),
    ],
)
def test_auto_stacks_local_steps_where_it_can_and_says_why_not(make, name, why):
    history = salf.train(make(), data(4, 6, (4,)), users=4, rounds=2, batch_size=2, local_steps=2)
    assert history.engine == name
    assert why in history.why


def test_a_recurrent_net_takes_its_local_steps_in_the_loop():
    model = make_net("gru")
    inputs, _ = data(2, 4, (5, 3))
    layers = Layers.of(model, example=inputs[:2])
    assert engine("auto", model, layers, example=inputs, several_steps=True).name == "loop"


def test_a_model_that_differs_with_stacked_weights_takes_the_loop():
    class Counting(Own):
        calls = 0

        def forward(self, value):
            self.calls += 1
            return super().forward(value) * (1 + self.calls % 2)

    torch.manual_seed(0)
    history = salf.train(
        Counting().double(), data(4, 6, (4,)), users=4, rounds=1, batch_size=2, local_steps=2
    )
    assert history.engine == "loop"
    assert "gives other outputs with stacked weights" in history.why


def test_the_servers_rate_multiplies_old_models_that_are_averaged_too():
    """A straggler of round 1 delivers in round 3; with half the rate, round 3 moves half as far."""
    moves = []
    for rate in (1.0, 0.5):
        net = small_mlp()
        law = Scripted([[1, 1, 1]] * 3, 3, stragglers=[[0], [], []])
        sim = simulate(
            net,
            "asyncfl",
            law,
            data(3, 4, (4,)),
            equal_shares(3, 4),
            options={"stale": "model"},
            local=LocalWork(2, rate=0.2),
        )
        sim.server.schedule = lambda t, rate=rate: rate if t == 3 else 1.0
        sim.step()
        sim.step()
        assert sim.old
        before = copy_of(net)
        sim.step()
        moves.append({name: value - before[name] for name, value in copy_of(net).items()})
    assert_close(moves[1], {name: value / 2 for name, value in moves[0].items()}, 1e-9)


def test_old_models_are_not_averaged_by_an_adaptive_server():
    with pytest.raises(SalfError, match="asyncfl averages old models, which needs server 'sgd'"):
        salf.train(
            small_mlp(),
            data(4, 6, (4,)),
            users=4,
            batch_size=2,
            method=method("asyncfl", stale="model"),
            server="adam",
        )


@pytest.mark.parametrize("lr", [0.1, lambda t: 0.1, "step:0.1,100,0.5"])
def test_the_learning_rate_may_be_a_number_a_function_or_a_name(lr):
    ends = []
    for given in (0.1, lr):
        model = small_mlp()
        settings = {"users": 4, "rounds": 2, "batch_size": 2, "local_steps": 2}
        salf.train(model, data(4, 6, (4,)), lr=given, **settings)
        ends.append(copy_of(model))
    assert_same(*ends)


@pytest.mark.parametrize("kind", ["fused", "grouped"])
def test_engines_of_one_step_are_refused(kind):
    with pytest.raises(SalfError, match=f"the {kind} engine computes one local step"):
        salf.train(small_mlp(), data(4, 6, (4,)), users=4, batch_size=2, local_steps=2, engine=kind)


def test_the_stacked_engine_refuses_running_statistics():
    model = small_normed()
    with pytest.raises(SalfError, match=r"stacked engine cannot run this model: .*running_mean"):
        StackedEngine(model, Layers.of(model))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"local_steps": 0}, "local_steps must be at least 1"),
        ({"local_epochs": -1}, "local_epochs must be at least 0"),
        ({"local_steps": 2, "local_epochs": 1}, "cannot be combined"),
        ({"client_lr": 0}, "client_lr must be above 0"),
        ({"server": "adamw"}, "unknown server optimiser 'adamw'. Did you mean 'adam'"),
        ({"server": "adam", "momentum": 0.9}, "momentum is not a setting of server 'adam'"),
        ({"beta1": 0.9}, "beta1 is not a setting of server 'sgd'"),
        ({"server": "adagrad", "beta2": 0.9}, "beta2 is not a setting of server 'adagrad'"),
        ({"server": "yogi", "beta2": 1.0}, r"beta2 must be in \[0, 1\)"),
        ({"server": "adam", "epsilon": 0.0}, "epsilon must be positive"),
    ],
)
def test_impossible_settings_are_refused_in_a_sentence(settings, says):
    with pytest.raises(SalfError, match=says):
        salf.Config(**settings)
