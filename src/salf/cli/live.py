"""A federation with real users and a real clock, and what can be done with its folder."""

import time
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer

from salf.cli.board import Board
from salf.cli.options import (
    ConfigSource,
    GivenSettings,
    option,
    settings_of,
    with_settings,
)
from salf.cli.terminal import answer, console, say, tell, wrote
from salf.common.bars import Bar
from salf.common.errors import ClusterLost, SalfError
from salf.runs.config import Config
from salf.runs.live_config import LiveConfig
from salf.runs.live_config import live as made_live
from salf.runs.presets import PRESETS, load_config

USERS = 8  # unless said otherwise: the paper's 30 are many processes for one machine
FederationName = Annotated[
    str, option("--federation", help="Name of the federation, if a cluster has several (salf).")
]
Folder = Annotated[Path, typer.Argument(help="The folder of a run (its --out).")]


@settings_of(LiveConfig)
def live(
    settings: GivenSettings,
    source: ConfigSource = "mnist-cnn",
    address: Annotated[
        str | None,
        option("--address", help="Use the Ray cluster at HOST:PORT; by default, start one."),
    ] = None,
    here: Annotated[
        int | None,
        option("--here", help="Number of users to start here; the others use `salf join`."),
    ] = None,
    min_users: Annotated[
        int | None, option("--min-users", help="Wait for this many users before round 1.")
    ] = None,
    federation: FederationName = "salf",
    out: Annotated[
        Path | None, option("--out", help="Folder for the record of every round and the model.")
    ] = None,
    resume: Annotated[
        bool,
        option("--resume", help="Continue after the last round saved in --out."),
    ] = False,
) -> None:
    """Train with real processes and a real clock: every round ends at its deadline.

    A preset has 8 users here, unless you set --users.

    Examples:

        salf live mnist-cnn --users 8 --deadline 50ms --slow 0.5x8 --out runs/live

        salf replay runs/live    (replay the recorded depths in the simulator)
    """
    from salf.core import rows
    from salf.live.launch import Joining, run
    from salf.runs.folder import RunFolder

    if resume and out is None:
        raise SalfError("--resume needs --out, the folder of the run to continue.")
    users = {"users": USERS} if source in PRESETS else {}
    config = with_settings(load_config(source), users | settings, made_live)
    joining = Joining(address, here, min_users, federation)
    with Board() as board:
        try:
            result = run(config, out, resume=resume, joining=joining, watcher=board)
        except ClusterLost as error:
            if out is None:
                raise
            saved = f"{len(rows.read(RunFolder(out).rounds))} rounds are saved. Repeat the command"
            raise SalfError(f"{error} {saved} with --resume to continue.") from None
    _tell_summary(result.summary)
    answer(result.summary)
    if out is None:
        say("Nothing was saved: add --out FOLDER to save the model and every round's depths.")
        return
    tell(f"The run is in {out}")
    from salf.report.watch import write_page

    try:
        wrote(write_page(out))
    except (SalfError, OSError) as error:  # the run is finished, whatever becomes of its page
        say(f"Could not create the page: {error}; then salf page {quote(str(out))} creates it.")


_SHARED = (
    "data", "data_dir", "model", "layers", "split", "batch_size", "seed", "validation", "compress",
)  # fmt: skip


@settings_of(Config, only=_SHARED)
def join(
    settings: GivenSettings,
    source: ConfigSource = "mnist-cnn",
    address: Annotated[
        str, option("--address", help="The Ray cluster, HOST:PORT, or auto on one of its machines.")
    ] = "auto",
    share: Annotated[
        str,
        option(
            "--share", help="Which user this is: 7/8 is user 7 of the server's 8, with its data."
        ),
    ] = "",
    federation: FederationName = "salf",
    slow: Annotated[
        float, option("--slow", help="Slow this user down by this factor.", min=1)
    ] = 1.0,
) -> None:
    """Run a user of a live federation on this machine; Ctrl-C leaves.

    First add the machine to the cluster (`ray start --address HOST:PORT`). Data, model, split and
    seed must be those of the server: they determine this user's share. Only gradients leave it.

    Example:

        salf join mnist-cnn --address 192.168.1.10:6379 --share 7/8
    """
    from salf.live.cluster import Pulse, cluster
    from salf.live.users import make_user, user_name

    number, _, of = share.partition("/")
    if not (number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of)):
        raise SalfError(
            "salf join needs --share NUMBER/USERS: for example, 7/8 for user 7 of the server's 8."
        )
    config = load_config(source).changed(users=int(of), **settings)
    name = user_name(int(number))
    with cluster(address, federation):
        from salf.live import ray

        with console.status("getting ready"):
            user = ray.start_user(name, partial(make_user, config, int(number), slow), here=True)
            ray.wait_ready([user])
        say(f"{name} has joined the federation. Press Ctrl-C to leave.")
        pulse = Pulse()
        try:
            while True:
                time.sleep(1)
                pulse.check()
        except (KeyboardInterrupt, SystemExit):
            say(f"{name} has left.")
            answer({"user": name})


def _tell_summary(summary: dict[str, Any]) -> None:
    tell(
        f"{summary['method']}: test accuracy {_shown(summary['test_accuracy'])} after "
        f"{summary['rounds']} rounds in {summary['seconds']:.1f} s. Users finished in "
        f"{summary['finished']:.0%}, reached some layers in {summary['partial']:.0%} and none in "
        f"{summary['nothing']:.0%} of their rounds; {summary['late']} updates were late, "
        f"{summary['rejected']} were rejected. Users sent {summary['bytes'] / 1e6:.1f} MB."
    )
    if summary["empty"] > summary["rounds"] / 2:
        some = "In {empty} of the {rounds} rounds".format(**summary)
        say(f"{some} nobody completed a layer: give users more time with --deadline.")
    if (in_time := summary["rounds_in_time"]) is not None:
        tell(f"{in_time:.1%} of the rounds closed within T_max plus the grace period.")


def page(folder: Folder) -> None:
    """Create the page of a run, a comparison or a live run from its files.

    The page is FOLDER/live.html, or report.html of simulated runs, one file that needs no network.
    During a run, or after one that was interrupted, it shows the rounds saved so far.
    """
    from salf.report.watch import write_page

    path = write_page(folder)
    wrote(path)
    answer({"page": path})


def replay(
    folder: Folder,
    trust: Annotated[
        bool, option("--trust", help="Run code that the folder's config names by import path.")
    ] = False,
) -> None:
    """Replay the recorded depths of a live run in the simulator, and compare the two models."""
    from salf.live.replays import recorded
    from salf.live.replays import replay as replayed_from
    from salf.runs.folder import RunFolder

    with Bar("replaying", len(recorded(folder)), counted=True) as bar:
        replayed = replayed_from(folder, lambda row, _: bar.update(row.round), trust=trust)
    accuracy, rounds = replayed.history.test_accuracy, len(replayed.history.rows)
    tell(f"replayed: test accuracy {_shown(accuracy)} after {rounds} rounds")
    summary = RunFolder(folder).summary()
    found = {"test_accuracy": accuracy, "rounds": rounds, "distance": replayed.distance}
    answer({**found, "live": summary})
    if summary is None:
        say("The live run is not finished, so there is nothing to compare with yet.")
    else:
        tell(
            f"live:     test accuracy {_shown(summary['test_accuracy'])}; relative "
            f"distance between the two models: {replayed.distance:.1e}"
        )


def _shown(accuracy: float | None) -> str:
    return "not measured" if accuracy is None else f"{accuracy:.4f}"
