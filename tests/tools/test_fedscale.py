"""FedScale's two files, made by hand in their format."""

import os
import pickle

import numpy as np
import pytest

from salf.worlds.fleet.availability import Intervals
from salf.worlds.fleet.devices import Fleet
from salf.worlds.fleet.named import PHONE
from tools.fedscale import BEHAVIOUR, CAPACITY, main

CLIENTS = {n: {"computation": 10.0 * n, "communication": 8000.0 * n} for n in (1, 2, 3)}
TIMES = {
    "duration": 211625, "active": [100, 200, 350, 40], "inactive": [200, 300, 400, 40],
    "finish_time": 1000, "model": "CPH1801",
}  # fmt: skip


def converted(path, *more, **files):
    for name, content in files.items():
        (path / name).write_bytes(pickle.dumps(content))
    main([str(path), str(path / "out"), *more])
    return path / "out"


def test_clients_are_phones_relative_to_the_median_one(tmp_path):
    out = converted(tmp_path, **{CAPACITY: CLIENTS})
    made = Fleet(str(out / "fleet.csv"), 5)
    assert made.speed[:3].tolist() == pytest.approx([2, 1, 2 / 3])
    assert made.speed[3:].tolist() == made.speed[:2].tolist()  # five users of three clients
    np.testing.assert_allclose(made.up[:3], [1e6, 2e6, 3e6])
    assert made.kinds[0].multiply_add == pytest.approx(PHONE.multiply_add, rel=1e-3)
    assert not (out / "availability.csv").exists()


def test_clients_are_available_when_their_file_says_and_again_after_its_end(tmp_path):
    files = {CAPACITY: CLIENTS, BEHAVIOUR: {7: TIMES}}
    made = Intervals.csv(converted(tmp_path, "--seconds", "2000", **files) / "availability.csv")
    opens, closes = made.window(np.zeros(3, np.int64), np.array([0.0, 320.0, 1150.0]))
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
        ([3.0], "cannot read"),
    ],
)
def test_other_files_are_refused_and_not_executed(tmp_path, monkeypatch, content, says):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match=says):
        converted(tmp_path, **{CAPACITY: content})
    assert not (tmp_path / "harmed").exists()
