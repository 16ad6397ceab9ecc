"""Real processes under Ray: late, killed, lying; the federation goes on."""

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from command import salf
from processes import in_group, started, wait_until
from salf.common.errors import ClusterLost
from salf.core.layers import Layers
from salf.live.rounds import Grace, Rounds
from salf.live.server import LiveServer
from salf.live.slow import Slowdown
from salf.live.update import Update
from salf.live.user import User
from salf.problem import Problem

pytest.importorskip("ray", reason="needs salf[ray]")
from ray import cloudpickle

from salf.live import cluster as cluster_module
from salf.live import ray
from salf.live.cluster import cluster

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray")]
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # users' processes have no tests

LR = 0.1
KILLED_IN = HANGS_IN = 6  # the round, or the first after it in which it is asked


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 4)
    )


def lying(update: Update, round: int) -> Update:
    """NaN or a wrong shape in turn, in the last layer, which everybody reaches."""
    name = max(update.tensors)
    tensor = update.tensors[name]
    wrong = tensor[:1] if round % 2 else torch.full_like(tensor, torch.nan)
    return replace(update, tensors={**update.tensors, name: wrong})


def make(name: str, folder: Path, slow: float = 1.0):
    model = network()
    if slow > 1:
        Slowdown(model, slow)

    def loss(round, step):
        if name == "killed" and round >= KILLED_IN and not (folder / "killed").exists():
            (folder / "killed").touch()  # so that it is killed once
            os.kill(os.getpid(), signal.SIGKILL)
        if name == "hangs" and round >= HANGS_IN and not (folder / "hangs").exists():
            (folder / "hangs").touch()
            time.sleep(1000)
        torch.manual_seed(round)
        return F.cross_entropy(model(torch.randn(64, 64)), torch.randint(0, 4, (64,)))

    user = User(name, Problem.of(model), loss)
    if name == "liar":
        train = user.train
        user.train = lambda task: lying(train(task), task.round)
    return user


USERS = {"honest": 1.0, "slow": 1000.0, "killed": 1.0, "hangs": 1.0, "liar": 1.0}


def the_folder_of_our_own_cluster():
    """It listens on this machine, for this account only."""
    import ray as plain

    folder = Path(plain._private.worker._global_node.get_temp_dir_path()).parent
    assert folder.name.startswith("salf-ray-")
    assert folder.stat().st_mode & 0o077 == 0
    assert plain.nodes()[0]["NodeManagerAddress"] == "127.0.0.1"
    port = int(plain.get_runtime_context().gcs_address.rpartition(":")[2])
    lines = "".join(Path(f"/proc/net/{name}").read_text() for name in ("tcp", "tcp6")).splitlines()
    sockets = [line.split()[1:4] for line in lines]
    listening = [own for own, _, state in sockets if state == "0A" and own.endswith(f"{port:04X}")]
    assert len(listening) == 1
    assert "0100007F" in listening[0]  # 127.0.0.1
    assert os.environ["RAY_AUTH_MODE"] == "token"
    assert len(os.environ["RAY_AUTH_TOKEN"]) == 64
    return folder


class Hostile:
    """A user of Ray that is no `_Actor`: what it returns runs its code where it is unpickled."""

    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return Path.touch, (self.file,)

    def ready(self):
        return b""

    def train(self, task, model, server):
        if task.round % 2:
            return self
        raise ValueError(self)  # which an exception brings along


def stepped(weights, updates, unreached):
    """[salf_update_rule], the obvious way, from the accepted updates alone."""
    layers = Layers.of(network())
    moved = {}
    for name, weight in weights.items():
        sent = [update.tensors[name] for update in updates if name in update.tensors]
        scale = 1 - unreached[layers.index_of[name]]
        moved[name] = weight - LR * torch.stack(sent).mean(0) / scale if sent else weight
    return moved


def test_a_federation_with_slow_killed_hanging_and_lying_users_trains_on_what_is_good(
    tmp_path, caplog, monkeypatch
):
    monkeypatch.setattr(ray, "HUNG_SECONDS", 10.0)
    model = network()
    server = LiveServer(Problem.of(model), LR)
    accepted: dict[int, dict[str, Update]] = {}
    take = server.take

    def take_and_note(user, data, asked):
        update = take(user, data, asked)
        if update is not None and asked == server.t + 1:
            accepted.setdefault(asked, {})[user] = update
        return update

    server.take = take_and_note
    expected = {name: weight.detach().clone() for name, weight in server.weights.items()}
    rows = []
    caplog.set_level(logging.INFO, "salf.live")
    with cluster():
        folder = the_folder_of_our_own_cluster()
        users = [ray.start_user(n, partial(make, n, tmp_path, slow)) for n, slow in USERS.items()]
        ray.wait_ready(users)
        link = ray.RayLink()
        while link.users() != USERS.keys():
            time.sleep(0.05)
        hostile = ray.ray.remote(Hostile)
        bad = [
            hostile.options(num_cpus=0, name=name).remote(tmp_path / "ran")
            for name in ("bad", "user-²\n\x1b[0m")
        ]
        rounds = Rounds(server, link, deadline=0.2, grace=Grace(0.5))

        give_up = time.monotonic() + 300  # a busy machine is no failure
        while len(rows) <= KILLED_IN + 2 or any(
            rows[-1].depths.get(user, 4) == 4 for user in ("killed", "hangs")
        ):
            assert time.monotonic() < give_up, "those who were killed or hung did not come back"
            rows.append(rounds.next())
            time.sleep(0.05)
    assert not folder.exists()
    assert len(bad) == 2
    assert not (tmp_path / "ran").exists()  # nothing that came was unpickled
    assert {name for row in rows for name in row.depths} == {*USERS, "bad"}

    for row in rows:
        assert row.seconds <= row.limit + 2  # nobody is waited for, on however busy a machine
        updates = accepted.get(row.round, {})
        expected = stepped(expected, updates.values(), row.unreached)
        assert updates.keys() <= {"honest", "slow", "killed", "hangs"}
        assert row.depths.get("liar", 4) == 4
    for name, weight in server.weights.items():
        torch.testing.assert_close(weight.detach(), expected[name])
    assert any(row.depths.get("honest") == 1 for row in rows)
    assert all(row.depths.get("slow", 4) > 1 for row in rows)
    assert any("killed" not in row.depths for row in rows)  # not asked while it is started again
    for reason in (
        "rejected update from liar: '4.weight' is not finite",
        "rejected update from liar: '4.weight' has shape (1, 128), expected (4, 128)",
        "its process ended",
        "rejected update from bad: not an update: it is not bytes",
        "rejected update from bad: lost: TASK_EXECUTION_EXCEPTION",
        "hangs has hung since round",
    ):
        assert reason in caplog.text


