"""`salf demo`: the comparison to see first, on MNIST, or on digits where MNIST is out of reach."""

from pathlib import Path
from typing import Annotated

from rich.status import Status
from rich.text import Text

from salf.cli.options import DataDir, option
from salf.cli.simulation import compare_and_report
from salf.cli.terminal import Downloads, console, say, tell
from salf.errors import DataUnavailable
from salf.experiments.config import PRESETS

METHODS = ["fedavg", "salf", "drop"]
SPLITS = ["iid", "dirichlet:0.1"]
AVERAGES = ["reached", "all"]
STRAGGLERS, SEEDS, EVAL_EVERY = 0.9, 3, 10


def demo(
    out: Annotated[
        Path, option("--out", help="Leave the page, the picture and the runs here (demo).")
    ] = Path("demo"),
    data_dir: DataDir = None,
) -> None:
    """Compare FedAvg, SALF and Drop at 90 % stragglers, and leave a page to look at.

    It gets MNIST, and where that is impossible takes digits, a small data set that is part of salf.
    """
    preset = "mnist-mlp" if _has_mnist(data_dir) else "digits-mlp"
    base = PRESETS[preset].changed(eval_every=EVAL_EVERY, data_dir=data_dir)
    compare_and_report(
        base,
        methods=METHODS,
        stragglers=[STRAGGLERS],
        seeds=SEEDS,
        splits=SPLITS,
        averages=AVERAGES,
        out=out,
        runs=out / base.data,  # apart, as MNIST may be within reach next time
        command=_command(preset, data_dir, out),
    )
    if (out / "report.html").exists():
        tell(f"Open {out / 'report.html'} in a browser.")


def _command(preset: str, data_dir: str | None, out: Path) -> list[str]:
    """The comparison as a command of its own, which never takes other data."""
    options = {
        "methods": ",".join(METHODS),
        "stragglers": STRAGGLERS,
        "split": ",".join(SPLITS),
        "average": ",".join(AVERAGES),
        "seeds": SEEDS,
        "eval-every": EVAL_EVERY,
        **({"data-dir": data_dir} if data_dir else {}),
        "out": out,
    }
    return ["compare", preset, *(f"--{name}={value}" for name, value in options.items())]


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
            "MNIST is out of reach (`salf data mnist` says why), so this demo is on digits: "
            "1,797 real images of 8x8 pixels that are part of salf."
        )
        return False
    return True
