"""Learning rates, momentum, and what stays as it is."""

from math import cos, pi

import pytest
import torch
from torch import nn

from salf.common.errors import SalfError
from salf.core.aggregate import Step
from salf.core.server import SGD, Adagrad, Adam, Server, Yogi, schedule, theorem_rate


def one(value):
    return torch.tensor([value], dtype=torch.float64)


def weights():
    return {
        "w": nn.Parameter(one(1.0)),
        "v": nn.Parameter(one(1.0)),
        "mean": one(0.0),
        "count": torch.tensor(0),
    }


def test_momentum_in_numbers():
    """m = 0.5, rate 0.1, gradients 1, 1, 2: velocities 1, 1.5, 2.75."""
    held = weights()
    server = Server(held, lambda t: 0.1, SGD(0.5))
    found = []
    for t, gradient in enumerate((1.0, 1.0, 2.0), 1):
        server.apply(Step({"w": one(gradient)}), t)
        found.append(held["w"].item())
    assert found == pytest.approx([0.9, 0.75, 0.475], rel=1e-14)
    assert held["v"].item() == 1
    assert "v" not in server.state["velocity"]


def test_buffers_get_their_difference_without_rate_or_momentum():
    held = weights()
    server = Server(held, lambda t: 0.1, SGD(0.5))
    for t in (1, 2):
        server.apply(Step({"mean": one(3.0), "count": torch.tensor(1)}), t)
    assert held["mean"].item() == 6
    assert held["count"].item() == 2
    assert not server.state["velocity"]


def test_the_steps_own_tensors_are_not_changed():
    gradient = one(1.0)
    server = Server(weights(), lambda t: 0.1, SGD(0.5))
    for t in (1, 2):
        server.apply(Step({"w": gradient}), t)
    assert gradient.item() == 1


@pytest.mark.parametrize("momentum", [-0.1, 1.0, 2.0, float("nan")])
def test_impossible_momentum_is_refused(momentum):
    with pytest.raises(SalfError, match=r"in \[0, 1\)"):
        Server(weights(), lambda t: 0.1, SGD(momentum))


GRADIENTS = [[1.0, -2.0], [0.5, 0.0], [-0.3, 4.0], [0.01, -0.02]]


@pytest.mark.parametrize("kind", [Adam, Yogi, Adagrad])
@pytest.mark.parametrize("client_lr", [None, 0.5])
def test_adaptive_optimisers_are_those_of_the_paper(kind, client_lr):
    """Reddi et al., Algorithm 2, number by number: v_0 = tau^2 and no bias correction."""
    held = {"w": nn.Parameter(torch.zeros(2, dtype=torch.float64))}
    server = Server(held, lambda t: 0.1, kind(), client_lr)
    beta1, beta2, tau = (0.0 if kind is Adagrad else 0.9), 0.99, 1e-3
    w, m, v = [0.0, 0.0], [0.0, 0.0], [tau**2, tau**2]
    for t, found in enumerate(GRADIENTS, 1):
        server.apply(Step({"w": torch.tensor(found, dtype=torch.float64)}), t)
        for i, g in enumerate(found):
            g *= client_lr or 1
            m[i] = beta1 * m[i] + (1 - beta1) * g
            if kind is Adagrad:
                v[i] += g**2
            elif kind is Adam:
                v[i] = beta2 * v[i] + (1 - beta2) * g**2
            else:
                v[i] -= (1 - beta2) * g**2 * (1 if v[i] > g**2 else -1)
            w[i] -= 0.1 * m[i] / (v[i] ** 0.5 + tau)
        assert held["w"].tolist() == pytest.approx(w, rel=1e-12)


@pytest.mark.parametrize("optimiser", [SGD(), SGD(0.5), Adam(), Yogi(), Adagrad()])
def test_entries_nobody_holds_stay_and_so_does_what_the_optimiser_keeps_of_them(optimiser):
    whole, held = ({"w": nn.Parameter(torch.zeros(2, dtype=torch.float64))} for _ in range(2))
    two = [Server(weights, lambda t: 0.1, optimiser) for weights in (whole, held)]
    ones, mask = torch.ones(2, dtype=torch.float64), torch.tensor([True, False])
    for server in two:
        server.apply(Step({"w": ones}), 1)
    before = held["w"][1].item()
    kept = {slot: kept["w"].clone() for slot, kept in two[1].state.items()}
    two[0].apply(Step({"w": ones}), 2)
    two[1].apply(Step({"w": ones * mask}, {"w": mask}), 2)
    assert held["w"].tolist() == [whole["w"][0].item(), before]
    for slot, known in kept.items():
        assert two[1].state[slot]["w"].tolist() == [two[0].state[slot]["w"][0], known[1]]


def test_the_clients_rate_multiplies_the_update_and_is_that_of_local_steps():
    held = weights()
    server = Server(held, lambda t: 0.5, client_lr=0.1)
    server.apply(Step({"w": one(2.0)}), 1)
    assert held["w"].item() == pytest.approx(1 - 0.5 * 0.1 * 2)
    assert server.local_rate(1) == 0.1
    assert Server(held, lambda t: 0.5 / t).local_rate(2) == 0.25


def test_the_theorems_rate():
    """rho_c = 2, rho_s = 10: kappa 5, gamma 40, eta_t = 2 / (2 (40 + t))."""
    rate = theorem_rate(2, 10)
    assert [rate(t) for t in (1, 10, 60)] == pytest.approx([1 / 41, 1 / 50, 1 / 100], rel=1e-15)
    # kappa is at least 1, so gamma = 8 kappa is never below 8.
    assert theorem_rate(1, 1)(2) == pytest.approx(2 / 10)


def test_schedules_by_name():
    assert [schedule(0.05, 10)(t) for t in (1, 10)] == [0.05, 0.05]
    assert [schedule("0.05", 10)(t) for t in (1, 10)] == [0.05, 0.05]
    assert schedule("theorem:2,10", 10)(10) == pytest.approx(1 / 50)
    cosine = schedule("cosine:0.2", 8)
    assert [cosine(t) for t in (1, 5, 8)] == pytest.approx(
        [0.2, 0.1, 0.1 * (1 + cos(pi * 7 / 8))], rel=1e-12
    )
    step = schedule("step:0.8,10,0.5", 100)
    assert [step(t) for t in (1, 10, 11, 20, 21)] == pytest.approx([0.8, 0.8, 0.4, 0.4, 0.2])


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("fast", "cannot read the learning rate 'fast'"),
        ("cosine", "cannot read the learning rate 'cosine'"),
        ("cosine:", "cannot read the learning rate"),
        ("cosine:a", "cannot read the learning rate 'cosine:a'"),
        ("cosine:0.1,0.2", "cannot read the learning rate 'cosine:0.1,0.2'"),
        ("step:0.1", "cannot read the learning rate"),
        ("cosin:0.1", "unknown learning-rate schedule 'cosin'. Did you mean 'cosine'"),
        (0.0, "below 1e30, not 0.0"),
        ("-0.1", "below 1e30, not -0.1"),
        ("nan", "below 1e30, not nan"),
        ("inf", "below 1e30, not inf"),
        ("theorem:10,2", "0 < rho_c <= rho_s, not 10.0 and 2.0"),
    ],
)
def test_unreadable_rates_are_refused_with_what_was_written(spec, says):
    with pytest.raises(SalfError, match=says):
        schedule(spec, 10)
