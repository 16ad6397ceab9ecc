"""SCAFFOLD and FedDyn as their papers write them, in NumPy, on users that stop and stay away."""

import numpy as np
import pytest
import torch
from quadratic import half_square
from torch import nn

import salf
from salf.common.errors import SalfError
from salf.core.server import SGD, Adam
from salf.data import Partitioned, Samples
from salf.data.sampling import LocalWork
from salf.engines import ENGINES
from salf.live.server import LiveServer, ServerSettings
from salf.live.update import encode
from salf.live.user import User
from salf.methods import method
from salf.methods.base import make
from salf.problem import Problem
from salf.simulation import Recipe, Simulation
from salf.worlds.base import Recorded

USERS, ROWS, LAYERS, ETA = 4, 3, 2, 0.1
RNG = np.random.default_rng(5)
INPUTS, TARGETS = RNG.normal(size=(USERS * ROWS, 2)), RNG.normal(size=USERS * ROWS)
START = [RNG.normal(size=(3, 2)), RNG.normal(size=(1, 3))]
# Of each round: (user, depth of its last step, local steps). User 3 comes twice, once for nothing.
SEVERAL = [
    [(0, 1, 3), (1, 2, 3), (2, 1, 2)],
    [(0, 2, 1), (1, 1, 3), (2, 3, 1)],
    [(1, 2, 2), (2, 2, 3), (3, 1, 3)],
    [(0, 1, 3), (2, 1, 1), (3, 3, 1)],
]
ONE = [[(user, depth, 1) for user, depth, _ in each] for each in SEVERAL]


def gradient(w, user):
    rows = slice(user * ROWS, (user + 1) * ROWS)
    hidden = INPUTS[rows] @ w[0].T
    error = hidden @ w[1].T - TARGETS[rows, None]
    return [(error @ w[1]).T @ INPUTS[rows] / ROWS, error.T @ hidden / ROWS]


def local_steps(w, user, depth, steps, changed):
    """Where the user ends, and how many gradients each layer has."""
    y, counts = [each.copy() for each in w], [steps - (depth > 1), steps - (depth > 2)]
    for step in range(1, steps + 1):
        g = gradient(y, user)
        for layer in range(LAYERS):
            g[layer] = changed(layer, g[layer], y[layer])
        for layer in range(LAYERS):
            if step <= counts[layer]:
                y[layer] = y[layer] - ETA * g[layer]
    return y, counts


def scaffold(rounds, server_rate):
    x, c = [each.copy() for each in START], [0 * each for each in START]
    own = [[0 * each for each in START] for _ in range(USERS)]
    for arrived in rounds:
        sums, changes, heard = [0, 0], [0, 0], [0, 0]
        for user, depth, steps in arrived:
            y, counts = local_steps(
                x, user, depth, steps, lambda layer, g, _, u=user: g - own[u][layer] + c[layer]
            )
            for layer in range(LAYERS):
                if counts[layer]:
                    moved = x[layer] - y[layer]
                    new = own[user][layer] - c[layer] + moved / (counts[layer] * ETA)
                    changes[layer] += new - own[user][layer]
                    sums[layer] += moved
                    heard[layer] += 1
                    own[user][layer] = new
        for layer in range(LAYERS):
            if heard[layer]:
                x[layer] = x[layer] - server_rate * sums[layer] / heard[layer]
                c[layer] = c[layer] + changes[layer] / USERS
    return x


def feddyn(rounds, server_rate, alpha=0.3):
    w, h = [each.copy() for each in START], [0 * each for each in START]
    own = [[0 * each for each in START] for _ in range(USERS)]
    for arrived in rounds:
        ends = [[], []]
        before = [[each.copy() for each in user] for user in own]
        for user, depth, steps in arrived:
            end, counts = local_steps(
                w,
                user,
                depth,
                steps,
                lambda layer, g, y, h_u=before[user]: g - h_u[layer] + alpha * (y - w[layer]),
            )
            for layer in range(LAYERS):
                if counts[layer]:
                    ends[layer].append(end[layer])
                    own[user][layer] = own[user][layer] - alpha * (end[layer] - w[layer])
        for layer in range(LAYERS):
            if ends[layer]:
                h[layer] = h[layer] - alpha / USERS * sum(end - w[layer] for end in ends[layer])
                wanted = np.mean(ends[layer], axis=0) - h[layer] / alpha
                w[layer] = w[layer] + server_rate * (wanted - w[layer])
    return w


RULES = {"scaffold": (scaffold, {}), "feddyn": (feddyn, {"alpha": 0.3})}


def model():
    net = nn.Sequential(nn.Linear(2, 3, bias=False), nn.Linear(3, 1, bias=False)).double()
    with torch.no_grad():
        for module, start in zip(net, START, strict=True):
            module.weight.copy_(torch.from_numpy(start))
    return net


