"""Live runs with users in this process: what they leave, and that the simulator agrees."""

import logging
import os
from contextlib import nullcontext
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch

import interrupted
from salf.common.errors import SalfError
from salf.core import rows as record
from salf.core.draws import Keyed
from salf.live import launch as live_module
from salf.live.batches import OwnBatch
from salf.live.launch import Joining, run, trusting
from salf.live.replays import replay
from salf.live.rounds import Answer
from salf.live.update import encode
from salf.live.user import User
from salf.live.users import batch_of, make_user, user_name
from salf.runs.config import Config
from salf.runs.federation import from_config, problem_of, problem_of_user
from salf.runs.folder import ROUNDS, RunFolder
from salf.runs.live_config import LiveConfig
from salf.runs.run import run as simulate
from salf.runs.training import StopTraining
from salf.stages.attacks import Attack

SMALL = LiveConfig(
    data="synthetic",
    model="mlp",
    users=4,
    rounds=6,
    batch_size=4,
    lr=0.1,
    eval_every=3,
    deadline=10.0,
    grace=1.0,
)
METHOD = """
from dataclasses import dataclass
import numpy as np
from salf import Method

@dataclass(frozen=True)
class Halves(Method):
    louder: bool = False

    def share(self, arrived, layers):
        half = arrived.depth <= (layers + 1) / 2
        return (arrived.reach(layers) & half) * (2.0 if self.louder else 1.0)

    def divisor(self, closing):
        return np.maximum(closing.shares, 1.0)
"""
NET = """
from torch import nn

class Net(nn.Sequential):
    def __init__(self, shape, classes):
        super().__init__(
            nn.Conv2d(shape[0], 4, 3, 2, bias=False), nn.BatchNorm2d(4), nn.Tanh(),
            nn.Flatten(), nn.LazyLinear(classes),
        )


class Adapted(nn.Sequential):
    def __init__(self, shape, classes):
        super().__init__(
            nn.Conv2d(shape[0], 4, 3, 2, bias=False), nn.BatchNorm2d(4), nn.Tanh(),
            nn.Flatten(), nn.LazyLinear(16), nn.Tanh(), nn.LazyLinear(classes),
        )
        self[0].requires_grad_(False)
        self[1].requires_grad_(False)


class Dropping(nn.Sequential):
    def __init__(self, shape, classes):
        size = shape[0] * shape[1] * shape[2]
        super().__init__(
            nn.Flatten(), nn.Linear(size, 16), nn.Dropout(0.5), nn.Linear(16, classes)
        )
"""


class Stopping:
    """Backpropagation that stops at a given depth of a given local step."""

    def __init__(self, real):
        self.real, self.layers, self.times = real, real.layers, real.times
        self.left, self.depth = 1, 1

    def within(self, deadline, loss, more=False):
        found = self.real.within(None, loss)
        self.left -= 1
        if self.left:
            return found
        kept = {n for layer in self.layers.reached(self.depth) for n in layer.parameters}
        gradients = {n: g for n, g in found.gradients.items() if n in kept}
        return replace(found, depth=self.depth, gradients=gradients)


class Here:
    """Users in this process, who stop at depths drawn for every round; some never answer."""

    def __init__(self, config, folder):
        self.config = config
        states = None if folder is None else folder.path / "users"
        numbers = range(1, config.users + 1)
        self.members = {user_name(n): make_user(config, n, folder=states) for n in numbers}
        self.answers = []
        for user in self.members.values():
            user.backpropagation = Stopping(user.backpropagation)

    def users(self):
        return set(self.members)

    free = users

    def send(self, task, users):
        layers = next(iter(self.members.values())).backpropagation.layers
        rng = np.random.default_rng([7, task.round])
        for name, user in sorted(self.members.items()):
            depth = int(rng.integers(1, len(layers) + 2))
            if rng.random() < 0.2 or name not in users:
                continue  # lost on the way, or not asked
            stops = task.deadline is not None
            step = int(rng.integers(1, task.steps + 1))
            user.backpropagation.left = step if stops else -1
            user.backpropagation.depth = depth
            update = user.train(replace(task, deadline=None))
            self.answers.append(Answer(name, task.round, encode(update)))

    def awaited(self):
        return {answer.user for answer in self.answers}

    def receive(self, seconds):
        answers, self.answers = self.answers, []
        return answers


