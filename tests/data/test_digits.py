"""The data set that is part of the package."""

import gzip
import io
import socket

import numpy as np
import torch

import salf
from salf.data import digits, load


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


def test_fedavg_learns_it():
    config = salf.PRESETS["digits-mlp"].changed(method="fedavg", rounds=100, threads=1)
    assert salf.run(config).summary["test_accuracy"] > 0.85
