"""A live run: the federation a config describes, with real users and a real clock.

Users draw the batches the simulator would, so a live run can be replayed in it, with the depths
that were recorded.
"""

import json
import logging
import tomllib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

import tomli_w
import torch
from safetensors.torch import save_model
from torch import Tensor, nn

from salf import server as servers
from salf.data import Samples
from salf.engines import cross_entropy
from salf.errors import SalfError, unknown
from salf.experiments.config import Config
from salf.experiments.run import CONFIG, MODEL, SUMMARY, RunFolder
from salf.experiments.simulation import Batches, round_rng, seeded
from salf.experiments.training import Training, from_config
from salf.files import delete_left_over, whole_file, write_whole
from salf.layers import Layers
from salf.live import record
from salf.live.inspection import check_most_norm
from salf.live.record import Record
from salf.live.rounds import Grace, Link, Rounds, check_deadline
from salf.live.server import LiveMethod, LiveServer
from salf.live.slow import Slowdown
from salf.live.user import User

LIVE, ROUNDS, STATE, LOG = "live.toml", "rounds.jsonl", "state.safetensors", "live.log"


@dataclass(frozen=True)
class Clock:
    """What a live run has beyond a config: times in seconds, who is made slow, what is refused."""

    deadline: float | None  # None: no deadline, for a method that waits
    grace: float | None = None  # None: learned from arrivals
    slow: str = ""
    most_norm: float | None = None  # of a layer's gradient; None: learned from updates

    def __post_init__(self) -> None:
        check_deadline(self.deadline)
        check_most_norm(self.most_norm)
        Grace(self.grace)  # which checks it


def user_name(number: int) -> str:
    """What user 1..U of a config is called."""
    return f"user-{number}"


@dataclass(frozen=True)
class Share:
    """What a user of a config has: the model to be trained, and its own part of the data."""

    config: Config
    number: int  # of 1..U
    model: nn.Module
    layers: Layers
    samples: Samples
    batches: Batches

    def batch(self, round: int) -> tuple[Tensor, Tensor]:
        """Its mini-batch of a round, the one it has in the simulator."""
        rng, _ = round_rng(self.config.seed, round)
        picks = torch.from_numpy(self.batches.picks(rng)[self.number - 1])
        return self.samples.rows(picks.to(self.samples.inputs.device))

    def draws(self, round: int) -> AbstractContextManager[None]:
        """Let what torch itself draws (dropout) be this user's own in this round, and no other's.

        In the simulator all users draw from one sequence, so such a model replays in law only.
        """
        _, seed = round_rng(self.config.seed, round)
        return seeded((seed + self.number) % 2**63)


def make_share(config: Config, number: int, slow: float = 1.0) -> Share:
    """That of user `number` of 1..U, on a device as much slower as asked for."""
    simulation = from_config(config).simulation
    batches, model = simulation.batches, simulation.model
    first = batches.offsets[number - 1]
    own = simulation.samples.subset(batches.samples[first : first + batches.sizes[number - 1]])
    if slow != 1:
        Slowdown(model, slow)
    return Share(config, number, model, simulation.engine.layers, own, batches)


def make_user(config: Config, number: int, slow: float = 1.0) -> User:
    """User `number` of 1..U, with its share of the data and nothing of the others'."""
    share = make_share(config, number, slow)

    def loss(round: int) -> Tensor:
        inputs, targets = share.batch(round)
        with share.draws(round):
            return cross_entropy(share.model(inputs), targets).mean()

    return User(user_name(number), share.model, share.layers, loss)


def make_server(config: Config, training: Training, most_norm: float | None = None) -> LiveServer:
    """The server of a config's federation, for the model that is to be trained."""
    simulation = training.simulation
    return LiveServer(
        simulation.model,
        simulation.engine.layers,
        servers.schedule(config.lr, config.rounds),
        method=live_method(config),
        momentum=config.momentum,
        most_norm=most_norm,
    )


