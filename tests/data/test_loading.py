"""Data sets by name: what is known, digits from the package, and images made from a seed."""

import gzip
import hashlib
import io
import socket

import numpy as np
import pytest
import torch

from salf.common.errors import SalfError
from salf.data import digits, example, load, loading, synthetic
from salf.data.named import RECIPES


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("minst", "Did you mean 'mnist'?"),
        ("cifar-10", "Did you mean 'cifar10'?"),
        ("", "Allowed: cifar10, digits, fashion-mnist, folder:PATH, mnist"),
        ("folder:", "unknown data set 'folder:'"),
        ("synthetic:", "unknown data set 'synthetic:'"),
        ("mnist:3", "unknown data set 'mnist:3'"),
        ("synthetic:x", "must be an integer"),
        ("synthetic:-1", "must be an integer"),
    ],
)
def test_a_name_not_known_is_answered_with_what_is(spec, message):
    with pytest.raises(SalfError) as caught:
        load(spec)
    assert message in str(caught.value)


def test_a_data_folder_that_does_not_exist_is_an_error(tmp_path):
    with pytest.raises(SalfError, match="nowhere does not exist"):
        load("mnist", folder=tmp_path / "nowhere", cache=tmp_path)


@pytest.mark.parametrize("spec", RECIPES)
def test_an_example_of_a_data_set_that_is_fetched_needs_no_fetching(spec, monkeypatch):
    monkeypatch.setattr(loading, "load_named", None)  # which would be called
    inputs, classes = example(spec, 3)
    assert inputs.shape == ((3, 3, 32, 32) if spec == "cifar10" else (3, 1, 28, 28))
    assert classes == 10


def test_an_example_of_other_data_is_their_first_rows():
    inputs, classes = example("digits", 5)
    assert inputs.equal(load("digits").train.rows()[0][:5])
    assert classes == 10
    assert len(example("digits", 10**6)[0]) == len(load("digits").train)


def test_it_needs_no_network_and_no_cache(monkeypatch, tmp_path):
    monkeypatch.setattr(socket, "socket", None)
    data = load("digits", cache=tmp_path)
    assert (len(data.train), len(data.test), data.classes) == (1442, 355, 10)
    assert data.train.shape == (1, 8, 8)
    assert list(tmp_path.iterdir()) == []
    assert data.source == "the salf package"


def test_both_parts_together_are_the_file_and_have_no_image_twice():
    data = load("digits")
    images = torch.cat([data.train.inputs, data.test.inputs]).flatten(1)
    labels = torch.cat([data.train.labels, data.test.labels])
    ours = torch.cat([images, labels[:, None].to(images.dtype)], 1).numpy()
    packed = digits.resources.files("salf.data").joinpath(digits.FILE).read_bytes()
    file = np.loadtxt(io.BytesIO(gzip.decompress(packed)), np.uint8, delimiter=",")
    assert sorted(map(bytes, ours)) == sorted(map(bytes, file))


def test_inputs_lie_between_minus_1_and_1_and_classes_are_balanced():
    data = load("digits")
    inputs, labels = data.train.rows()
    assert (float(inputs.min()), float(inputs.max())) == (-1.0, 1.0)
    for part in (labels, data.test.rows()[1]):
        counts = part.bincount(minlength=10)
        assert counts.min() > 0.9 * counts.max()


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
