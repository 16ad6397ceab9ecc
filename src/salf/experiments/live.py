"""A live run: the federation that a config describes, with real users and a real clock.

Users draw the same batches as in the simulator, so a live run can be replayed with its recorded
depths.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from salf import rows as records
from salf import schedules
from salf.attacks import Attack
from salf.compression import Compression, Sender
from salf.data import Samples, some
from salf.draws import Keyed
from salf.engines import cross_entropy
from salf.errors import SalfError
from salf.experiments.config import Config, LiveConfig
from salf.experiments.folder import LOG, RunFolder, summarise, without_last_evaluation
from salf.experiments.run import Result, complete
from salf.experiments.training import History, OnRound, StopTraining, Training, from_config
from salf.files import temporary_folder
from salf.fleet.timing import Cost
from salf.layers import Layers
from salf.live.batches import OwnBatch
from salf.live.rounds import Grace, Link, Rounds
from salf.live.server import LiveServer
from salf.live.slow import Slowdown, slowness
from salf.live.user import AttackingUser, User
from salf.methods.fedavg import FedAvg
from salf.rows import Row
from salf.sampling import epoch_places, places
from salf.simulation import seeded

log = logging.getLogger("salf.live")

Say = Callable[[str], None]


def user_name(number: int) -> str:
    """What user 1..U of a config is called."""
    return f"user-{number}"


@dataclass(frozen=True)
class Share:
    """What a user of a config has: the model to be trained, and its own part of the data."""

    seed: int
    number: int  # of 1..U
    model: nn.Module
    layers: Layers
    samples: Samples
    batch_size: int
    steps: int  # local steps in a round
    epochs: int = 0
    attack: Attack | None = None  # if it attacks

    def batch(self, round: int, step: int = 1, rows: int | None = None) -> tuple[Tensor, Tensor]:
        """Its mini-batch of a local step of a round, the one it has in the simulator.

        `rows` is its size, by default the batch size of the config.
        """
        draws, user, size = Keyed(self.seed, round), self.number - 1, len(self.samples)
        if self.epochs:
            drawn = epoch_places(draws, user, size, self.batch_size, step)
        else:
            rows = rows or self.batch_size
            drawn = places(draws, np.array([user]), np.array([size]), rows, step)[0]
        return self.samples.rows(torch.from_numpy(drawn).to(self.samples.inputs.device))

    def draws(self, round: int, step: int = 1) -> AbstractContextManager[None]:
        """Let what torch itself draws (dropout) be this user's own in this round, and no other's.

        In the simulator all users draw from one sequence, so such a model replays in law only.
        """
        seed = Keyed(self.seed, round).torch_seed
        return seeded((seed + self.number + ((step - 1) << 32)) % 2**63)


def make_share(config: Config, number: int, slow: float = 1.0) -> Share:
    """That of user `number` of 1..U, on a device as much slower as asked for."""
    # A user needs to know no method, and no engine has to be probed for it.
    simulation = from_config(config.changed(engine="loop"), method=FedAvg()).simulation
    model, own = simulation.model, simulation.shares.own(number - 1)
    attackers = simulation.attackers
    if slow != 1:
        Slowdown(model, slow)
    return Share(
        config.seed,
        number,
        model,
        simulation.engine.layers,
        own,
        config.batch_size,
        int(simulation.planned(np.array([number - 1]))[0]),
        config.local_epochs,
        attackers.attack if attackers is not None and attackers.has(number - 1) else None,
    )


def make_user(config: Config, number: int, slow: float = 1.0) -> User:
    """User `number` of 1..U, with its share of the data and nothing of the others'."""
    share = make_share(config, number, slow)
    own = None
    if config.equal_time():
        own = OwnBatch(config.batch_size, len(share.samples))

    def loss(round: int, step: int) -> Tensor:
        inputs, targets = share.batch(round, step, None if own is None else own.rows)
        with share.draws(round, step):
            return cross_entropy(share.model(inputs), targets).mean()

    make = User if share.attack is None else partial(AttackingUser, share.attack, number - 1)
    sender, compression = None, Compression.parse(config.compress)
    if compression is not None:
        sender = Sender(compression, share.layers, config.seed, number - 1)
    return make(
        user_name(number),
        share.model,
        share.layers,
        loss,
        steps=share.steps,
        batch=own,
        sender=sender,
    )


@dataclass(frozen=True)
class Joining:
    """Where users come from, on Ray."""

    address: str | None = None  # of a cluster; None: one is started
    here: int | None = None  # how many are started by the server; None: all of them
    min_users: int | None = None
    federation: str = "salf"

    def check(self, users: int, backend: str) -> None:
        """Refuse what cannot be."""
        given = (self.address, self.here, self.min_users)
        if backend != "ray" and any(each is not None for each in given):
            raise SalfError(
                "--address, --here and --min-users are for Ray; see docs/flower.md for Flower's."
            )
        for name, number in (("--here", self.here), ("--min-users", self.min_users)):
            if number is not None and self.address is None:
                raise SalfError(
                    f"nobody can join a Ray cluster that salf starts itself: {name} needs "
                    "--address."
                )
            if number is not None and not 0 <= number <= users:
                raise SalfError(f"{name} must be from 0 to --users, which is {users}.")