# About 50 are closed while the GCS is missed. A round without the slow user takes 10 ms, so that
# many are closed while this process waits for its turn on a busy machine.
ROUNDS = 300


def live(folder: Path, *more: str) -> list[str]:
    settings = {
        "--data": "synthetic",
        "--users": "2",
        "--rounds": str(ROUNDS),
        "--deadline": "60ms",
        "--slow": "0.5x200",
        "--out": str(folder),
    }
    options = [text for pair in settings.items() for text in pair]
    return [sys.executable, "-m", "salf", "live", "mnist-mlp", *options, *more]


def test_a_cluster_is_lost_when_its_gcs_has_not_answered_for_some_seconds(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as gcs:
        context = SimpleNamespace(gcs_address=f"127.0.0.1:{gcs.getsockname()[1]}")
        fake = SimpleNamespace(get_runtime_context=lambda: context)
        monkeypatch.setattr(cluster_module, "_import", lambda: fake)
        pulse = cluster_module.Pulse()
        assert pulse.check()
    assert not pulse.check()  # it may come back
    monkeypatch.setattr(cluster_module, "LOST", 0.0)
    with pytest.raises(ClusterLost, match=f"its GCS at {context.gcs_address} does not answer"):
        pulse.check()


def closed_rounds(folder: Path) -> int:
    record = folder / "rounds.jsonl"
    return record.read_text().count("\n") if record.exists() else 0


def terminate(process):
    process.terminate()
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 143, errors
    *_, last = errors.splitlines()  # which may be the only line
    assert last == "salf: stopped. Repeat the command with --resume to continue."
    assert "SIGTERM" not in errors  # which Ray's report begins with
    assert in_group(process.pid) == {}


def kill_gcs(process):
    (gcs,) = (pid for pid, name in in_group(process.pid).items() if name == "gcs_server")
    os.kill(gcs, signal.SIGKILL)
    _, errors = process.communicate(timeout=50)  # Ray itself gives up after 60 s
    assert process.returncode == 2, errors
    assert "salf: the Ray cluster ended: its GCS at 127.0.0.1:" in errors
    assert errors.endswith(" rounds are saved. Repeat the command with --resume to continue.\n")
    assert in_group(process.pid) == {}


def test_a_server_that_is_terminated_or_loses_ray_goes_on_after_the_last_closed_round(
    tmp_path,
):
    folder = tmp_path / "run"
    for end, more in ((terminate, []), (kill_gcs, ["--resume"])):
        before = closed_rounds(folder)
        with started(*live(folder, *more)[1:], stderr=subprocess.PIPE) as process:
            wait_until(lambda: closed_rounds(folder) >= before + 5 or process.poll() is not None)  # noqa: B023
            end(process)
        assert before < closed_rounds(folder) < ROUNDS
        assert not (folder / "summary.json").exists()

    again = salf(*live(folder)[3:], cwd=tmp_path)
    assert again.returncode == 2
    assert "Give --resume" in again.stderr
    finished = subprocess.run(live(folder, "--resume"), capture_output=True, text=True, timeout=400)
    assert finished.returncode == 0, finished.stderr
    assert "test accuracy" in finished.stdout
    rows = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    assert [row["round"] for row in rows] == list(range(1, ROUNDS + 1))

    assert len({depth for row in rows for depth in row["depths"].values()}) > 1  # some were slow

    # The simulator gets to the same model with the recorded depths: nothing was lost or repeated,
    # and live users compute what simulated ones do.
    from salf.live.replays import replay

    summary = json.loads((folder / "summary.json").read_text())
    replayed = replay(folder)
    assert replayed.history.test_accuracy == pytest.approx(summary["test_accuracy"], abs=0.02)
    assert replayed.distance < 1e-3

    shown = salf("replay", str(folder), cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert "replayed: test accuracy" in shown.stdout
    assert "live:     test accuracy" in shown.stdout
