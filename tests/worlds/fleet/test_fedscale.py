"""FedScale's two files, made by hand in their format."""

import os
import pickle
import urllib.request

import numpy as np
import pytest

from salf.common.errors import SalfError
from salf.worlds.fleet.devices import MULTIPLY_ADDS, Fleet
from salf.worlds.fleet.fedscale import BEHAVIOUR, CAPACITY, fedscale
from salf.worlds.fleet.named import PHONE

CLIENTS = {n: {"computation": 10.0 * n, "communication": 8000.0 * n} for n in (1, 2, 3)}
TIMES = {
    "duration": 211625, "active": [100, 200, 350, 40], "inactive": [200, 300, 400, 40],
    "finish_time": 1000, "model": "CPH1801",
}  # fmt: skip


def folder(path, **files):
    for name, content in files.items():
        (path / name).write_bytes(pickle.dumps(content))
    return path


def test_clients_are_devices_relative_to_the_median_one(tmp_path):
    made = fedscale(folder(tmp_path, **{CAPACITY: CLIENTS}), 5, 0, MULTIPLY_ADDS)
    assert sorted(made.speed[:3].tolist()) == pytest.approx([2 / 3, 1, 2])
    np.testing.assert_allclose(made.up, 2e6 / made.speed)  # whoever is slow has a fast link here
    assert made.speed[3:].tolist() == made.speed[:2].tolist()  # five users of three clients
    assert made.availability.always
    named = Fleet(f"fedscale:{tmp_path}", 5, seed=0)
    assert (named.speed.tolist(), named.kinds) == (made.speed.tolist(), (PHONE,))
    other = fedscale(tmp_path, 3, 1, MULTIPLY_ADDS)
    assert other.speed.tolist() != made.speed[:3].tolist()


def test_clients_are_available_when_their_file_says_and_again_after_its_end(tmp_path):
    files = {CAPACITY: CLIENTS, BEHAVIOUR: {7: TIMES}}
    made = fedscale(folder(tmp_path, **files), 2, 0, MULTIPLY_ADDS)
    who, at = np.array([0, 1, 1]), np.array([0.0, 320.0, 1150.0])
    opens, closes = made.availability.window(who, at)
    assert opens.tolist() == [100, 350, 1150]
    assert closes.tolist() == [300, 400, 1300]


class Harmful:
    def __reduce__(self):
        return os.system, ("touch harmed",)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (Harmful(), "and not plain numbers only"),
        ({1: Harmful()}, "and not plain numbers only"),
        ({1: {"computation": 3.0}}, "KeyError"),
        ({1: 3.0}, "TypeError"),
        ([3.0], "cannot read"),
        ({}, "cannot read"),
    ],
)
def test_other_files_are_refused_and_not_executed(tmp_path, monkeypatch, content, says):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SalfError, match=says):
        fedscale(folder(tmp_path, **{CAPACITY: content}), 2, 0, MULTIPLY_ADDS)
    assert not (tmp_path / "harmed").exists()


def test_what_is_downloaded_is_checked(tmp_path, monkeypatch):
    answer = folder(tmp_path, **{CAPACITY: CLIENTS}) / CAPACITY
    monkeypatch.setattr(urllib.request, "urlopen", lambda *_, **__: answer.open("rb"))
    with pytest.raises(SalfError, match="not the expected file"):
        fedscale(tmp_path / "new", 2, 0, MULTIPLY_ADDS)
    assert not (tmp_path / "new" / CAPACITY).exists()

    def offline(*_, **__):
        raise OSError("no network")

    monkeypatch.setattr(urllib.request, "urlopen", offline)
    with pytest.raises(SalfError, match="put FedScale's files client_device_capacity and"):
        fedscale(tmp_path / "new", 2, 0, MULTIPLY_ADDS)
