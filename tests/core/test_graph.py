"""Which orders of layers a backward pass completes: against every way of running the nodes."""

import random
from itertools import permutations

import pytest
import torch
from torch import nn

from salf.core.graph import BackwardGraph
from salf.core.inputs import tensors_in, unchanged


def all_runs(above):
    """Every order in which the nodes of a graph can run."""
    return [
        run
        for run in permutations(above)
        if all(run.index(parent) < run.index(node) for node in above for parent in above[node])
    ]


def completed(run, needed):
    """When each layer is complete: with the last of its nodes."""
    return [max(run.index(node) for node in nodes) for nodes in needed]


def random_graph(seed):
    draw = random.Random(seed)
    nodes = range(draw.randint(2, 5))
    above = {node: [n for n in range(node) if draw.random() < 0.4] for node in nodes}
    uses = {f"p{k}": draw.sample(nodes, draw.choice([1, 1, 2])) for k in range(draw.randint(2, 4))}
    return BackwardGraph(above, {name: [n for n in nodes if n in u] for name, u in uses.items()})


@pytest.mark.parametrize("seed", range(60))
def test_an_order_is_refused_exactly_if_no_run_completes_the_layers_in_it(seed):
    graph = random_graph(seed)
    runs = all_runs(graph.above)
    for order in permutations(graph.uses):
        needed = [graph.needed([name]) for name in order]
        whens = [completed(run, needed) for run in runs]
        right = any(when == sorted(when, reverse=True) for when in whens)
        wrong = graph.out_of_order([[name] for name in order])
        assert (wrong is None) == right
        if wrong is not None:
            low, high = wrong
            assert low < high
    found = graph.ordered([[name] for name in graph.uses])
    names = list(graph.uses)
    assert graph.out_of_order([[names[k]] for k in found]) is None


class Net(nn.Module):
    """What makes an order hard to see: attention, recurrence, branches, tied and own weights."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 5, bias=False)
        self.scale = nn.Parameter(torch.ones(8))
        self.embed = nn.Embedding(5, 8)
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.5, batch_first=True)
        self.left, self.right = nn.Linear(8, 8), nn.Linear(8, 8)
        self.memory = nn.GRU(8, 8, batch_first=True)
        self.norm = nn.BatchNorm1d(8)
        self.head.weight = self.embed.weight
        self.spare = nn.Linear(2, 2)

    def forward(self, tokens):
        value = self.embed(tokens)
        value = value + self.attention(value, value, value)[0]
        value = torch.tanh(self.left(value)) * torch.relu(self.right(value)) * self.scale
        value = self.norm(self.memory(value)[1][0])
        return {"logits": (self.head(value), [value.mean()]), "tokens": tokens}


TOKENS = torch.tensor([[1, 2, 3], [4, 0, 1], [2, 2, 2]])


def test_the_order_in_which_autograd_completes_gradients_is_never_refused():
    model = Net()
    order = []
    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: order.insert(0, [name]))
    sum(output.sum() for output in tensors_in(model(TOKENS))).backward()
    graph = BackwardGraph.of(model, TOKENS)
    assert (
        {name for (name,) in order}
        == set(graph.uses)
        == set(dict(model.named_parameters()))
        - {
            "spare.weight",
            "spare.bias",
        }
    )
    assert graph.out_of_order(order) is None
    assert graph.out_of_order(order[::-1]) is not None


def test_looking_changes_nothing():
    model = Net()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    drawn = torch.get_rng_state()
    with torch.no_grad():  # whatever the caller's mode is
        graph = BackwardGraph.of(model, TOKENS)
    assert graph.uses
    assert torch.equal(torch.get_rng_state(), drawn)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_what_is_tried_out_is_put_back_when_it_fails():
    model, drawn = nn.BatchNorm1d(2), torch.get_rng_state()

    def fails():
        with unchanged(model):
            model(torch.randn(4, 2))
            raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        fails()
    assert model.num_batches_tracked == 0
    assert torch.equal(torch.get_rng_state(), drawn)
