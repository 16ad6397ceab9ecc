"""`salf run`, `salf compare` and `salf data`."""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from salf.cli.options import (
    Options,
    Source,
    Workers,
    option,
    parse_list,
    parse_options,
    parse_ratio,
    settings_of,
)
from salf.cli.terminal import Downloads, console, progress_bar, results, say, tell
from salf.errors import SalfError
from salf.experiments.config import Config, load_config, refuse_deadline, simulated
from salf.methods import find

if TYPE_CHECKING:
    from salf.experiments.compare import Case, Comparison

Settings = dict[str, Any]


@settings_of(Config)
def run(
    settings: Settings,
    source: Source = "mnist-mlp",
    options: Options = None,
    out: Annotated[Path | None, option("--out", help="Folder to save the run in.")] = None,
    resume: Annotated[
        bool,
        option(
            "--resume",
            help="Continue the run in --out; --rounds or --seconds may extend it.",
        ),
    ] = False,
    checkpoint_every: Annotated[
        float, option("--checkpoint-every", help="Seconds between checkpoints (10).")
    ] = 10.0,
) -> None:
    """Train once. With --out, save the model, the metrics and the config in a folder.

    Examples:

        salf run mnist-mlp --method salf --stragglers 0.9

        salf run --data synthetic --model mynets:Net --users 20 --out runs/mine

        salf run runs/mine/config.toml    (the same numbers again, bit for bit)

        salf run --data digits --method mymethods:Halves    (a method of your own)

        salf run mnist-mlp --fleet phones --deadline 800ms --seconds 400    (a simulated clock)
    """
    from salf.experiments.clocked import NOBODY, nobody_is_cut_off
    from salf.experiments.pool import amount, share
    from salf.experiments.run import run as train
    from salf.report import names

    if resume and out is None:
        raise SalfError("--resume needs --out, the folder of the run to continue.")
    config = simulated(with_options(load_config(source), settings, options))
    # Simulated seconds are no whole numbers: how far they are is in percent.
    with progress_bar("{task.fields[state]}", counted=config.seconds is None) as progress:
        total, state = amount(config), ""
        task = progress.add_task(find(config.method).name, total=total, state=state)

        def on_round(row: Any, model: Any) -> None:
            nonlocal state
            if row.accuracy is not None:
                state = f"accuracy {row.accuracy:.4f}"
            clock = "" if row.clock is None else f"{names.duration(row.clock)} simulated "
            done = share(row, config.rounds, config.seconds)
            progress.update(task, completed=total * done, state=clock + state)

        result = train(
            config,
            out,
            resume=resume,
            checkpoint_every=checkpoint_every,
            on_round=on_round,
            report=Downloads(),
        )
    found = result.summary
    accuracy = found["test_accuracy"]
    tell(
        f"{find(config.method).name}, {names.who_is_slow(config)}: "
        + ("" if accuracy is None else f"test accuracy {accuracy:.4f} ")
        + f"after {found['rounds']} rounds {_clock(found)}in {found['seconds']:.1f} s "
        + f"({found['engine']} engine: {found['why']})"
    )
    if kept := found.get("remembered"):
        size = f"{kept['bytes'] / 1e6:.1f} MB"
        say(f"The server remembered the last updates of {kept['users']} users ({size}).")
    if nobody_is_cut_off(config, result.history):
        say(NOBODY)
    if out is None:
        say("Nothing was saved: add --out FOLDER to save the model, the metrics and the config.")
    else:
        tell(f"The run is in {out}")


def with_options(config: Config, settings: Settings, options: list[str] | None) -> Config:
    """The config with what the command line says; options are those of the method it names."""
    config = config.changed(method=settings.get("method"))
    if settings.get("fleet", config.fleet):
        refuse_with_fleet(settings)
    more = parse_options(options)
    made = config.changed(**settings, options=None if more is None else {**config.options, **more})
    if "deadline" in settings:
        refuse_deadline(made.make_method())
    return made


_COMPARED = ("method", "stragglers", "split", "average", "batches", "seed", "threads")