@pytest.fixture(autouse=True)
def users_in_this_process(monkeypatch):
    """Instead of Ray: all else is what `salf live` does."""
    monkeypatch.setattr(live_module, "_on_ray", lambda c, folder, *_: nullcontext(Here(c, folder)))


def live(config, path, resume=False, on_round=None):
    return run(config, path, resume=resume, on_round=on_round).summary


def replayed(config, path, distance=5e-3, resume=False):
    """The rounds of a live run that the simulator repeats up to rounding.

    There is a unit now and then that rounding switches on or off.
    """
    summary = live(config, path / "run", resume)
    assert summary["layers"] == [layer.name for layer in problem_of(config).layers]
    again = replay(path / "run", trust=True)
    assert again.distance < distance
    assert again.history.test_accuracy == pytest.approx(summary["test_accuracy"], abs=0.002)
    rows = record.read(path / "run" / ROUNDS)
    assert [row.reached for row in rows] == [row.reached for row in again.history.rows]
    return rows


@pytest.mark.parametrize(
    ("method", "model", "average"),
    [
        *(
            ("salf", model, "reached")
            for model in ("cnn", "bnnet:Net", "bnnet:Adapted", "bnnet:Dropping")
        ),
        *(("salf", "mlp", average) for average in ("reached", "all")),
        *((method, "mlp", "reached") for method in ("fedavg", "ownmethod:Halves")),
        ("drop", "bnnet:Net", "all"),
    ],
)
def test_the_simulator_gets_to_the_same_model_with_the_recorded_depths(
    tmp_path, monkeypatch, method, model, average
):
    (tmp_path / "bnnet.py").write_text(NET)
    (tmp_path / "ownmethod.py").write_text(METHOD)
    monkeypatch.syspath_prepend(tmp_path)
    config = SMALL.changed(method=method, model=model, average=average)
    rows = replayed(config.changed(momentum=0.5), tmp_path)
    depths = {depth for row in rows for depth in row.depths.values()}
    assert len(depths) > 1  # there was something to agree about


@pytest.mark.parametrize(("method", "average"), [("salf", "all"), ("fedavg", "reached")])
def test_a_run_of_cohorts_asks_as_many_users_and_is_replayed(tmp_path, method, average):
    config = SMALL.changed(method=method, cohort=2, average=average)
    rows = replayed(config, tmp_path, distance=1e-4)
    assert {len(row.depths) for row in rows} == {2}
    assert len({tuple(row.depths) for row in rows}) > 1


STEPS, EPOCHS = {"local_steps": 3}, {"local_epochs": 1, "batch_size": 200}


@pytest.mark.parametrize(
    ("method", "work"),
    [
        *((method, STEPS) for method in ("salf", "drop", "fednova")),
        *((method, EPOCHS) for method in ("salf", "fedprox")),
    ],
    ids=str,
)
def test_local_steps_replay_to_the_same_model(tmp_path, method, work):
    config = SMALL.changed(method=method, lr=0.01, client_lr=0.05, server="yogi", **work)
    rows = replayed(config, tmp_path)
    steps = {begun for row in rows for begun, _ in row.steps.values()}
    assert max(steps) > 1


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("salf-recall", {"batches": "equal"}),
        ("mifa", {}),
        ("fedau", {}),
        ("inverse", {}),
        ("fedstale", {}),
    ],
)
def test_what_the_server_knows_of_users_survives_a_restart_and_is_replayed(
    tmp_path, method, settings
):
    config = SMALL.changed(method=method, momentum=0.5, **settings)
    live(config.changed(rounds=3), tmp_path / "run")
    rows = replayed(config, tmp_path, resume=True)
    if method in ("inverse", "fedstale"):
        chances = {chance for row in rows for reach in row.reach.values() for chance in reach}
        assert len(chances) > 1  # shares differed


