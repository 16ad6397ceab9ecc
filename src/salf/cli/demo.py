"""`salf demo`: what to see first, on MNIST, or on digits where MNIST is out of reach.

Accuracy over simulated seconds on phones; then the paper's mixture of stragglers, round by round.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from rich.status import Status
from rich.text import Text

from salf.cli.compare import end
from salf.cli.options import DataDir, option
from salf.cli.terminal import Downloads, can_draw, console, results, say, tell
from salf.common.errors import DataUnavailable
from salf.runs.presets import PRESETS
from salf.runs.settings import key

# A deadline by which about half of the phones finish (`salf fleet preview` shows it), and
# a time in which FedAvg has about as many rounds as the paper gives it, 250.
CLOCKS = {
    "mnist-mlp": {"deadline": "60ms", "seconds": 30},
    "digits-mlp": {"deadline": "12ms", "seconds": 6},
}
FLEET, SKEWED, SEEDS = "phones", "dirichlet:0.1", 3
BY_CLOCK = {
    # Equal-time batches shorten FedAvg's wait, too: SALF with them is compared with both.
    "method": ["fedavg", "fedavg+equal-time", "salf", "salf+equal-time", "drop"],
    "fleet": FLEET,
    "split": [SKEWED],
}
BY_ROUND = {
    "method": ["fedavg", "salf", "drop"],
    "stragglers": 0.9,
    "split": ["iid", SKEWED],
    "average": ["reached", "all"],
    "eval_every": 10,
}


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

    preset = "mnist-mlp" if _has_mnist(data_dir) else "digits-mlp"
    drawn = can_draw(check_extra)
    base = PRESETS[preset].changed(data_dir=data_dir)
    runs = out / base.data  # apart, as MNIST may be within reach next time
    clocked = {**BY_CLOCK, **CLOCKS[preset]}
    by_clock = Sweep.of(base, clocked, SEEDS).run(runs / "seconds")
    if by_clock.interrupted:
        end(by_clock)
    print_tables(by_clock, results)
    tell("")
    by_round = Sweep.of(base, BY_ROUND, SEEDS).run(runs / "rounds")
    if by_round.interrupted:
        end(by_round)
    print_tables(by_round, results)
    if drawn:
        folder = {"data_dir": data_dir} if data_dir else {}  # with which it never takes other data
        commands = [
            _command(preset, {**asked, "seeds": SEEDS, **folder, "out": out / name})
            for name, asked in (("seconds", clocked), ("rounds", BY_ROUND))
        ]
        for path in write_both(by_clock, by_round, out, commands):
            tell(f"wrote {path}")
        tell(f"Open {out / 'report.html'} in a browser.")
    end(by_clock, by_round)


def _command(preset: str, asked: Mapping[str, Any]) -> list[str]:
    """A comparison as a command of its own."""
    texts = {n: ",".join(v) if isinstance(v, list) else v for n, v in asked.items()}
    named = {"methods" if n == "method" else key(n): text for n, text in texts.items()}
    return ["compare", preset, *(f"--{name}={text}" for name, text in named.items())]


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