@settings_of(Config, without=_COMPARED)
def compare(
    settings: Settings,
    source: Source = "mnist-mlp",
    methods: Annotated[
        str | None,
        option(
            "--methods",
            help="Comma-separated; by default fedavg,drop and the config's. With a fleet, "
            "salf+equal-time is salf with --batches equal-time.",
        ),
    ] = None,
    stragglers: Annotated[
        str | None, option("--stragglers", help="Comma-separated ratios, such as 0.3,0.9.")
    ] = None,
    seeds: Annotated[int, option("--seeds", help="Number of seeds (3): 0, 1, 2.", min=1)] = 3,
    split: Annotated[
        str | None, option("--split", help="Comma-separated, such as iid,dirichlet:0.1.")
    ] = None,
    average: Annotated[
        str | None, option("--average", help="reached, all, or reached,all for both.")
    ] = None,
    batches: Annotated[
        str | None,
        option("--batches", help="With a fleet: equal, equal-time, or equal,equal-time for both."),
    ] = None,
    target: Annotated[
        float | None,
        option(
            "--target",
            help="With a fleet, the accuracy on held-out data to reach; by default 95 % of waiting "
            "FedAvg's at the end.",
        ),
    ] = None,
    options: Options = None,
    workers: Workers = None,
    out: Annotated[
        Path | None,
        option(
            "--out",
            help="Folder for results.csv, a figure and a page; continues a comparison begun there.",
        ),
    ] = None,
) -> None:
    """Compare several methods and print one table: mean and spread over the seeds.

    Examples:

        salf compare mnist-mlp --methods fedavg,drop,salf --stragglers 0.3,0.9 --seeds 3

        salf compare mnist-cnn --split iid,dirichlet:0.1 --average reached,all --out cmp

        salf compare --data digits --methods fedavg,salf,mymethods:Halves

        salf compare mnist-mlp --fleet phones --deadline 800ms --seconds 400 \\
            --batches equal,equal-time --out phones    (accuracy over simulated seconds)
    """
    base = simulated(load_config(source).changed(**settings))
    if base.fleet:
        refuse_with_fleet([*settings, *(["stragglers"] if stragglers else [])])
    compare_and_report(
        base,
        methods=parse_list(methods),
        stragglers=[parse_ratio(text) for text in parse_list(stragglers)],
        seeds=seeds,
        splits=parse_list(split),
        averages=parse_list(average),
        batches=parse_list(batches),
        goal=target,
        options=parse_options(options),
        workers=workers,
        out=out,
    )


def compare_and_report(
    base: Config,
    *,
    methods: list[str],
    stragglers: list[float],
    seeds: int,
    splits: list[str],
    averages: list[str],
    batches: Sequence[str] = (),
    goal: float | None = None,
    options: dict[str, Any] | None = None,
    workers: int | None = None,
    out: Path | None = None,
    runs: Path | None = None,
    command: Sequence[str] = (),
) -> None:
    """Compare, print the tables, and with `out` leave the page; empty lists mean the config's.

    The runs are in `out` too, unless `runs` names another folder. The page says that `command`
    makes it again, by default the one that was called.
    """
    from salf.experiments.compare import cases
    from salf.report import check_extra, print_tables, write_report

    drawn = out is not None and can_draw(check_extra)
    wanted = cases(
        methods or list(dict.fromkeys(["fedavg", "drop", base.method])),
        averages or [base.average],
        splits or [base.split],
        stragglers or [base.stragglers],
        batches or [base.batches],
        bool(base.fleet),
    )
    comparison = run_cases(
        base, wanted, seeds, runs or out, options=options, goal=goal, workers=workers
    )
    print_tables(comparison, results)
    if out is not None and drawn:
        for path in write_report(comparison, out, command=command or sys.argv[1:]):
            tell(f"wrote {path}")
    end(comparison)


def run_cases(
    base: Config, wanted: "Sequence[Case]", seeds: int, folder: Path | None, **more: Any
) -> "Comparison":
    """Run a comparison, with a bar while it lasts."""
    from salf.experiments.compare import compare as run_all

    by_clock = base.seconds is not None
    with progress_bar(counted=not by_clock) as progress:
        task = progress.add_task("simulated seconds" if by_clock else "rounds", total=None)
        return run_all(
            base,
            wanted,
            range(seeds),
            folder,
            on_progress=lambda done, total: progress.update(task, completed=done, total=total),
            report=Downloads(),
            **more,
        )


def end(*comparisons: "Comparison") -> None:
    """Say what diverged; then the exit code is 2."""
    failures = {name: why for each in comparisons for name, why in each.failures.items()}
    for name, reason in failures.items():
        say(f"salf: {name} failed: {reason}")
    if failures:
        raise typer.Exit(2)


@settings_of(Config, only=("data_dir",))
def data(
    settings: Settings,
    name: Annotated[
        str, typer.Argument(help="mnist | fashion-mnist | cifar10 | digits | idx:PATH | ...")
    ],
) -> None:
    """Download a data set into the cache, verify it, and print its size and source."""
    from salf.data import load

    folder = settings.get("data_dir")
    with console.status(f"looking for {name}"):
        found = load(name, Path(folder) if folder else None, report=Downloads())
    tell(
        f"{found.name}: {len(found.train):,} training and {len(found.test):,} test samples of "
        f"shape {'x'.join(map(str, found.train.shape))}, {found.classes} classes "
        f"({found.source})"
    )


def refuse_with_fleet(given: Iterable[str]) -> None:
    """Refuse settings that say how deep users get where their devices do."""
    for name in ("stragglers", "depth"):
        if name in given:
            raise SalfError(
                f"the fleet and the deadline determine how far users get: leave out --{name}."
            )


def _clock(summary: Mapping[str, Any]) -> str:
    simulated = summary.get("simulated_seconds")
    return "" if simulated is None else f"and {simulated:.4g} simulated seconds "


def can_draw(check: Callable[[], None]) -> bool:
    """Say before training, not after hours of it, that there will be no picture and no page."""
    try:
        check()
    except SalfError as error:
        say(f"No figure and no page will be written: {error}")
        return False
    return True