@pytest.mark.parametrize("work", [{}, {"local_steps": 2}], ids=str)
def test_batches_that_users_chose_are_recorded_and_replayed(tmp_path, monkeypatch, work):
    def fit(self, seconds, backpropagation):  # the made-up speed of this machine
        self.rows = 1 + (self.rows * 7 + 5) % 13

    monkeypatch.setattr(OwnBatch, "fit", fit)
    rows = replayed(SMALL.changed(batches="equal-time", **work), tmp_path, distance=1e-3)
    assert len({size for row in rows for size in row.rows.values()}) > 3
    record.rewrite(tmp_path / "run" / ROUNDS, [replace(row, rows={}) for row in rows])
    assert replay(tmp_path / "run").distance > 5e-3  # with other batches it is another model


@pytest.mark.parametrize("rule", ["mixed", "median"])
def test_robust_rules_replay_to_the_same_model(tmp_path, rule):
    rows = replayed(SMALL.changed(robust=rule, users=6), tmp_path, distance=1e-6)
    assert any(0 < row.reached[0] < 3 for row in rows)  # and layer 1 had to wait


def test_one_attacker_of_eight_costs_a_live_run_little(monkeypatch):
    """Users stop at any depth alike, or are not heard, so few reach the first layer."""
    config = SMALL.changed(data="digits", users=8, rounds=100, batch_size=16, eval_every=100)
    attacks, train = Attack.parse("large-first"), User.train

    def sent(user, task):
        update = train(user, task)
        if user.name != "user-8":
            return update
        return replace(update, tensors=attacks.sent(update.tensors, task.round, 7))

    monkeypatch.setattr(User, "train", sent)
    attacked = run(config.changed(robust="mixed")).summary["test_accuracy"]
    assert attacked >= 0.85  # 0.9 without an attack


@pytest.mark.parametrize("compress", ["fp16", "qsgd:4", "topk:0.2"])
def test_compressed_updates_replay_to_the_same_model(tmp_path, compress):
    replayed(SMALL.changed(compress=compress), tmp_path, distance=1e-3)
    plain = SMALL.changed(compress="")
    (tmp_path / "run" / "config.toml").write_text(plain.to_toml())
    assert replay(tmp_path / "run").distance > 1e-5  # it was another model


def test_users_are_trusted_where_the_server_starts_them_and_nowhere_else():
    said = []
    here, cluster = Joining(), Joining(address="10.0.0.1:6379")
    assert trusting(SMALL, here, said.append).robust == "none"
    assert trusting(SMALL, cluster, said.append).robust == "mixed"
    assert trusting(SMALL.changed(backend="flower"), here, said.append).robust == "mixed"
    assert trusting(SMALL.changed(robust="median"), here, said.append).robust == "median"
    assert not said
    assert trusting(SMALL.changed(users=2), cluster, said.append).robust == "none"
    assert "takes at least 3 users, and there are 2" in said[0]


def test_the_replay_of_another_run_is_far_away_and_of_one_with_strangers_refused(tmp_path):
    live(SMALL, tmp_path)
    rows = record.read(tmp_path / ROUNDS)
    turned = [replace(row, depths=dict.fromkeys(row.depths, 2)) for row in rows]
    record.rewrite(tmp_path / ROUNDS, turned)
    assert replay(tmp_path).distance > 5e-2
    record.rewrite(tmp_path / ROUNDS, [replace(rows[0], depths={"phone": 1}), *rows[1:]])
    with pytest.raises(SalfError, match="'phone' took part with data of its own"):
        replay(tmp_path)