def simulation(name, rounds, engine, server_rate=None):
    samples = Samples(torch.from_numpy(INPUTS), torch.from_numpy(TARGETS))
    parts = [np.arange(user * ROWS, (user + 1) * ROWS) for user in range(USERS)]
    problem = Problem.of(model(), Partitioned(samples, parts))
    several = max(steps for each in rounds for _, _, steps in each)
    world = Recorded(
        USERS,
        *([np.array([one[n] for one in each]) for each in rounds] for n in (0, 1)),
        [np.zeros(LAYERS)] * len(rounds),
        [np.array([steps for *_, steps in each]) for each in rounds],
    )
    recipe = Recipe(
        lambda t: ETA if server_rate is None else server_rate,
        batch_size=ROWS,
        local=LocalWork(several, rate=None if server_rate is None else ETA),
        engine=ENGINES[engine](problem.model, problem.layers, half_square),
    )
    return Simulation(problem, method(name, **RULES[name][1]), world, recipe)


@pytest.mark.parametrize("server_rate", [None, 0.6])
@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize(
    ("rounds", "engine"),
    [(SEVERAL, "loop"), (SEVERAL, "stacked"), *((ONE, name) for name in ENGINES)],
)
def test_it_is_the_papers_rule_layer_by_layer(name, rounds, engine, server_rate):
    sim = simulation(name, rounds, engine, server_rate)
    for _ in rounds:
        sim.step()
    wanted = RULES[name][0](rounds, 1.0 if server_rate is None else server_rate)
    for parameter, value in zip(sim.model.parameters(), wanted, strict=True):
        np.testing.assert_allclose(parameter.detach().numpy(), value, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", RULES)
def test_live_users_and_server_get_to_the_same_model(name):
    """Updates of two users are lost in round 3, and nobody may learn from them."""
    net = model()
    layers = salf.Layers.of(net)
    settings = ServerSettings(method(name, **RULES[name][1]), local_steps=3)
    server = LiveServer(Problem.of(net), ETA, settings)
    users = {}
    for number in range(USERS):
        own = model()
        rows = slice(number * ROWS, (number + 1) * ROWS)
        inputs, targets = torch.from_numpy(INPUTS[rows]), torch.from_numpy(TARGETS[rows])

        def loss(round, step, own=own, inputs=inputs, targets=targets):
            return half_square(own(inputs), targets).mean()

        users[f"{number}"] = User(f"{number}", Problem(own, layers), loss)
    everybody = [(user, 1, 3) for user in range(USERS)]
    rounds = [everybody, everybody[:2], everybody[2:], everybody]
    for arrived in [rounds[0], rounds[1], [], rounds[2], rounds[3]]:  # in one, all are lost
        server.open(list(users))
        task = server.task(None)
        for number, *_ in arrived or everybody:
            update = users[f"{number}"].train(task.of(f"{number}"))
            if arrived:
                server.take(f"{number}", encode(update))
        server.close()
    for parameter, value in zip(net.parameters(), RULES[name][0](rounds, 1.0), strict=True):
        np.testing.assert_allclose(parameter.detach().numpy(), value, rtol=1e-12, atol=1e-14)


def test_feddyn_refuses_what_is_not_plain_sgd():
    for optimiser in (SGD(0.5), Adam()):
        with pytest.raises(SalfError, match="feddyn needs server 'sgd' with momentum 0"):
            LiveServer(Problem.of(model()), ETA, ServerSettings("feddyn", optimiser))


def test_a_robust_rule_does_not_protect_what_a_server_sums():
    with pytest.raises(SalfError, match="keeps a sum over all users, which it cannot protect"):
        LiveServer(Problem.of(model()), ETA, ServerSettings("scaffold", robust="median"))


class Keeps(salf.Method):
    """A method of one's own whose hooks return what a test says, by name."""

    def __init__(self, **returns):
        super().__init__()
        vars(self).update(returns=returns)

    def server_state(self, weights):
        return self.returns.get("server_state", {})

    def learned(self, server, heard, closing):
        return self.returns.get("learned", {})

    def user_state(self, weights):
        return self.returns.get("user_state", {})

    def after(self, done):
        return self.returns.get("after", {})

    def step(self, step, server, rate):
        return self.returns.get("step", step)

    def divisor(self, closing):
        return np.maximum(closing.shares, 1)


def kept(method, **more):
    torch.manual_seed(0)
    inputs = torch.randn(60, 4)
    net = nn.Sequential(nn.Linear(4, 2))
    data = inputs, (inputs[:, 0] > 0).long()
    return salf.train(net, data, method=method, users=3, rounds=3, **more)


@pytest.mark.parametrize(
    ("returns", "message"),
    [
        ({"learned": {"x": 1}}, "Keeps.learned returned 'x', which server_state does not declare"),
        ({"after": {"x": 1}}, "Keeps.after returned 'x', which user_state does not declare"),
        ({"user_state": {"n": 0}, "after": {"n": torch.ones(2)}}, r"'n' of shape \(2,\)"),
        (
            {"server_state": {"n": torch.tensor(0)}, "learned": {"n": 0.5}},
            r"'n' of shape \(\) as torch.float64, which server_state declares .* as torch.int64",
        ),
        ({"step": {"x": torch.ones(2)}}, "Keeps.step must return tensors by the names in `step`"),
        ({"step": {"0.bias": torch.ones(1)}}, r"not '0.bias' of shape \(1,\)"),
        ({"server_state": 3}, "Keeps.server_state must return a dict of tensors and numbers"),
    ],
)
def test_a_state_unlike_the_first_one_is_refused(returns, message):
    with pytest.raises(SalfError, match=message):
        kept(Keeps(**returns))


def test_a_number_becomes_what_was_declared():
    first = {"server_state": {"n": torch.tensor(0)}, "user_state": {"m": 0}}
    assert kept(Keeps(**first, learned={"n": 3}, after={"m": 2})).engine


class OnDevice(Keeps):
    """Nobody counts in the first layer."""

    users_keep = "device"

    def after(self, done):
        return {"seen": done.own["seen"] + len(done.total)}

    def share(self, arrived, layers):
        share = super().share(arrived, layers)
        share[0] = 0
        return share


def test_a_device_keeps_what_counts_and_no_more():
    net, rule = model(), OnDevice(user_state={"seen": 0})
    server = LiveServer(Problem.of(net), ETA, ServerSettings(rule))
    own, targets = model(), torch.from_numpy(TARGETS)
    user = User(
        "0",
        Problem.of(own),
        lambda *_: half_square(own(torch.from_numpy(INPUTS)), targets).mean(),
        method=rule,
    )
    server.open(["0"])
    user.train(server.task(None).of("0"))
    assert {name: float(value) for name, value in user.kept.states[1].items()} == {"seen": 1}


class ByChance(OnDevice):
    def share(self, arrived, layers):
        return arrived.reach(layers) / arrived.chance


def test_states_on_devices_need_a_share_that_devices_know():
    with pytest.raises(SalfError, match="set users_keep to 'server'"):
        kept(ByChance(user_state={"seen": 0}))


class Hooked(salf.Method):
    def divisor(self, closing):
        return np.maximum(closing.shares, 1)


class Sometimes(Hooked):
    def share(self, arrived, layers):
        return arrived.reach(layers) / (arrived.chance if arrived.round == 3 else 1)


def test_what_is_read_in_some_rounds_only_is_not_known():
    with pytest.raises(
        SalfError, match=r"arrived\.chance.*are known to methods that use them in every round"
    ):
        kept(Sometimes())


@pytest.mark.parametrize(
    ("hook", "state"),
    [("learned", "server_state"), ("heard", "server_state"), ("after", "user_state")],
)
def test_a_hook_that_would_never_be_called_is_refused(hook, state):
    cls = type("Mine", (Hooked,), {hook: lambda self, *_: {}})
    with pytest.raises(SalfError, match=f"Mine defines {hook}, which needs {state}"):
        kept(cls())


class Changes(salf.LocalRule):
    """Changes gradients in a way that a test chooses."""

    n = 0

    def __init__(self, how):
        self.how = how

    def gradient(self, gradients, step):
        match self.how:
            case "if":
                factor = 1 if step.own["seen"] > 0 else 2
                return {n: factor * g for n, g in gradients.items()}
            case "random":
                return {n: g + 0.1 * torch.randn_like(g) for n, g in gradients.items()}
            case "counts":
                self.n += 1
            case "none":
                return None
            case "some":
                return dict(list(gradients.items())[:1])
            case "shape":
                return {n: g.sum() for n, g in gradients.items()}
        return gradients


class WithRule(Hooked):
    def __init__(self, how):
        super().__init__()
        vars(self)["how"] = how

    def user_state(self, weights):
        return {"seen": 0}

    def after(self, done):
        return {"seen": done.own["seen"] + 1}

    def local_rule(self, steps):
        return Changes(self.how)


@pytest.mark.parametrize("how", ["if", "random"])
def test_a_rule_that_cannot_be_stacked_asks_for_the_loop_engine(how):
    with pytest.raises(SalfError, match=r"Changes.gradient cannot.*: use engine 'loop'\."):
        kept(WithRule(how), local_steps=2)
    assert kept(WithRule(how), local_steps=2, engine="loop").engine == "loop"
    assert kept(WithRule("nothing"), local_steps=2).engine == "stacked"


@pytest.mark.parametrize("more", [{}, {"local_steps": 2}, {"local_steps": 2, "engine": "stacked"}])
@pytest.mark.parametrize(
    ("how", "message"),
    [
        *((how, "Changes.gradient must return a dict with a") for how in ("none", "some", "shape")),
        ("counts", r"Changes changes its own 'n'.*user_state.*after.*step\.own\['n'\]"),
    ],
)
def test_what_a_rule_must_not_do_is_one_sentence(how, message, more):
    with pytest.raises(SalfError, match=message):
        kept(WithRule(how), **more)


def test_a_method_with_an_init_of_its_own_is_refused_by_name():
    with pytest.raises(SalfError, match=r"WithRule cannot be made .*dataclass\(frozen=True\)"):
        make(WithRule, {})