def serve(
    config: Config,
    clock: Clock,
    link: Link,
    folder: "LiveFolder | None" = None,
    *,
    training: Training | None = None,
    on_round: Callable[[Record], None] | None = None,
    on_wait: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Train with the users at the other end of the link, and return the summary.

    With a folder, every closed round is kept there, and a run that was stopped goes on after the
    last of them.
    """
    training = training or from_config(config)
    server = make_server(config, training, clock.most_norm)
    tally = Tally(len(server.layers))
    for done in folder.restore(server) if folder is not None else ():
        tally.add(done)
    rounds = Rounds(server, link, clock.deadline, Grace(clock.grace), on_wait=on_wait)
    while server.t < config.rounds:
        row = rounds.next()
        due = row.round % training.eval_every == 0 or row.round == config.rounds
        done = Record(**vars(row), accuracy=training.validation_accuracy() if due else None)
        tally.add(done)
        if folder is not None:
            folder.add(done, server)
        if on_round is not None:
            on_round(done)
    summary = summarise(config, clock, training, tally)
    if folder is not None:
        folder.finish(training, summary)
    return summary


def live_method(config: Config) -> LiveMethod:
    """The method, if a live federation has it."""
    if config.method not in get_args(LiveMethod):
        raise unknown("live method", config.method, get_args(LiveMethod))
    if config.average != "reached":
        raise SalfError("a live run averages over the users that reached a layer, not over all.")
    return config.method  # type: ignore[return-value]


class Tally:
    """What is counted over the rounds."""

    def __init__(self, layers: int) -> None:
        self._layers = layers
        self.rounds = self.late = self.rejected = 0
        self.empty = 0  # rounds in which nobody reached a layer
        self.finished = self.partial = self.nothing = 0  # users' rounds
        self.limited = self.in_time = 0  # rounds with a limit, and those that kept it
        self.seconds = 0.0

    def add(self, done: Record) -> None:
        """Count a round."""
        self.rounds += 1
        self.empty += not any(done.reached)
        self.late += done.late
        self.rejected += len(done.rejected)
        self.seconds += done.seconds
        for depth in done.depths.values():
            self.finished += depth == 1
            self.partial += 1 < depth <= self._layers
            self.nothing += depth > self._layers
        if done.limit is not None:
            self.limited += 1
            self.in_time += done.seconds <= done.limit


def summarise(config: Config, clock: Clock, training: Training, tally: Tally) -> dict[str, Any]:
    """What there is to say about a finished run."""
    asked = max(1, tally.finished + tally.partial + tally.nothing)
    return {
        "test_accuracy": training.test_accuracy(),
        "rounds": tally.rounds,
        "seconds": round(tally.seconds, 3),
        "method": config.method,
        "deadline": clock.deadline,
        "finished": tally.finished / asked,
        "partial": tally.partial / asked,
        "nothing": tally.nothing / asked,
        "late": tally.late,
        "rejected": tally.rejected,
        "empty": tally.empty,
        "rounds_in_time": tally.in_time / tally.limited if tally.limited else None,
        "layers": [layer.name for layer in training.simulation.engine.layers],
    }


class LiveFolder:
    """The files of one live run: config.toml, live.toml, rounds.jsonl, the state, the log."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def claimed(self, config: Config, clock: Clock, resume: bool) -> Iterator[Config]:
        """Keep the folder for this run while it lasts, with its log in it."""
        folder = RunFolder(self.path)
        with folder.locked():
            if not (self.path / CONFIG).exists():
                write_whole(self.path / LIVE, tomli_w.dumps(_table(clock)))
            elif not (self.path / LIVE).exists():
                raise SalfError(f"{self.path} holds a run that is not live. Choose another --out.")
            config = folder.claim(config, resume)
            self._check_clock(clock)
            delete_left_over(self.path, (LIVE, ROUNDS, STATE))
            handler = logging.FileHandler(self.path / LOG, encoding="utf-8")
            handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
            logger = logging.getLogger("salf.live")
            logger.addHandler(handler)
            logger.setLevel(logging.INFO)
            try:
                yield config
            finally:
                logger.removeHandler(handler)
                handler.close()

    def clock(self) -> Clock:
        """That of the run in this folder."""
        try:
            return Clock(**{"deadline": None, **self._stored_clock()})
        except (FileNotFoundError, NotADirectoryError):
            raise SalfError(f"{self.path} holds no live run: there is no {LIVE} in it.") from None
        except (ValueError, TypeError) as error:
            raise SalfError(f"{self.path / LIVE} cannot be read ({error}).") from None

    def summary(self) -> dict[str, Any] | None:
        """That of a finished run."""
        try:
            found: dict[str, Any] = json.loads((self.path / SUMMARY).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        return found

    def restore(self, server: LiveServer) -> list[Record]:
        """Put the server after the last closed round, and return the rounds up to there."""
        if (self.path / STATE).exists():
            server.restore(self.path / STATE)
        return record.resume(self.path / ROUNDS, server.t)

    def add(self, done: Record, server: LiveServer) -> None:
        """A round is closed. The state comes last: a round that it does not have is run again."""
        record.append(self.path / ROUNDS, done)
        server.save(self.path / STATE)

    def finish(self, training: Training, summary: dict[str, Any]) -> None:
        """Write what a finished run leaves; the summary last, since it says that all is there."""
        with whole_file(self.path / MODEL) as temporary:
            save_model(training.simulation.model, str(temporary))
        write_whole(self.path / SUMMARY, json.dumps(summary, indent=2) + "\n")

    def _stored_clock(self) -> dict[str, Any]:
        return tomllib.loads((self.path / LIVE).read_text(encoding="utf-8"))

    def _check_clock(self, clock: Clock) -> None:
        there, ours = self._stored_clock(), _table(clock)
        if differs := sorted(k for k in there | ours if there.get(k) != ours.get(k)):
            raise SalfError(
                f"{self.path} holds a run with another clock (it differs in "
                f"{', '.join(differs)}). Choose another --out."
            )


def _table(clock: Clock) -> dict[str, Any]:
    return {key: value for key, value in asdict(clock).items() if value is not None}
