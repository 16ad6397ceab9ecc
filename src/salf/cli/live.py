"""`salf live` and `salf join`: a federation with real users and a real clock."""

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from shlex import join as shell
from typing import TYPE_CHECKING, Annotated, Any, Literal

from salf.cli.board import Board
from salf.cli.options import (
    BatchSize,
    Data,
    DataDir,
    EvalEvery,
    Lr,
    Model,
    Momentum,
    Rounds,
    Source,
    option,
    parse_duration,
    parse_number,
)
from salf.cli.recorded import accuracy_text
from salf.cli.terminal import console, say, tell
from salf.errors import SalfError

if TYPE_CHECKING:
    from salf.experiments.config import Config
    from salf.experiments.live import Clock, LiveFolder
    from salf.experiments.training import Training

Split = Annotated[str | None, option("--split", help="iid | dirichlet:0.1 | shards:2")]
Seed = Annotated[int | None, option("--seed", help="All random draws come from it.")]
Federation = Annotated[
    str, option("--federation", help="Which one, where a cluster has several (salf).")
]


@dataclass(frozen=True)
class Joining:
    """Where users come from, on Ray."""

    address: str | None
    here: int | None  # how many are started by the server; None: all of them
    min_users: int | None
    federation: str

    def check(self, users: int, engine: str) -> None:
        """Refuse what cannot be."""
        given = (self.address, self.here, self.min_users)
        if engine != "ray" and any(each is not None for each in given):
            raise SalfError(
                "--address, --here and --min-users are for Ray; see docs/flower.md for Flower's."
            )
        for name, number in (("--here", self.here), ("--min-users", self.min_users)):
            if number is not None and self.address is None:
                raise SalfError(f"nobody can join a Ray of our own: {name} needs --address.")
            if number is not None and not 0 <= number <= users:
                raise SalfError(f"{name} must be from 0 to --users, which is {users}.")


def live(
    source: Source = "mnist-cnn",
    users: Annotated[int, option("--users", help="Number of users (8).", min=1)] = 8,
    deadline: Annotated[
        str | None,
        option("--deadline", help="T_max, such as 50ms or 2s: a user's time a round. Needed."),
    ] = None,
    grace: Annotated[
        str | None,
        option("--grace", help="Time for messages after T_max; learned from arrivals by default."),
    ] = None,
    slow: Annotated[
        str,
        option("--slow", help="0.5x8: half of the users 8 times as slow. Several with commas."),
    ] = "",
    method: Annotated[
        str | None, option("--method", help="salf | drop | fedavg (which waits for all)")
    ] = None,
    most_norm: Annotated[
        float | None,
        option("--most-norm", help="Refuse a layer's gradient of a larger norm; learned else."),
    ] = None,
    engine: Annotated[
        Literal["ray", "flower"], option("--engine", help="ray (milliseconds) | flower (seconds)")
    ] = "ray",
    address: Annotated[
        str | None,
        option("--address", help="Join the Ray cluster at HOST:PORT; by default one is started."),
    ] = None,
    here: Annotated[
        int | None,
        option("--here", help="How many of the users to start; the others come by `salf join`."),
    ] = None,
    min_users: Annotated[
        int | None,
        option("--min-users", help="Begin when so many are there (those that are started)."),
    ] = None,
    federation: Federation = "salf",
    data: Data = None,
    data_dir: DataDir = None,
    model: Model = None,
    split: Split = None,
    rounds: Rounds = None,
    lr: Lr = None,
    momentum: Momentum = None,
    batch_size: BatchSize = None,
    eval_every: EvalEvery = None,
    seed: Seed = None,
    out: Annotated[
        Path | None, option("--out", help="Keep every closed round here, and the model.")
    ] = None,
    resume: Annotated[
        bool, option("--resume", help="Go on after the last closed round that --out holds.")
    ] = False,
) -> None:
    """Train with real processes and a real clock: every round ends at its deadline.

    Examples:

        salf live mnist-cnn --users 8 --deadline 50ms --slow 0.5x8 --out runs/live

        salf live mnist-cnn --users 4 --deadline 2s --engine flower

        salf page runs/live      (its page, also while the run still goes on)

        salf replay runs/live    (the recorded depths again, in the simulator)
    """
    from salf.experiments.config import load_config
    from salf.experiments.live import ROUNDS, Clock, LiveFolder, live_method
    from salf.live import record
    from salf.live.slow import slowness

    if resume and out is None:
        raise SalfError("--resume needs --out, the folder of the run to go on with.")
    config = load_config(source).changed(method=method)
    config = config.changed(
        users=users,
        data=data,
        data_dir=data_dir,
        model=model,
        split=split,
        rounds=rounds,
        lr=parse_number(lr),
        momentum=momentum,
        batch_size=batch_size,
        eval_every=eval_every,
        seed=seed,
    )
    live_method(config)
    slowness(slow, users)
    joining = Joining(address, here, min_users, federation)
    joining.check(users, engine)
    if deadline is None and config.method != "fedavg":
        raise SalfError("how long may a round take? Add --deadline, such as --deadline 50ms.")
    clock = Clock(
        None if deadline is None else parse_duration(deadline),
        None if grace is None else parse_duration(grace),
        slow,
        most_norm,
    )
    if out is None:
        _train(config, clock, None, engine, joining)
        say("Nothing was kept: add --out FOLDER to keep the model and every round's depths.")
        return
    folder = LiveFolder(out)
    with folder.claimed(config, clock, resume) as config:
        summary = folder.summary()
        if summary is not None:
            _tell_summary(summary)
        else:
            try:
                _train(config, clock, folder, engine, joining)
            except KeyboardInterrupt:
                # The page itself would take seconds, and somebody wants to stop now.
                if record.read(out / ROUNDS):
                    say(f"{_command('page', out)} makes a page of the rounds so far.")
                raise
    tell(f"The run is in {out}")
    _leave_page(out)


