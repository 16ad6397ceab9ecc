import gzip

import numpy as np
import pytest
import torch
from idx_files import idx_bytes

from salf.common.errors import SalfError
from salf.data import load
from salf.data.named import find_idx


def test_a_folder_of_idx_files_is_loaded(tmp_path, tiny_idx, place):
    data = load(f"idx:{place(tmp_path, tiny_idx)}")
    images = np.frombuffer(tiny_idx["train-images-idx3-ubyte"][16:], np.uint8).reshape(6, 1, 3, 2)
    assert np.array_equal(data.train.inputs.numpy(), images)
    assert data.train.labels.tolist() == [0, 1, 2, 0, 1, 2]
    assert data.test.inputs.shape == (2, 1, 3, 2)
    assert data.classes == 3


@pytest.mark.parametrize(
    "rename",
    [
        lambda name: name + ".gz",
        lambda name: name.replace("-idx", ".idx"),
        lambda name: name.replace("t10k", "test"),
        lambda name: "emnist-letters-" + name,
    ],
)
def test_other_usual_names_are_understood(tmp_path, tiny_idx, place, rename):
    plain = load(f"idx:{place(tmp_path / 'a', tiny_idx)}")
    renamed = {
        rename(name): gzip.compress(content) if rename(name).endswith(".gz") else content
        for name, content in tiny_idx.items()
    }
    other = load(f"idx:{place(tmp_path / 'b', renamed)}")
    assert torch.equal(plain.test.inputs, other.test.inputs)
    assert torch.equal(plain.train.labels, other.train.labels)


def test_images_with_channels_stay_as_they_are(tmp_path, tiny_idx, place):
    for half, count in (("train", 6), ("t10k", 2)):
        tiny_idx[f"{half}-images-idx3-ubyte"] = idx_bytes(np.zeros((count, 3, 4, 5), np.uint8))
    assert load(f"idx:{place(tmp_path, tiny_idx)}").train.shape == (3, 4, 5)


def test_a_plain_file_goes_before_its_packed_twin(tmp_path, tiny_idx, place):
    place(tmp_path, tiny_idx | {"train-images-idx3-ubyte.gz": b"not even gzip"})
    assert find_idx(tmp_path)["train-images"].name == "train-images-idx3-ubyte"


def test_two_data_sets_in_one_folder_are_not_mixed(tmp_path, tiny_idx, place):
    place(tmp_path, tiny_idx | {"other-train-images-idx3-ubyte": b""})
    with pytest.raises(SalfError, match="more than one file for train-images"):
        load(f"idx:{tmp_path}")


IMAGES = "train-images-idx3-ubyte"


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        (IMAGES, lambda b: b[:-1], "damaged: shape .* needs 52 bytes, but it has 51"),
        (IMAGES, lambda b: b + b"x", "has 53"),
        (IMAGES, lambda b: b"\x1f\x8b" + b[2:], "not an idx file"),
        (IMAGES, lambda b: b"", "not an idx file"),
        (IMAGES, lambda b: b[:9], "ends early"),
        (IMAGES, lambda b: b[:2] + b"\x0d" + b[3:], "not an idx file of bytes"),
        (IMAGES, lambda b: idx_bytes(np.zeros(6, np.uint8)), "images have 3 or 4"),
        (
            "train-labels-idx1-ubyte",
            lambda b: idx_bytes(np.zeros(5, np.uint8)),
            "each of them one label",
        ),
    ],
)
def test_broken_files_are_named(tmp_path, tiny_idx, place, name, damage, message):
    place(tmp_path, tiny_idx | {name: damage(tiny_idx[name])})
    with pytest.raises(SalfError, match=message) as caught:
        load(f"idx:{tmp_path}")
    assert name in str(caught.value)


def test_a_packed_file_cut_short_is_named(tmp_path, tiny_idx, place):
    content = gzip.compress(tiny_idx.pop(IMAGES))
    place(tmp_path, tiny_idx | {IMAGES + ".gz": content[:-9]})
    with pytest.raises(SalfError, match=r"train-images-idx3-ubyte.gz cannot be unpacked"):
        load(f"idx:{tmp_path}")


def test_missing_parts_are_named(tmp_path, tiny_idx, place):
    del tiny_idx["t10k-labels-idx1-ubyte"]
    with pytest.raises(SalfError, match="no file for t10k-labels"):
        load(f"idx:{place(tmp_path, tiny_idx)}")


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(SalfError, match="nowhere is not a folder"):
        load(f"idx:{tmp_path / 'nowhere'}")