def test_a_folder_of_a_run_that_is_not_live_is_left_alone(tmp_path):
    """And leaves what a simulated one leaves, and its record."""
    made_up = Config(data="synthetic", users=4, rounds=1, batch_size=4, threads=1)
    simulate(made_up, tmp_path / "a")
    before = sorted((tmp_path / "a").iterdir())
    with pytest.raises(SalfError, match="contains a simulated run"):
        live(SMALL.changed(rounds=1), tmp_path / "a", resume=True)
    assert sorted((tmp_path / "a").iterdir()) == before
    live(SMALL.changed(rounds=1), tmp_path / "b")
    with pytest.raises(SalfError, match="contains a live run"):
        simulate(made_up, tmp_path / "b", resume=True)
    simulated, real = ({path.name for path in (tmp_path / name).iterdir()} for name in "ab")
    assert real - simulated <= {"rounds.jsonl", "live.log"}
    assert simulated <= real
    simulated, real = (set(RunFolder(tmp_path / name).summary()) for name in "ab")
    assert simulated - {"stragglers"} <= real


def test_on_round_can_stop_a_live_run_which_is_then_finished(tmp_path):
    summary = live(SMALL, tmp_path / "run", on_round=interrupted.at(2, StopTraining))
    assert (summary["rounds"], summary["stopped"]) == (2, True)
    assert live(SMALL, tmp_path / "run", resume=True) == summary


class Killed(Exception):
    pass


def test_a_server_that_was_stopped_goes_on_as_if_it_had_not_been(tmp_path):
    """So does one that finished and is given more rounds, or wrote a round that it did not keep."""
    config, path = SMALL.changed(momentum=0.5), tmp_path / "parts" / ROUNDS
    live(config, tmp_path / "whole")
    live(config.changed(rounds=2), tmp_path / "parts")
    with pytest.raises(Killed):
        live(config, tmp_path / "parts", resume=True, on_round=interrupted.at(4, Killed))
    record.append(path, replace(record.read(path)[-1], round=5))
    with path.open("a") as stream:
        stream.write('{"round": 6, "de')
    live(config, tmp_path / "parts", resume=True)
    assert rows_of(tmp_path / "parts") == rows_of(tmp_path / "whole")
    one, other = ((tmp_path / run / "model.safetensors").read_bytes() for run in ("whole", "parts"))
    assert one == other


@pytest.mark.parametrize(
    ("method", "compress"),
    [("scaffold", "fp16"), ("ownstate:Leans", ""), ("ownstate:LeansOnDevice", "fp16")],
)
def test_what_a_method_keeps_survives_a_stop_and_is_replayed(tmp_path, method, compress):
    """Users' states on their devices and at the server; some updates are lost on the way."""
    config = SMALL.changed(method=method, momentum=0.0, local_steps=3, compress=compress, rounds=8)
    live(config, tmp_path / "whole")
    with pytest.raises(Killed):
        live(config, tmp_path / "parts", on_round=interrupted.at(4, Killed))
    live(config, tmp_path / "parts", resume=True)
    one, other = ((tmp_path / run / "model.safetensors").read_bytes() for run in ("whole", "parts"))
    assert one == other
    assert replay(tmp_path / "whole", trust=True).distance < 5e-3


def rows_of(folder):
    timeless = {"seconds": 0, "arrived": {}}
    return [asdict(row) | timeless for row in record.read(folder / ROUNDS)]


def test_rounds_that_are_gone_are_not_made_up_and_another_run_is_refused(tmp_path):
    with pytest.raises(Killed):
        live(SMALL, tmp_path, on_round=interrupted.at(3, Killed))
    with pytest.raises(SalfError, match=r"already contains this run. Give resume=True"):
        live(SMALL, tmp_path)
    with pytest.raises(SalfError, match=r"different config .it differs in deadline, lr"):
        live(SMALL.changed(lr=0.2, deadline=1.0), tmp_path, resume=True)
    record.rewrite(tmp_path / ROUNDS, record.read(tmp_path / ROUNDS)[:1])
    with pytest.raises(SalfError, match="checkpoint ends at round 3"):
        live(SMALL, tmp_path, resume=True)


