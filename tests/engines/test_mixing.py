"""Every way of mixing the rows of different users is found, and `auto` then takes the loop."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from nets import NETS, Transformer, make
from reference import assert_same, copy_of, data, plan_of, rows_of
from salf.common.errors import SalfError
from salf.core.layers import Layers
from salf.engines import engine
from salf.engines.mixing import ROWS

USERS, SIZE = 5, 3


class Net(nn.Module):
    """`mix` is applied between two layers."""

    def __init__(self, mix, *modules):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 3)
        self.mix, self.inner = mix, nn.ModuleList(modules)

    def forward(self, value):
        return self.last(self.mix(self, torch.tanh(self.first(value))))


class OwnBatchNorm(nn.Module):
    def forward(self, value):
        return (value - value.mean(0)) / (value.std(0) + 0.1)


class Momentum(nn.Module):
    """A batch norm whose running statistics are not PyTorch's."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, value):
        self.mean.mul_(0.9).add_(value.detach().mean(0), alpha=0.1)
        return value - self.mean


class StretchedNorm(nn.BatchNorm1d):
    """A subclass may do anything."""

    def forward(self, value):
        return 2 * super().forward(value)


def carry(net, value):
    state = getattr(net, "state", torch.zeros(4))
    net.state = value.detach().mean(0)
    return value + state


def counted(net, value):
    net.calls = getattr(net, "calls", 0) + 1
    return value * net.calls


class Scaled(torch.autograd.Function):
    """Mixes rows in the backward pass only."""

    @staticmethod
    def forward(ctx, value):
        return value.clone()

    @staticmethod
    def backward(ctx, signal):
        return signal / signal.norm()


def by_first_feature(_, value):
    return value[value[:, 0].argsort()]


def unless_large(_, value):
    return value if value.detach().abs().mean() < 0.9 else -value


def padded_to_the_longest(_, value):
    lengths = (value > 0).sum(1)
    return value / (1 + int(lengths.max()))


def most_in_batch(_, value):
    return value * (len(value) > ROWS)


MIX = {
    "mean over rows": lambda _, v: v - v.mean(0),
    "a little of the mean over rows": lambda _, v: v + 1e-3 * v.mean(0),
    "scaled by the number of rows": lambda _, v: v / len(v),
    "another path for large batches": most_in_batch,
    "softmax over rows": lambda _, v: v.softmax(0),
    "the row before": lambda _, v: v + v.roll(1, 0),
    "sorted rows": by_first_feature,
    "shuffled rows": lambda _, v: v[torch.randperm(len(v))],
    "mixup": lambda _, v: v + 0.1 * v[torch.randperm(len(v))],
    "noise of the batch": lambda _, v: v + torch.randn(()) * v.std(),
    "distances between rows": lambda _, v: v * torch.cdist(v, v).mean(1, keepdim=True),
    "contrastive": lambda _, v: (v @ v.T).softmax(1) @ v,
    "the first row decides": lambda _, v: v if v[0, 0] > 0 else -v,
    "the batch decides": unless_large,
    "the longest row decides": padded_to_the_longest,
    "state": carry,
    "counted calls": counted,
    "normalised signals": lambda _, v: Scaled.apply(v),
}
OF_MODULES = {
    "own batch norm": OwnBatchNorm,
    "sync batch norm": lambda: nn.SyncBatchNorm(4),
    "subclassed batch norm": lambda: StretchedNorm(4),
    "own running statistics": Momentum,
    "softmax module": lambda: nn.Softmax(0),
    "spectral norm": lambda: nn.utils.spectral_norm(nn.Linear(4, 4)),
    "randomised relu": nn.RReLU,
    "unbatched sequence": lambda: First(nn.GRU(4, 4)),  # 2-D input: the rows are its steps
}