class Watcher(Protocol):
    """Somebody who looks on, such as the command line."""

    def begin(self, config: LiveConfig, layers: Sequence[str]) -> None:
        """The federation is put together."""

    def status(self, text: str) -> None:
        """What is being prepared; empty when that is over."""

    def round(self, row: Row) -> None:
        """A round is closed."""

    def say(self, text: str) -> None:
        """Something to know, such as for whom the server waits."""


class Nobody:
    """A watcher that writes to the log what should be known."""

    def begin(self, config: LiveConfig, layers: Sequence[str]) -> None:
        """Nothing to show."""

    def status(self, text: str) -> None:
        """Nothing to show."""

    def round(self, row: Row) -> None:
        """Nothing to show."""

    def say(self, text: str) -> None:
        """Log it."""
        log.warning("%s", text)


def run(
    config: LiveConfig,
    out: Path | str | None = None,
    *,
    resume: bool = False,
    joining: Joining | None = None,
    on_round: OnRound | None = None,
    watcher: Watcher | None = None,
) -> Result:
    """Train with real processes and a real clock, as `salf live` does.

        config = salf.live.config(salf.PRESETS["mnist-cnn"], users=8, deadline="50ms", slow="0.5x8")
        result = salf.live.run(config, "runs/live")

    With `out`, every closed round is saved there; with `resume`, a run that was stopped continues
    after the last of them. `on_round(row, model)` is called after each round and may
    raise `salf.StopTraining`; with the backend Flower the model lives in another process, so there
    is no `on_round`.
    """
    joining, watcher = joining or Joining(), watcher or Nobody()
    joining.check(config.users, config.backend)
    if config.backend == "flower" and on_round is not None:
        raise SalfError("on_round is for Ray: with Flower the model is in another process.")
    config = trusting(config, joining, watcher.say)
    if out is None:
        return _run(complete_live(config), None, joining, on_round, watcher)
    folder = RunFolder(out)
    with folder.locked():
        config = complete_live(folder.claim(complete(config, here=False), resume))
        if (summary := folder.finished(config)) is not None:
            return Result(config, folder.history(summary), summary)
        with _log_into(folder.path / LOG):
            return _run(config, folder, joining, on_round, watcher)


def trusting(config: LiveConfig, joining: Joining, say: Say) -> LiveConfig:
    """The config with the rule for users that may be bad, where it does not name one.

    Users that this command starts on a Ray of its own are trusted. Those that come to a cluster or
    through Flower are not.
    """
    if config.robust != "auto":
        return config
    rule = "trimmed" if config.backend == "flower" or joining.address is not None else "none"
    if rule != "none" and config.users < (needed := 2 * config.tolerate + 1):
        say(
            f"robust averaging is off: tolerating {config.tolerate} bad users takes at least "
            f"{needed} users, and there are {config.users}."
        )
        rule = "none"
    changed = config.changed(robust=rule)
    assert isinstance(changed, LiveConfig)
    return changed


def complete_live(config: Any) -> LiveConfig:
    """The config with what depends on where it is run filled in."""
    completed = complete(config)
    assert isinstance(completed, LiveConfig)
    return completed


def _run(
    config: LiveConfig,
    folder: RunFolder | None,
    joining: Joining,
    on_round: OnRound | None,
    watcher: Watcher,
) -> Result:
    training = from_config(config, report=watcher.say)  # before the users: data are fetched once
    watcher.begin(config, [layer.name for layer in training.simulation.engine.layers])
    if folder is not None:
        folder.begin(config)
    if config.backend == "ray":
        return _on_ray(config, training, folder, joining, on_round, watcher)
    with temporary_folder("salf-live") as scratch:
        kept = RunFolder(scratch) if folder is None else folder
        summary = _on_flower(config, kept, watcher)
        return Result(config, kept.history(summary), summary)


def _on_flower(config: LiveConfig, folder: RunFolder, watcher: Watcher) -> dict[str, Any]:
    import salf.live.flower  # noqa: F401  (which says it in a sentence if Flower is not there)
    from salf.experiments.flower_app import run_here

    return run_here(config, folder, watcher)


