import hashlib

import torch

from nets import mlp
from salf.data import load, synthetic


def test_a_seed_gives_the_same_bytes_everywhere():
    data = synthetic(seed=3, train=20, test=5)
    digest = hashlib.sha256(
        data.train.inputs.numpy().tobytes() + data.test.inputs.numpy().tobytes()
    )
    assert digest.hexdigest()[:16] == "f8b26682a9901d53"


def test_the_default_is_shaped_like_a_small_mnist():
    data = load("synthetic")
    assert data.train.inputs.shape == (6000, 1, 28, 28)
    assert data.test.inputs.shape == (1000, 1, 28, 28)
    assert data.train.inputs.dtype == torch.uint8
    assert data.train.labels.bincount().tolist() == [600] * 10
    assert data.classes == 10
    assert load("synthetic:0").train.inputs.equal(data.train.inputs)
    assert not load("synthetic:1").train.inputs.equal(data.train.inputs)


def test_other_shapes_and_counts_are_possible():
    data = synthetic(train=7, test=3, shape=(3, 9, 17), classes=4)
    assert data.train.inputs.shape == (7, 3, 9, 17)
    assert sorted(data.train.labels.tolist()) == [0, 0, 1, 1, 2, 2, 3]


def test_a_small_network_learns_it_but_not_at_once():
    data = synthetic()
    draw = torch.Generator().manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), mlp(784, 32, 10))
    steps = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
    accuracy = {}
    for step in range(401):
        if step in (20, 400):
            x, y = data.test.rows()
            accuracy[step] = (model(x).argmax(1) == y).float().mean().item()
        x, y = data.train.rows(torch.randint(0, len(data.train), (256,), generator=draw))
        steps.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        steps.step()
    assert accuracy[20] < 0.6
    assert 0.9 < accuracy[400] < 0.995
