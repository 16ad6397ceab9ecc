"""`salf demo`: what to see first, on MNIST, or on digits where MNIST is out of reach.

Accuracy over simulated seconds on phones; then the paper's mixture of stragglers, round by round.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from rich.status import Status
from rich.text import Text

from salf.cli.compare import end
from salf.cli.options import DataDir, option
from salf.cli.terminal import Downloads, can_draw, console, results, say, tell
from salf.common.errors import DataUnavailable
from salf.runs.config import Config
from salf.runs.presets import PRESETS


@dataclass(frozen=True)
class Clock:
    """A deadline by which about half of the phones finish, and a time for FedAvg to converge.

    `salf fleet preview PRESET --fleet phones` shows the former. In the latter FedAvg has about as
    many rounds as the paper gives it, 250.
    """

    deadline: float
    seconds: float


CLOCKS = {"mnist-mlp": Clock(0.8, 1000.0), "digits-mlp": Clock(0.095, 100.0)}
FLEET, SKEWED = "phones", "dirichlet:0.1"
# Equal-time batches shorten FedAvg's wait, too: SALF with them is compared with both.
BY_CLOCK = ["fedavg", "fedavg+equal-time", "salf", "salf+equal-time", "drop"]

METHODS = ["fedavg", "salf", "drop"]
SPLITS = ["iid", SKEWED]
AVERAGES = ["reached", "all"]
STRAGGLERS, SEEDS, EVAL_EVERY = 0.9, 3, 10


def demo(
    out: Annotated[
        Path, option("--out", help="Folder for the page, the figures and the runs (demo).")
    ] = Path("demo"),
    data_dir: DataDir = None,
) -> None:
    """Compare FedAvg, SALF and Drop over simulated seconds on phones, and write a page.

    A second comparison, over rounds, uses the paper's mixture with 90 % stragglers. The data are
    MNIST or, if it cannot be downloaded, digits, a small data set that comes with salf.
    """
    from salf.comparing import Sweep
    from salf.report.comparison import print_tables, write_both
    from salf.report.extra import check_extra
    from salf.report.seconds import sentences

    preset = "mnist-mlp" if _has_mnist(data_dir) else "digits-mlp"
    drawn = can_draw(check_extra)
    base = PRESETS[preset].changed(data_dir=data_dir)
    clocked = _clocked(base, CLOCKS[preset])
    runs = out / base.data  # apart, as MNIST may be within reach next time
    by_clock = Sweep.of(clocked, {"method": BY_CLOCK, "split": SKEWED}, SEEDS).run(runs / "seconds")
    print_tables(by_clock, results, words=False)
    tell("")
    if by_clock.interrupted:
        end(by_clock)
    compared = {
        "method": METHODS,
        "average": AVERAGES,
        "split": SPLITS,
        "stragglers": STRAGGLERS,
        "eval_every": EVAL_EVERY,
    }
    by_round = Sweep.of(base, compared, SEEDS).run(runs / "rounds")
    print_tables(by_round, results)
    if drawn:
        commands = [_by_clock(preset, data_dir, out), _by_round(preset, data_dir, out)]
        for path in write_both(by_clock, by_round, out, commands):
            tell(f"wrote {path}")
        tell(f"Open {out / 'report.html'} in a browser.")
    for sentence in sentences(by_clock):
        tell(f"\n{sentence}")
    end(by_clock, by_round)


def _clocked(base: Config, clock: Clock) -> Config:
    return base.changed(fleet=FLEET, deadline=clock.deadline, seconds=clock.seconds)


def _by_clock(preset: str, data_dir: str | None, out: Path) -> list[str]:
    """The comparison over seconds as a command of its own, which never takes other data."""
    clock = CLOCKS[preset]
    options = {
        "methods": ",".join(BY_CLOCK),
        "fleet": FLEET,
        "deadline": f"{1000 * clock.deadline:g}ms",
        "seconds": f"{clock.seconds:g}",
        "split": SKEWED,
    }
    return _command(preset, options, data_dir, out / "seconds")


def _by_round(preset: str, data_dir: str | None, out: Path) -> list[str]:
    options = {
        "methods": ",".join(METHODS),
        "stragglers": STRAGGLERS,
        "split": ",".join(SPLITS),
        "average": ",".join(AVERAGES),
        "eval-every": EVAL_EVERY,
    }
    return _command(preset, options, data_dir, out / "rounds")


def _command(
    preset: str, options: Mapping[str, object], data_dir: str | None, out: Path
) -> list[str]:
    folder = {"data-dir": data_dir} if data_dir else {}
    every = {**options, "seeds": SEEDS, **folder, "out": out}
    return ["compare", preset, *(f"--{name}={value}" for name, value in every.items())]


class _Quiet(Downloads):
    """Shows steps while they last: a source that fails is no news if another one works."""

    def __init__(self, status: Status) -> None:
        super().__init__()
        self._status = status

    def __call__(self, line: str) -> None:
        self._status.update(Text(line))


def _has_mnist(folder: str | None) -> bool:
    from salf.data import load

    try:
        with console.status("looking for MNIST") as status:
            load("mnist", Path(folder) if folder else None, report=_Quiet(status))
    except DataUnavailable:
        say(
            "MNIST is not available (`salf data mnist` says why), so this demo uses digits: "
            "1,797 real images of 8x8 pixels that are part of salf."
        )
        return False
    return True