def _leave_page(out: Path) -> None:
    """A run is finished, whatever becomes of its page."""
    from salf.report import write_live_page

    try:
        tell(f"wrote {write_live_page(out)}")
    except (SalfError, OSError) as error:
        say(f"There is no page of it yet: {error}; then {_command('page', out)} makes it.")


def _command(*arguments: object) -> str:
    return shell(["salf", *map(str, arguments)])


def _train(
    config: "Config",
    clock: "Clock",
    folder: "LiveFolder | None",
    engine: str,
    joining: Joining,
) -> None:
    from salf.experiments.live import user_name
    from salf.experiments.training import from_config
    from salf.live.slow import slowness

    training = from_config(config, report=say)  # before the users, so that data are fetched once
    layers = [layer.name for layer in training.simulation.engine.layers]
    slow = dict(enumerate(slowness(clock.slow, config.users), 1))
    board = Board(
        config.rounds, layers, {user_name(number): factor for number, factor in slow.items()}
    )
    if engine == "flower":
        summary = _on_flower(config, clock, folder, board)
    else:
        summary = _on_ray(config, clock, folder, board, training, slow, joining)
    _tell_summary(summary)


def _on_ray(
    config: "Config",
    clock: "Clock",
    folder: "LiveFolder | None",
    board: Board,
    training: "Training",
    slow: dict[int, float],
    joining: Joining,
) -> dict[str, Any]:
    from salf.experiments.live import make_user, serve, user_name
    from salf.live.cluster import cluster

    started = config.users if joining.here is None else joining.here
    with cluster(joining.address, joining.federation):
        from salf.live import ray

        with console.status("users are getting ready") as status:
            users = [  # kept, because a user lasts as long as its handle
                ray.start_user(
                    user_name(number),
                    partial(make_user, config, number, slow[number]),
                    here=joining.here is not None,
                )
                for number in range(1, started + 1)
            ]
            ray.wait_ready(
                users, lambda ready: status.update(f"{ready} of {started} users are ready")
            )
        link = ray.RayLink()
        _wait_for(joining.min_users or 0, link.users)
        with board:
            return serve(
                config,
                clock,
                link,
                folder,
                training=training,
                on_round=board.show,
                on_wait=say,
            )


