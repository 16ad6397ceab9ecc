"""A method from a file outside the package: live on Ray and on Flower, and replayed."""

import json
import shutil
import subprocess
import sys

import pytest

import ownstate
from command import salf, salf_process

OWN = """
from dataclasses import dataclass
from salf.methods.salf import SALF

@dataclass(frozen=True)
class Halves(SALF):
    whole: bool = False

    def divisor(self, closing):
        return super().divisor(closing) * (1 if self.whole else 2)
"""
BACKENDS = [
    pytest.param("ray", 2, 60, "20ms", id="ray", marks=pytest.mark.xdist_group("ray")),
    pytest.param("flower", 2, 2, "2s", id="flower", marks=pytest.mark.xdist_group("flower")),
]
STATES = [
    pytest.param(method, *BACKENDS[n].values, id=method, marks=BACKENDS[n].marks)
    for method, n in (("scaffold", 0), ("ownstates:Leans", 0), ("ownstates:LeansOnDevice", 1))
]


@pytest.mark.slow
@pytest.mark.parametrize(("method", "backend", "users", "rounds", "deadline"), STATES)
def test_what_a_method_keeps_is_live_and_replayed(
    tmp_path, method, backend, users, rounds, deadline
):
    """Stopped in the middle and resumed, with new processes for all users on Ray."""
    pytest.importorskip("ray" if backend == "ray" else "flwr")
    shutil.copy(ownstate.__file__, tmp_path / "ownstates.py")
    chosen = f"--method {method} --local-steps 2 --momentum 0 --slow 0.5x8 --robust none --out run"
    for more in [rounds // 2, rounds] if backend == "ray" else [rounds]:
        settings = f"--users {users} --rounds {more} --deadline {deadline} --backend {backend}"
        resume = ["--resume"] if more == rounds and backend == "ray" else []
        words = ["live", "digits-mlp", *settings.split(), *chosen.split(), *resume]
        done = salf_process(*words, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    shown = salf("replay", "run", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert float(shown.stdout.partition("between the two models: ")[2].split()[0]) < 1e-3


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "users", "rounds", "deadline"), BACKENDS)
def test_a_method_of_ones_own_runs_live_and_is_replayed(tmp_path, backend, users, rounds, deadline):
    pytest.importorskip("ray" if backend == "ray" else "flwr")
    folder = tmp_path / "a folder"
    folder.mkdir()
    (folder / "ownmethods.py").write_text(OWN)
    settings = f"--users {users} --rounds {rounds} --deadline {deadline} --backend {backend}"
    chosen = "--method ownmethods:Halves --slow 0.5x8 --out run"
    done = subprocess.run(
        [sys.executable, "-m", "salf", "live", "digits-mlp", *settings.split(), *chosen.split()],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (folder / "run/rounds.jsonl").read_text().splitlines()]
    assert [row["round"] for row in rows] == list(range(1, rounds + 1))
    slow, fast = (
        sum(row["depths"][f"user-{number}"] for row in rows for number in some)
        for some in (range(1, users // 2 + 1), range(users // 2 + 1, users + 1))
    )
    assert slow >= fast  # the slow users got no further

    shown = salf("replay", "run", cwd=folder)
    assert shown.returncode == 0, shown.stderr
    distance = float(shown.stdout.partition("between the two models: ")[2].split()[0])
    assert distance < 1e-3  # with SALF's own steps it would be near 1
