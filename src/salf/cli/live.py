"""`salf live` and `salf join`: a federation with real users and a real clock."""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from shlex import join as shell
from typing import TYPE_CHECKING, Annotated, Any

from salf.cli.board import Board
from salf.cli.options import Options, Settings, Source, joined_options, option, settings_of
from salf.cli.recorded import accuracy_text
from salf.cli.terminal import console, say, tell
from salf.common.errors import ClusterLost, SalfError
from salf.runs.config import Config
from salf.runs.live_config import LiveConfig
from salf.runs.live_config import live as made_live
from salf.runs.presets import PRESETS, load_config
from salf.runs.settings import refuse_deadline

if TYPE_CHECKING:
    from salf.core.rows import Row

USERS = 8  # unless said otherwise: the paper's 30 are many processes for one machine
Federation = Annotated[
    str, option("--federation", help="Name of the federation, if a cluster has several (salf).")
]


@settings_of(LiveConfig)
def live(
    settings: Settings,
    source: Source = "mnist-cnn",
    options: Options = None,
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
    federation: Federation = "salf",
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

        salf live mnist-cnn --users 4 --deadline 2s --backend flower

        salf live digits-mlp --deadline 50ms --method mymethods:Halves    (no download)

        salf page runs/live      (make the page, even during the run)

        salf replay runs/live    (replay the recorded depths in the simulator)
    """
    from salf.live.launch import Joining, run

    if resume and out is None:
        raise SalfError("--resume needs --out, the folder of the run to continue.")
    config = _live_config(source, settings, options)
    joining = Joining(address, here, min_users, federation)
    with Screen() as screen:
        try:
            result = run(config, out, resume=resume, joining=joining, watcher=screen)
        except (KeyboardInterrupt, SystemExit):
            # The page itself would take seconds, and somebody wants to stop now.
            if out is not None and _rounds(out):
                say(f"{_command('page', out)} creates a page from the rounds so far.")
            raise
        except ClusterLost as error:
            if out is None:
                raise
            raise SalfError(
                f"{error} {_rounds(out)} rounds are saved. Repeat the command with --resume to "
                "continue."
            ) from None
    _tell_summary(result.summary)
    if out is None:
        say("Nothing was saved: add --out FOLDER to save the model and every round's depths.")
        return
    tell(f"The run is in {out}")
    _leave_page(out)


def _live_config(source: str, settings: Settings, options: list[str] | None) -> LiveConfig:
    config = load_config(source).changed(method=settings.get("method"))
    users = {"users": USERS} if source in PRESETS else {}
    made = made_live(config, **{**users, **settings, "options": joined_options(config, options)})
    if "deadline" in settings:
        refuse_deadline(made.make_method())
    return made


class Screen:
    """What a person sees of a live run: what is being prepared, then the board."""

    def __init__(self) -> None:
        self._board: Board | None = None
        self._status = console.status("")
        self._open = ExitStack()

    def __enter__(self) -> "Screen":
        return self

    def __exit__(self, *_: object) -> None:
        self._status.stop()
        self._open.close()

    def begin(self, config: LiveConfig, layers: Sequence[str]) -> None:
        """The federation is put together."""
        from salf.live.slow import slowness
        from salf.live.users import user_name

        slow = enumerate(slowness(config.slow, config.users), 1)
        factors = {user_name(number): factor for number, factor in slow}
        self._board = self._open.enter_context(Board(config.rounds, layers, factors))

    def status(self, text: str) -> None:
        """What is being prepared; empty when that is over."""
        if text:
            self._status.update(text)
            self._status.start()
        else:
            self._status.stop()

    def round(self, row: "Row") -> None:
        """A round is closed."""
        if self._board is not None:
            self._board.show(row)

    def say(self, text: str) -> None:
        """Something to know."""
        say(text)


def _rounds(out: Path) -> int:
    from salf.core import rows
    from salf.runs.folder import RunFolder

    return len(rows.read(RunFolder(out).rounds))


def _leave_page(out: Path) -> None:
    """A run is finished, whatever becomes of its page."""
    from salf.report.live.page import write_live_page

    try:
        tell(f"wrote {write_live_page(out)}")
    except (SalfError, OSError) as error:
        say(f"Could not create the page: {error}; then {_command('page', out)} creates it.")


def _command(*arguments: object) -> str:
    return shell(["salf", *map(str, arguments)])


_SHARED = (
    "data",
    "data_dir",
    "model",
    "layers",
    "split",
    "batch_size",
    "seed",
    "validation",
    "compress",
)


@settings_of(Config, only=_SHARED)
def join(
    settings: Settings,
    source: Source = "mnist-cnn",
    address: Annotated[
        str, option("--address", help="The Ray cluster, HOST:PORT, or auto on one of its machines.")
    ] = "auto",
    share: Annotated[
        str,
        option(
            "--share",
            help="Which user this is: 7/8 is user 7 of the server's 8, with its share of the data.",
        ),
    ] = "",
    federation: Federation = "salf",
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

    if not share:
        raise SalfError("salf join needs --share: for example, 7/8 for user 7 of the server's 8.")
    number, _, of = share.partition("/")
    if not (number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of)):
        raise SalfError(f"--share must be NUMBER/USERS, such as 7/8, not {share!r}.")
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


def _tell_summary(summary: dict[str, Any]) -> None:
    # Runs of earlier versions did not count them.
    sent = f" Users sent {summary['bytes'] / 1e6:.1f} MB." if "bytes" in summary else ""
    tell(
        f"{summary['method']}: test accuracy {accuracy_text(summary['test_accuracy'])} after "
        f"{summary['rounds']} rounds in {summary['seconds']:.1f} s. Users finished in "
        f"{summary['finished']:.0%}, reached some layers in {summary['partial']:.0%} and none in "
        f"{summary['nothing']:.0%} of their rounds; {summary['late']} updates were late, "
        f"{summary['rejected']} were rejected.{sent}"
    )
    if (empty := summary["empty"]) > summary["rounds"] / 2:
        say(
            f"In {empty} of the {summary['rounds']} rounds nobody completed a layer: give users "
            "more time with --deadline."
        )
    if summary["rounds_in_time"] is not None:
        in_time = f"{summary['rounds_in_time']:.1%}"
        tell(f"{in_time} of the rounds closed within T_max plus the grace period.")