def _wait_for(users: int, present: Callable[[], Collection[str]]) -> None:
    """Before the first round only: after it, nobody is waited for."""
    there = -1
    while (now := len(present())) < users:
        if now != there:
            say(f"{now} of {users} users are there; waiting for `salf join`.")
        there = now
        time.sleep(0.2)


def _on_flower(
    config: "Config", clock: "Clock", folder: "LiveFolder | None", board: Board
) -> dict[str, Any]:
    import salf.live.flower  # noqa: F401  (which says it in a sentence if Flower is not there)
    from salf.experiments.live import LiveFolder
    from salf.files import temporary_folder
    from salf.flower_app import run_here

    with temporary_folder("salf-live") as scratch:
        kept = folder or LiveFolder(scratch)
        status = console.status("SuperLink and SuperNodes are getting ready")
        with status, board:
            return run_here(
                config, clock, kept, on_ready=status.stop, on_round=board.show, on_wait=say
            )


def join(
    source: Source = "mnist-cnn",
    address: Annotated[
        str, option("--address", help="The Ray cluster, HOST:PORT, or auto on one of its machines.")
    ] = "auto",
    share: Annotated[
        str,
        option("--share", help="7/8: take part as user 7 of the server's 8, with its share."),
    ] = "",
    federation: Federation = "salf",
    data: Data = None,
    data_dir: DataDir = None,
    model: Model = None,
    split: Split = None,
    batch_size: BatchSize = None,
    seed: Seed = None,
    slow: Annotated[float, option("--slow", help="How much slower than it is.", min=1)] = 1.0,
) -> None:
    """Let this machine be a user of a live federation; Ctrl-C leaves it.

    The machine is part of the cluster already (`ray start --address HOST:PORT`). Data, model, split
    and seed must be the server's: they say which share is this user's. Only layers leave it.

    Example:

        salf join mnist-cnn --address 192.168.1.10:6379 --share 7/8
    """
    from salf.experiments.config import load_config
    from salf.experiments.live import make_user, user_name
    from salf.live.cluster import cluster

    if not share:
        raise SalfError("which user is this? Add --share, as 7/8 for user 7 of the server's 8.")
    number, _, of = share.partition("/")
    if not (number.isdigit() and of.isdigit() and 1 <= int(number) <= int(of)):
        raise SalfError(f"--share is written NUMBER/USERS, as 7/8, not {share!r}.")
    config = load_config(source).changed(
        users=int(of),
        data=data,
        data_dir=data_dir,
        model=model,
        split=split,
        batch_size=batch_size,
        seed=seed,
    )
    name = user_name(int(number))
    with cluster(address, federation):
        from salf.live import ray

        with console.status("getting ready"):
            user = ray.start_user(name, partial(make_user, config, int(number), slow), here=True)
            ray.wait_ready([user])
        say(f"{name} is there for the server of this federation. Ctrl-C leaves.")
        try:
            while True:
                time.sleep(1)
        except KeyboardInterrupt:
            say(f"{name} has left.")


def _tell_summary(summary: dict[str, Any]) -> None:
    tell(
        f"{summary['method']}: test accuracy {accuracy_text(summary['test_accuracy'])} after "
        f"{summary['rounds']} rounds in {summary['seconds']:.1f} s. Users finished in "
        f"{summary['finished']:.0%}, reached some layers in {summary['partial']:.0%} and none in "
        f"{summary['nothing']:.0%} of their rounds; {summary['late']} updates were late, "
        f"{summary['rejected']} not used."
    )
    if (empty := summary.get("empty", 0)) > summary["rounds"] / 2:
        say(
            f"In {empty} of the {summary['rounds']} rounds nobody completed a layer: give users "
            "more time with --deadline."
        )
    if summary["rounds_in_time"] is not None:
        tell(f"{summary['rounds_in_time']:.1%} of the rounds closed in T_max and the grace period.")