def test_what_was_not_used_is_in_the_log_of_the_run(tmp_path, monkeypatch):
    real = Here.receive
    monkeypatch.setattr(
        Here,
        "receive",
        lambda link, seconds: [
            Answer(answer.user, answer.round, b"rubbish") for answer in real(link, seconds)
        ],
    )
    live(SMALL.changed(rounds=1), tmp_path)
    (row,) = record.read(tmp_path / ROUNDS)
    assert len(row.rejected) >= 1
    text = (tmp_path / "live.log").read_text()
    for user, reason in row.rejected:
        assert f"rejected update from {user}: {reason}" in text


def test_users_have_shares_of_their_own_and_the_simulators_batches():
    training = from_config(SMALL.simulated())
    users, held = np.arange(4), training.simulation.data
    shares = [problem_of_user(SMALL, user).users_data.own(0) for user in range(4)]
    assert [len(share) for share in shares] == held.sizes(users).tolist()
    inputs, labels = training.simulation.batches.of_round(Keyed(SMALL.seed, 3), users)(users)
    own = [batch_of(SMALL, number, share, 3, 1, 4) for number, share in enumerate(shares, 1)]
    own_inputs, own_labels = (torch.cat(half) for half in zip(*own, strict=True))
    assert torch.equal(inputs, own_inputs)
    assert torch.equal(labels, own_labels)


def test_what_a_live_federation_does_not_have_is_refused_in_a_sentence(tmp_path):
    with pytest.raises(SalfError, match="heterofl runs in the simulator only: its stragglers"):
        SMALL.changed(method="heterofl")
    with pytest.raises(SalfError, match="asyncfl runs in the simulator only: its users deliver"):
        SMALL.changed(method="asyncfl")
    with pytest.raises(SalfError, match="a live run needs a deadline"):
        LiveConfig()
    with pytest.raises(SalfError, match="use local_steps="):
        SMALL.changed(batches="equal-time", local_epochs=1)
    with pytest.raises(SalfError, match="contains no live run"):
        replay(tmp_path)


@pytest.mark.skipif(os.name == "nt", reason="Windows has other permissions")
def test_what_a_live_run_keeps_of_users_is_private_and_their_votes_go_at_its_end(tmp_path):
    before = os.umask(0o022)
    try:
        config = SMALL.changed(robust="mixed", users=6)
        votes = []

        def note(row, model):
            _, state = record.read_checkpoint(tmp_path / "checkpoint.safetensors")
            votes.append(len(state["kept"]["recall"]))

        live(config.changed(rounds=2), tmp_path, on_round=note)
        assert min(votes) > 0  # the control: during the run, they are there
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes[ROUNDS] == modes["checkpoint.safetensors"] == 0o600
    assert modes["config.toml"] == modes["model.safetensors"] == modes["summary.json"] == 0o644
    groups, state = record.read_checkpoint(tmp_path / "checkpoint.safetensors")
    assert all(not len(rows) for rows in groups.get("recall", {}).values())
    assert not state["kept"]["recall"]
    live(config.changed(rounds=4), tmp_path, resume=True)  # and it can be extended all the same
    assert [row.round for row in record.read(tmp_path / ROUNDS)] == [1, 2, 3, 4]


def test_the_log_of_a_live_run_is_private(tmp_path):
    with live_module._log_into(tmp_path / "live.log"):
        logging.getLogger("salf.live").warning("of one user")
    assert "of one user" in (tmp_path / "live.log").read_text()
    assert os.name == "nt" or (tmp_path / "live.log").stat().st_mode & 0o777 == 0o600