def _on_ray(
    config: LiveConfig,
    training: Training,
    folder: RunFolder | None,
    joining: Joining,
    on_round: OnRound | None,
    watcher: Watcher,
) -> Result:
    from salf.live.cluster import cluster

    started = config.users if joining.here is None else joining.here
    slow = slowness(config.slow, config.users)
    with cluster(joining.address, joining.federation):
        from salf.live import ray

        watcher.status("preparing users")
        users = [  # kept, because a user lasts as long as its handle
            ray.start_user(
                user_name(number),
                partial(make_user, config, number, slow[number - 1]),
                here=joining.here is not None,
            )
            for number in range(1, started + 1)
        ]
        ray.wait_ready(users, lambda n: watcher.status(f"{n} of {started} users are ready"))
        watcher.status("")
        link = ray.RayLink()
        _wait_for(joining.min_users or 0, link.users, watcher.say)
        return serve(config, link, folder, training=training, on_round=on_round, watcher=watcher)


def _wait_for(users: int, present: Callable[[], Collection[str]], say: Say) -> None:
    """Before the first round only: after it, nobody is waited for."""
    there = -1
    while (now := len(present())) < users:
        if now != there:
            say(f"{now} of {users} users have joined; waiting for `salf join`.")
        there = now
        time.sleep(0.2)


def serve(
    config: LiveConfig,
    link: Link,
    folder: RunFolder | None = None,
    *,
    training: Training | None = None,
    on_round: OnRound | None = None,
    watcher: Watcher | None = None,
) -> Result:
    """Train with the users at the other end of the link.

    With a folder, every closed round is kept there, and a run that was stopped continues after the
    last of them.
    """
    training, watcher = training or from_config(config), watcher or Nobody()
    simulation = training.simulation
    server = LiveServer(
        simulation.model,
        simulation.engine.layers,
        schedules.schedule(config.lr, config.rounds),
        method=config.make_method(),
        optimiser=config.make_optimiser(),
        max_norm=config.max_norm,
        local_steps=int(simulation.planned(np.arange(config.users)).max()),
        client_lr=config.client_lr,
        reach="learned" if config.learns_reach else "counted",
        work=stage_work(training),
        equal_time=config.batch_size if config.equal_time() else None,
        robust="none" if config.robust == "auto" else config.robust,
        tolerate=config.tolerate,
        compress=config.compress,
    )
    rows: list[Row] = []
    if folder is not None:
        server.restore(folder.checkpoint)
        rows = without_last_evaluation(records.resume(folder.rounds, server.t), training)
        records.rewrite(folder.rounds, rows)
    rounds = Rounds(
        server,
        link,
        config.make_deadline(),
        Grace(config.grace),
        cohort=None if config.cohort == "all" else config.cohort_size(),
        seed=config.seed,
        on_wait=watcher.say,
    )
    stopped = False
    while server.t < config.rounds and not stopped:
        row = training.measured(rounds.next(), config.rounds)
        rows.append(row)
        if folder is not None:  # the state comes last: a round that it does not have is run again
            records.append(folder.rounds, row)
            server.save(folder.checkpoint)
        watcher.round(row)
        try:
            if on_round is not None:
                on_round(row, simulation.model)
        except StopTraining:
            stopped = True
    return finish(config, training, rows, folder, stopped)


def stage_work(training: Training) -> list[float] | None:
    """The work of each stage of backpropagation; None where it cannot be counted."""
    simulation = training.simulation
    example, _ = some(simulation.shares, 8).rows()
    try:
        stages = Cost.of(simulation.model, simulation.engine.layers, example).stages()
    except SalfError:
        return None
    return [float(work) for work in stages]


def finish(
    config: LiveConfig,
    training: Training,
    rows: Sequence[Row],
    folder: RunFolder | None,
    stopped: bool = False,
) -> Result:
    """What a live run leaves when its rounds are over."""
    history = History(
        tuple(rows), training.tested(), config.backend, "users are real processes", stopped
    )
    summary = summarise(config, history, training) | _counted(config, rows)
    if folder is not None:
        folder.finish(training.simulation.model, rows, summary)
    return Result(config, history, summary)


def _counted(config: LiveConfig, rows: Sequence[Row]) -> dict[str, Any]:
    """What only live runs have: how far users came, and how rounds kept their limit."""
    answers = [(row, user) for row in rows for user in row.depths]
    asked = max(1, len(answers))
    finished = sum(row.finished(user) for row, user in answers)
    delivered = sum(row.delivered(user) for row, user in answers)
    limited = [row for row in rows if row.limit is not None]
    in_time = sum(row.seconds <= (row.limit or 0.0) for row in limited)
    return {
        "deadline": config.deadline,
        "finished": finished / asked,
        "partial": (delivered - finished) / asked,
        "nothing": (len(answers) - delivered) / asked,
        "late": sum(row.late for row in rows),
        "rejected": sum(len(row.rejected) for row in rows),
        "empty": sum(not any(row.reached) for row in rows),  # rounds in which nobody came anywhere
        "rounds_in_time": in_time / len(limited) if limited else None,
    }


@contextmanager
def _log_into(path: Path) -> Iterator[None]:
    """Keep the log of a live run in its folder."""
    handler = logging.FileHandler(path, encoding="utf-8", delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        handler.close()
