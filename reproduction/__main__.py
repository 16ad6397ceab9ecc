"""`python -m reproduction`, in the folder of the project."""

from pathlib import Path
from time import monotonic
from typing import Annotated

import typer
from rich.text import Text

from reproduction.items import ITEMS
from reproduction.page import Made
from reproduction.reproduce import PAGE, reproduce
from reproduction.sizes import SIZES
from salf import cli
from salf.cli.options import DataDir, Nodes, Workers, option, workers_of
from salf.cli.terminal import results, say, tell
from salf.common.bars import Bar, console
from salf.common.errors import SalfError, unknown

SILENCE = 300.0  # seconds between progress lines where there is no bar


def command(
    what: Annotated[
        list[str] | None,
        typer.Argument(metavar="[WHAT]...", help=f"{' | '.join(ITEMS)} | all (the default)"),
    ] = None,
    size: Annotated[
        str,
        option(
            "--size",
            help="quick: fewer seeds and rounds, about 40 minutes on two cores | medium: the "
            "paper's setting on MNIST, and VGG-11 for 300 rounds: some hours | paper: the paper's "
            "setting; minutes for MNIST, days for VGG (quick)",
        ),
    ] = "quick",
    seeds: Annotated[
        int | None,
        option(
            "--seeds",
            help="Number of seeds; by default 5 on MNIST and 3 on CIFAR-10 (quick: 3 and 1).",
            min=1,
        ),
    ] = None,
    out: Annotated[Path, option("--out", help="Folder for all results (reproduced).")] = Path(
        "reproduced"
    ),
    data_dir: DataDir = None,
    workers: Workers = None,
    cluster: Nodes = None,
) -> None:
    """Reproduce the paper's tables, figures, lemmas and theorem, with a verdict on every claim.

    Writes a CSV file and a figure for each, and one page with the paper's results beside ours.
    Repeat the command to continue after an interruption. The page keeps items of earlier commands.

    Examples:

        python -m reproduction table1 --size paper

        python -m reproduction fig-vgg fig-vgg90 --data-dir FOLDER-WITH-CIFAR-10

        python -m reproduction    (everything)
    """
    if size not in SIZES:
        raise unknown("size", size, SIZES)
    if data_dir and not Path(data_dir).is_dir():
        raise SalfError(f"the data folder {data_dir} does not exist.")
    began = monotonic()
    with workers_of(workers, cluster) as given, Bar("work", memory=300.0) as bar:
        told = began

        def on_progress(done: float, total: float) -> None:
            nonlocal told
            bar.update(done, total)
            if not console.is_terminal and monotonic() - told > SILENCE and done > 0:
                told = monotonic()
                left = (told - began) * (total - done) / done / 60
                say(f"{100 * done / total:.0f} % done, about {left:.0f} minutes left")

        made = reproduce(
            what or [],
            SIZES[size],
            out,
            seeds=seeds,
            data_dir=str(Path(data_dir).absolute()) if data_dir else "",
            workers=given,
            on_progress=on_progress,
            on_item=lambda name, item: console.print(_line(name, item), soft_wrap=True),
            report=say,
        )
    _print_verdicts({name: made.made[name] for name in made.made if _asked(name, what)})
    tell(f"\nwrote {out / PAGE} in {(monotonic() - began) / 60:.1f} minutes")
    for name, reason in made.skipped.items():
        say(f"salf: {name} was skipped: {reason}")
    for name, reason in made.diverged.items():
        say(f"salf: {name} failed: {reason}")
    if made.skipped or made.diverged:
        raise typer.Exit(2)


def _asked(name: str, what: list[str] | None) -> bool:
    return not what or "all" in what or name in what


def _line(name: str, made: Made) -> Text:
    found = (f"{verdict.value}: {count}" for verdict, count in made.counts().items())
    return Text(f"{name} is done ({', '.join(found)})")


def _print_verdicts(made: dict[str, Made]) -> None:
    styles = {"holds": "green", "holds in part": "yellow", "does not hold": "red"}
    for name, item in made.items():
        results.print(Text(f"\n{name}: {item.title}", "bold"), soft_wrap=True)
        for finding in item.outcome.findings:
            verdict = finding.verdict.value
            line = Text.assemble((verdict, styles.get(verdict, "dim")), f": {finding.claim}")
            results.print(line, soft_wrap=True)


def main() -> None:
    """Run the command line."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich")
    app.command()(command)
    cli.main(app, continues=True)


if __name__ == "__main__":  # not in the processes that it starts
    main()
