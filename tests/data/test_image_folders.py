import sys

import numpy as np
import pytest
from PIL import Image

from salf.common.errors import SalfError
from salf.data import load


def draw(path, value, mode="L", size=(4, 3)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value).save(path)


def grey_classes(root, counts):
    for name, count in counts.items():
        for k in range(count):
            draw(root / name / f"{k:02}.png", k)


def test_every_sixth_image_of_a_class_is_held_out(tmp_path):
    grey_classes(tmp_path, {"dog": 12, "cat": 7})
    data = load(f"folder:{tmp_path}")
    assert data.classes == 2
    assert data.train.shape == (1, 3, 4)
    assert data.test.labels.tolist() == [0, 1, 1]  # cat is class 0
    assert data.test.inputs[:, 0, 0, 0].tolist() == [5, 5, 11]
    assert len(data.train) == 16


@pytest.mark.parametrize("held", ["test", "val"])
def test_train_and_test_folders_are_used_if_there(tmp_path, held):
    grey_classes(tmp_path / "train", {"a": 2, "b": 1, "c": 1})
    grey_classes(tmp_path / held, {"c": 3})
    data = load(f"folder:{tmp_path}")
    assert data.train.labels.tolist() == [0, 0, 1, 2]
    assert data.test.labels.tolist() == [2, 2, 2]
    assert data.classes == 3


def test_one_colour_image_makes_all_rgb_in_channel_order(tmp_path):
    grey_classes(tmp_path, {"a": 6})
    draw(tmp_path / "a" / "00.png", (10, 20, 30), "RGB")
    data = load(f"folder:{tmp_path}")
    assert data.train.shape == (3, 3, 4)
    assert data.train.inputs[0, :, 0, 0].tolist() == [10, 20, 30]
    assert data.train.inputs[3, :, 0, 0].tolist() == [3, 3, 3]
    data.train.inputs[0, 0, 0, 0] = 7  # own memory, not a read-only view
    assert data.train.inputs.dtype.itemsize == 1


def test_other_files_and_hidden_folders_are_passed_over(tmp_path):
    grey_classes(tmp_path, {"a": 6, ".thumbnails": 1})
    (tmp_path / "a" / "notes.txt").write_text("hello")
    data = load(f"folder:{tmp_path}")
    assert (len(data.train), len(data.test), data.classes) == (5, 1, 1)


def sixteen_bits(path):
    Image.fromarray(np.full((3, 4), 40_000, np.uint16)).save(path)


@pytest.mark.parametrize(
    ("count", "spoil", "message"),
    [
        (
            6,
            lambda a: draw(a / "03.png", 0, size=(5, 3)),
            r"03\.png has another size than .*00\.png",
        ),
        (6, lambda a: (a / "02.png").write_text("text"), r"02\.png cannot be read as an image"),
        (6, lambda a: sixteen_bits(a / "01.png"), r"01\.png has more than 8 bits"),
        (5, lambda a: None, "5 training and 0 test samples"),
        (0, lambda a: None, "has no images: pass a folder"),
    ],
)
def test_folders_that_cannot_be_used_are_refused_with_the_reason(tmp_path, count, spoil, message):
    grey_classes(tmp_path, {"a": count})
    spoil(tmp_path / "a")
    with pytest.raises(SalfError, match=message):
        load(f"folder:{tmp_path}")


def test_a_missing_folder_and_a_test_class_unknown_in_training_are_named(tmp_path):
    with pytest.raises(SalfError, match="nowhere has no images"):
        load(f"folder:{tmp_path / 'nowhere'}")
    grey_classes(tmp_path / "train", {"a": 2})
    grey_classes(tmp_path / "test", {"a": 1, "zebra": 1})
    with pytest.raises(SalfError, match="zebra"):
        load(f"folder:{tmp_path}")


def test_without_pillow_the_error_says_what_to_install(tmp_path, monkeypatch):
    grey_classes(tmp_path, {"a": 6})
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(SalfError, match=r"pip install 'salf\[images\]'"):
        load(f"folder:{tmp_path}")
