"""`salf demo`: SALF, Drop and FedAvg over simulated seconds, where the link decides and where not.

On MNIST, or on digits where MNIST is out of reach.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from rich.text import Text

from salf.cli.options import DataDir, option
from salf.cli.runs import end
from salf.cli.terminal import answer, console, results, say, tell, wrote
from salf.common.errors import DataUnavailable
from salf.runs.presets import PRESETS
from salf.runs.settings import key


@dataclass(frozen=True)
class DemoPart:
    """One comparison of the demo, and the folder of its runs.

    By the deadline, about half of the users finish (`salf fleet preview` shows it).
    """

    heading: str
    folder: str
    preset: str
    fleet: str
    deadline: str
    seconds: float  # in which FedAvg has 140 rounds or more


LINK, COMPUTING = "Where the link decides", "Where computing decides"
BOARDS = "microcontrollers:links=wifi"
PARTS: Mapping[str, tuple[DemoPart, ...]] = {
    "mnist": (
        DemoPart(LINK, "link", "mnist-mlp", "phones", "60ms", 30),
        DemoPart(COMPUTING, "computing", "mnist-cnn", BOARDS, "350ms", 90),
    ),
    "digits": (
        DemoPart(LINK, "link", "digits-mlp", "phones", "12ms", 6),
        DemoPart(COMPUTING, "computing", "digits-mlp", BOARDS, "10ms", 4),
    ),
}
METHODS, SPLIT, SEEDS = ["fedavg", "salf", "drop"], "dirichlet:0.1", 3


def demo(
    out: Annotated[
        Path, option("--out", help="Folder for the page, the figures and the runs (demo).")
    ] = Path("demo"),
    data_dir: DataDir = None,
) -> None:
    """Compare FedAvg, SALF and Drop over simulated seconds on two fleets, and write a page.

    On phones, messages take most of a round; on microcontrollers, computing does. The data are
    MNIST or, if it cannot be downloaded, digits, a small data set that comes with salf.
    """
    from salf.comparing import Sweep
    from salf.report.comparison import print_tables, write_together

    parts = PARTS["mnist" if _has_mnist(data_dir) else "digits"]
    folder = {"data_dir": data_dir} if data_dir else {}  # with which it never takes other data
    done = []
    for part in parts:
        tell(f"{part.heading}: {part.preset} on {part.fleet}")
        asked = {"fleet": part.fleet, "deadline": part.deadline, "seconds": part.seconds}
        asked |= {"split": SPLIT, **folder}
        base = PRESETS[part.preset]
        # By data set, as MNIST may be within reach next time.
        place = out / base.data / part.folder
        found = Sweep.of(base, {"method": METHODS, **asked}, SEEDS).run(place)
        if found.interrupted:
            end(found)
        print_tables(found, results)
        tell("")
        asked = {"methods": ",".join(METHODS), **asked, "seeds": SEEDS, "out": out / part.folder}
        flags = [f"--{key(name)}={value}" for name, value in asked.items()]
        done.append((part.heading, found, ["compare", part.preset, *flags]))
    wrote(*write_together(done, out))
    told = f"Open {out / 'report.html'} in a browser."
    answer({heading: found.records() for heading, found, _ in done}, told)
    end(*(found for _, found, _ in done))


def _has_mnist(folder: str | None) -> bool:
    from salf.data import load

    try:
        with console.status("looking for MNIST") as status:
            # While it lasts: a source that fails is no news if another one works.
            show = lambda line: status.update(Text(line))  # noqa: E731
            load("mnist", Path(folder) if folder else None, report=show)
    except DataUnavailable:
        say(
            "MNIST is not available (`salf data mnist` says why), so this demo uses digits: "
            "1,797 real images of 8x8 pixels that are part of salf."
        )
        return False
    return True
