"""The example app with real processes: SuperLink and SuperNodes, and Flower's simulation."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs salf[flower]")

from processes import started, wait_until
from salf.common.errors import SalfError
from salf.core import rows as records
from salf.live.flower.local import LocalFederation

HERE = Path(__file__).parent
APP = HERE.parents[1] / "examples" / "flower-mnist"
SMALL = {"data": "synthetic", "num-server-rounds": 3, "lr": 0.05, "batch-size": 8}

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("flower")]


def processes_with(value, variable="FLWR_HOME"):
    marked = f"{variable}={value}\0".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if marked in (folder / "environ").read_bytes():
                found.append((folder / "cmdline").read_bytes().replace(b"\0", b" "))
        except OSError:
            continue
    return found


def kill(federation, number):
    """End a SuperNode and all it started at once, as a power cut would."""
    process = federation._processes.pop(f"supernode-{number}")
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class Simulation(LocalFederation):
    """Flower's simulated nodes in place of SuperNodes."""

    def _start_supernodes(self):
        pass

    def _popen(self, command, *arguments, **more):
        added = {
            "flower-superlink": ["--simulation"],
            "flwr": ["--federation-config", f"num-supernodes={self._nodes}"],
        }
        return super()._popen(command, *arguments, *added[command], **more)


@pytest.fixture(scope="module")
def federation():
    """Three nodes, which take as long to start as a round; the last to use them kills one."""
    with pytest.MonkeyPatch.context() as patch:
        # Processes of the federation find the models of the tests.
        path = [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
        patch.setenv("PYTHONPATH", os.pathsep.join(path))
        with LocalFederation(3) as federation:
            yield federation
    assert processes_with(federation.home) == []
    assert not federation.home.exists()


def test_an_app_that_fails_says_so(federation):
    with pytest.raises(SalfError, match="the app failed: unknown model"):
        list(federation.run(APP, SMALL | {"model": "no-such-model"}))
    with pytest.raises(SalfError, match="the app could not be run"):
        list(federation.run(HERE))


def test_three_nodes_with_partial_updates_of_which_one_dies(federation, tmp_path):
    rounds = tmp_path / "rounds.jsonl"
    config = SMALL | {
        "model": "sleepy:sleepy",
        "deadline": 4.0,  # a process's first forward pass may take a second or two
        "grace": 46.0,  # and three that start at once on a busy machine half a minute
        "min-nodes": 3,
        "num-server-rounds": 2,
        "record": str(rounds),
    }
    alive, dead = [federation.node_id(n) for n in (0, 1)], federation.node_id(2)
    killed = False
    for line in federation.run(APP, config):
        if "[ROUND 2/2]" in line and not killed:
            kill(federation, 2)
            killed = True
    rows = records.read(rounds)
    assert [row.round for row in rows] == [1, 2]
    # A node that knows no times yet ends late by one layer.
    assert [row.reached[1:] for row in rows] == [(3, 3), (2, 2)]
    assert rows[0].reached[0] == 3
    assert rows[1].depths[dead] == 4
    for row in rows:
        assert row.seconds <= row.limit + 0.5
        assert {user for user, _ in row.rejected} <= {dead}  # Flower may notice, and say so
        assert row.accuracy is not None
    assert rows[0].rejected == ()
    # What a node learned in one process it knows in the next: that layer 1 does not fit. It may
    # try it once again when it takes its device to have become faster.
    assert 2 in [rows[1].depths[user] for user in alive]


@pytest.mark.skipif(" " in sys.executable, reason="Ray's runtime environments break at a space")
def test_the_same_app_in_simulation(tmp_path, monkeypatch):
    pytest.importorskip("ray", reason="needs salf[ray]")
    monkeypatch.setenv("RAY_ADDRESS", "local")  # a Ray of its own
    monkeypatch.setenv("RAY_worker_niceness", "1")  # not 15, for busy machines
    rounds = tmp_path / "rounds.jsonl"
    config = SMALL | {"model": "mlp", "deadline": 5.0, "min-nodes": 3, "record": str(rounds)}
    with Simulation(3) as federation:
        lines = list(federation.run(APP, config))
        home = federation.home
    rows = records.read(rounds)
    assert [row.reached for row in rows] == [(3, 3, 3)] * 3
    assert any("deadline" in line for line in lines)
    assert processes_with(home) == []


@pytest.fixture
def live(tmp_path):
    """`salf live` on Flower, when it has started its server, with its temporary files here."""
    settings = "mnist-mlp --backend flower --users 1 --deadline 2s --rounds 1000 --data synthetic"

    with started(
        *("-m", "salf", "live", *settings.split()),
        env={**os.environ, "TMPDIR": str(tmp_path), "OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        # As in the background of a script: Flower's own processes count on it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    ) as process:
        wait_until(lambda: server_apps(tmp_path))
        yield process


def server_apps(folder):
    return [each for each in processes_with(folder, "TMPDIR") if b"flwr-serverapp" in each]


def test_a_live_run_that_is_terminated_leaves_nothing(live, tmp_path):
    live.terminate()
    time.sleep(0.05)
    live.terminate()  # closing goes on
    _, errors = live.communicate(timeout=120)
    assert live.returncode == 128 + signal.SIGTERM, errors
    assert errors.endswith("salf: stopped. Nothing was saved.\n")
    assert processes_with(tmp_path, "TMPDIR") == []
    assert [*tmp_path.glob("salf-*")] == []


def test_of_a_live_run_that_is_killed_nobody_goes_on_writing(live, tmp_path):
    live.kill()
    live.wait(60)
    wait_until(lambda: not server_apps(tmp_path), 60)
    wait_until(lambda: not processes_with(tmp_path, "TMPDIR"), 60)