class First(nn.Module):
    """The first result of a module that returns several."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, value):
        return self.module(value)[0]


def mixing_models():
    yield from ((name, lambda mix=mix: Net(mix), (4,)) for name, mix in MIX.items())
    for name, module in OF_MODULES.items():
        yield name, lambda module=module: Net(lambda net, v: net.inner[0](v), module()), (4,)
        yield (
            f"{name}, in a Sequential",
            lambda module=module: nn.Sequential(nn.Linear(4, 4), module(), nn.Linear(4, 3)),
            (4,),
        )
    yield "attention over rows", lambda: Transformer(batch_first=False), (5, 3)


@pytest.mark.parametrize(
    ("make_model", "shape"), [pytest.param(m, s, id=name) for name, m, s in mixing_models()]
)
def test_mixed_rows_are_found_and_auto_takes_the_loop(make_model, shape):
    model = make_model().double()
    inputs, _ = data(USERS, SIZE, shape)
    layers = Layers.of(model, example=inputs)
    before, state = copy_of(model), torch.get_rng_state()
    chosen = engine("auto", model, layers, example=inputs)
    assert chosen.name == "loop"
    assert chosen.why.endswith(", so users are computed one at a time")
    assert any(
        word in chosen.why
        for word in ("mixes the rows", "random numbers", "state", "changes the buffer", "fails on")
    )
    assert_same(copy_of(model), before)
    assert torch.equal(torch.get_rng_state(), state)


class InPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = nn.Linear(4, 3)

    def forward(self, value):
        return self.last(value.mul_(2))


class Dropped(nn.Module):
    """Dropout as a module, as a function, inside attention and between recurrent layers."""

    def __init__(self, mix=lambda v: v):
        super().__init__()
        self.first, self.dropout = nn.Linear(4, 4), nn.Dropout(0.5)
        self.attention = nn.MultiheadAttention(4, 2, dropout=0.5, batch_first=True)
        self.cells = nn.GRU(4, 4, num_layers=2, dropout=0.5, batch_first=True)
        self.last = nn.Linear(4, 3)
        self.mix = mix

    def forward(self, value):
        value = self.mix(self.dropout(self.first(value)))[:, None]
        value, _ = self.attention(value, value, value)
        dropped = 0.5 if self.training else 0.0
        value = F.scaled_dot_product_attention(value, value, value, dropout_p=dropped)
        value, _ = self.cells(F.dropout(value, 0.5, self.training))
        return self.last(value[:, 0])


class TwoTensors(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 3)

    def forward(self, value):
        return self.inner(value), value


class OfTwo(nn.Linear):
    def forward(self, values):
        return super().forward(values[0])


def auto(model, shape=(4,)):
    torch.manual_seed(0)
    inputs, labels = data(USERS, SIZE, shape)
    layers = Layers.of(model, example=inputs[:8])
    plan = plan_of("salf", [1] * USERS, len(layers))
    return engine("auto", model, layers, example=inputs), plan, rows_of(inputs, labels, SIZE)


def test_a_model_that_changes_its_inputs_takes_the_loop():
    chosen, _, _ = auto(InPlace().double())
    assert chosen.why.startswith("InPlace modifies its input in place, so")


def test_dropout_does_not_keep_a_model_from_being_checked():
    model = Dropped().double()
    chosen, plan, rows = auto(model)
    assert chosen.name == "grouped"
    state, before = torch.get_rng_state(), copy_of(model)
    steps = [chosen.round(plan, 1, {}, rows).step.values]
    assert chosen.name == "grouped"
    # Off for the checks only, and its masks do not depend on the checks.
    assert (model.dropout.p, model.attention.dropout, model.cells.dropout) == (0.5, 0.5, 0.5)
    for _ in range(2):
        torch.set_rng_state(state)
        steps.append(chosen.round(plan, 1, {}, rows).step.values)
    assert_same(steps[1], steps[2])
    assert_same(steps[0], steps[1])
    assert not torch.equal(
        chosen.round(plan, 1, {}, rows).step.values["last.bias"], steps[0]["last.bias"]
    )
    assert_same(copy_of(model), before)


def test_mixing_beside_dropout_is_found():
    for mix in (lambda v: v - v.mean(0), lambda v: v / len(v)):
        chosen, _, _ = auto(Dropped(mix).double())
        assert chosen.why.startswith("Dropped mixes the rows of different users")


def test_the_probe_leaves_modes_and_attributes_as_they_were():
    model = Dropped().double()
    model.first.eval()
    modes = [module.training for module in model.modules()]
    auto(model)
    assert [module.training for module in model.modules()] == modes
    counting = Net(counted).double()
    auto(counting)
    assert counting.calls == 1  # by the pass that puts the layers in order


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_a_few_example_rows_are_enough(rows):
    model = make("residual net, batch norm")
    inputs, _ = data(1, rows, NETS["residual net, batch norm"][1])
    layers = Layers.of(model.eval(), example=inputs)
    assert engine("auto", model, layers, example=inputs).name == "grouped"
    mixing = Net(MIX["mean over rows"]).double()
    inputs, _ = data(1, rows, (4,))
    layers = Layers.of(mixing, example=inputs)
    assert engine("auto", mixing, layers, example=inputs).name == "loop"


def test_without_an_example_the_loop_runs():
    model = make("gru")
    layers = Layers.of(model, ["cells", "head"])
    chosen = engine("auto", model, layers)
    assert (chosen.name, chosen.why) == (
        "loop",
        "Recurrent is not a plain nn.Sequential, so users are computed one at a time",
    )


def test_an_engine_named_runs_without_checks_but_refuses_what_cannot_work():
    inputs, labels = data(USERS, SIZE, (4,))
    rows, plan = rows_of(inputs, labels, SIZE), plan_of("salf", [1] * USERS, 2)
    for kind, model in {
        "grouped": Net(MIX["mean over rows"]),
        "fused": nn.Sequential(nn.Linear(4, 4), OwnBatchNorm(), nn.Linear(4, 3)),
    }.items():
        layers = Layers.of(model.double(), example=inputs)
        assert engine(kind, model, layers).round(plan, 1, {}, rows).reached == (USERS, USERS)
    for kind, model, reason in [
        (
            "grouped",
            Net(lambda net, v: net.inner[0](v), Momentum()),
            "changes the buffer inner.0.mean",
        ),
        (
            "fused",
            nn.Sequential(nn.Linear(4, 4), Momentum(), nn.Linear(4, 3)),
            "changes the buffer 1",
        ),
        (
            "fused",
            nn.Sequential(nn.Linear(4, 4), TwoTensors(), OfTwo(3, 3)),
            "TwoTensors",
        ),
    ]:
        layers = Layers.of(model.double(), ["0", "1", "2"] if "Two" in reason else None, inputs)
        plan = plan_of("salf", [1] * USERS, len(layers))
        with pytest.raises(SalfError, match=rf"the {kind} engine cannot run .*{reason}.*'loop'"):
            engine(kind, model, layers).round(plan, 1, {}, rows)
