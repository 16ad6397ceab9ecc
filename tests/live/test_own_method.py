"""A method from a file outside the package, with states: on Ray and Flower, and replayed."""

import json
import shutil

import pytest

import ownstate
from command import salf, salf_process

CASES = [  # states at the server and on devices
    pytest.param("Leans", "ray", 40, "20ms", id="ray", marks=pytest.mark.xdist_group("ray")),
    pytest.param(
        "LeansOnDevice", "flower", 2, "2s", id="flower", marks=pytest.mark.xdist_group("flower")
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("method", "backend", "rounds", "deadline"), CASES)
def test_a_method_of_ones_own_runs_live_and_is_replayed(
    tmp_path, method, backend, rounds, deadline
):
    pytest.importorskip("ray" if backend == "ray" else "flwr")
    folder = tmp_path / "a folder"
    folder.mkdir()
    shutil.copy(ownstate.__file__, folder / "ownstates.py")
    settings = f"--users 2 --deadline {deadline} --backend {backend} --method ownstates:{method}"
    settings += f" --rounds {rounds} --local-steps 2 --momentum 0 --slow 0.5x8 --robust none"
    done = salf_process("live", "digits-mlp", *settings.split(), "--out", "run", cwd=folder)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (folder / "run/rounds.jsonl").read_text().splitlines()]
    assert [row["round"] for row in rows] == list(range(1, rounds + 1))
    depths = [sum(row["depths"][f"user-{number}"] for row in rows) for number in (1, 2)]
    assert depths[0] >= depths[1]  # the slow user got no further

    refused = salf("replay", "run", cwd=folder)
    assert refused.returncode == 2
    assert f"names the method 'ownstates:{method}', whose code would be run" in refused.stderr
    shown = salf("replay", "run", "--trust", "--json", cwd=folder)
    assert shown.returncode == 0, shown.stderr
    found = json.loads(shown.stdout)
    assert found["live"]["rounds"] == found["rounds"] == rounds
    assert found["distance"] < 1e-3  # with SALF's own steps it would be near 1
