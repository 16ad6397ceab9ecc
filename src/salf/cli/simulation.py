"""`salf run`, `salf compare` and `salf data`."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from salf.cli.options import (
    BatchSize,
    Data,
    DataDir,
    Depth,
    Device,
    Engine,
    EvalEvery,
    Lr,
    Model,
    Momentum,
    Options,
    Rounds,
    Source,
    Users,
    option,
    parse_list,
    parse_number,
    parse_options,
    parse_ratio,
)
from salf.cli.terminal import console, progress_bar, results, say, tell
from salf.depth import has_ratio
from salf.errors import SalfError
from salf.methods import METHODS

if TYPE_CHECKING:
    from salf.experiments.config import Config


def run(
    source: Source = "mnist-mlp",
    method: Annotated[str | None, option("--method", help=" | ".join(METHODS))] = None,
    average: Annotated[
        str | None,
        option(
            "--average",
            help="reached: over the users that reached a layer, as the equations say | all: over "
            "all users, as the authors' script does",
        ),
    ] = None,
    split: Annotated[str | None, option("--split", help="iid | dirichlet:0.1 | shards:2")] = None,
    stragglers: Annotated[
        float | None, option("--stragglers", help="The ratio of stragglers, in [0, 1].")
    ] = None,
    seed: Annotated[int | None, option("--seed", help="All random draws come from it.")] = None,
    data: Data = None,
    data_dir: DataDir = None,
    model: Model = None,
    depth: Depth = None,
    users: Users = None,
    rounds: Rounds = None,
    lr: Lr = None,
    momentum: Momentum = None,
    batch_size: BatchSize = None,
    eval_every: EvalEvery = None,
    device: Device = None,
    engine: Engine = None,
    options: Options = None,
    threads: Annotated[
        int | None,
        option("--threads", help="Cores to use; by default $OMP_NUM_THREADS, else all of them."),
    ] = None,
    out: Annotated[Path | None, option("--out", help="Leave the run's folder here.")] = None,
    resume: Annotated[
        bool, option("--resume", help="Go on with the run that --out holds.")
    ] = False,
    checkpoint_every: Annotated[
        float, option("--checkpoint-every", help="Seconds between checkpoints (10).")
    ] = 10.0,
) -> None:
    """Train once; with --out, leave a folder with all there is to know about it.

    Examples:

        salf run mnist-mlp --method salf --stragglers 0.9

        salf run --data synthetic --model mynets:Net --users 20 --out runs/mine

        salf run runs/mine/config.toml    (the same numbers again, bit for bit)
    """
    from salf.experiments.config import load_config
    from salf.experiments.run import run as train

    if resume and out is None:
        raise SalfError("--resume needs --out, the folder of the run to go on with.")
    config = load_config(source).changed(method=method)
    more = parse_options(options)
    config = config.changed(
        average=average,
        split=split,
        stragglers=stragglers,
        seed=seed,
        data=data,
        data_dir=data_dir,
        model=model,
        depth=depth,
        users=users,
        rounds=rounds,
        lr=parse_number(lr),
        momentum=momentum,
        batch_size=batch_size,
        eval_every=eval_every,
        device=device,
        engine=engine,
        threads=threads,
        options=None if more is None else {**config.options, **more},
    )
    with progress_bar("{task.fields[accuracy]}") as progress:
        task = progress.add_task(config.method, total=config.rounds, accuracy="")

        def on_row(row: Any) -> None:
            progress.update(task, completed=row.round)
            if row.accuracy is not None:
                progress.update(task, accuracy=f"accuracy {row.accuracy:.4f}")

        result = train(
            config,
            out,
            resume=resume,
            checkpoint_every=checkpoint_every,
            on_row=on_row,
            report=say,
        )
    found = result.summary
    accuracy = found["test_accuracy"]
    tell(
        f"{config.method}, {_who_is_slow(config)}: "
        + ("" if accuracy is None else f"test accuracy {accuracy:.4f} ")
        + f"after {config.rounds} rounds in {found['seconds']:.1f} s ({found['engine']} engine)"
    )
    if out is None:
        say("Nothing was kept: add --out FOLDER to keep the model, the metrics and the config.")
    else:
        tell(f"The run is in {out}")


def compare(
    source: Source = "mnist-mlp",
    methods: Annotated[
        str | None,
        option("--methods", help="Comma-separated; by default fedavg,drop and the config's."),
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
    data: Data = None,
    data_dir: DataDir = None,
    model: Model = None,
    depth: Depth = None,
    users: Users = None,
    rounds: Rounds = None,
    lr: Lr = None,
    momentum: Momentum = None,
    batch_size: BatchSize = None,
    eval_every: EvalEvery = None,
    device: Device = None,
    engine: Engine = None,
    options: Options = None,
    workers: Annotated[
        int | None, option("--workers", help="Runs at a time; one per core by default.", min=1)
    ] = None,
    out: Annotated[
        Path | None,
        option("--out", help="Leave results.csv, a picture and a page here; go on if begun."),
    ] = None,
) -> None:
    """Run several methods side by side and print one table: mean and spread over the seeds.

    Examples:

        salf compare mnist-mlp --methods fedavg,drop,salf --stragglers 0.3,0.9 --seeds 3

        salf compare mnist-cnn --split iid,dirichlet:0.1 --average reached,all --out cmp
    """
    from salf.experiments.compare import cases
    from salf.experiments.compare import compare as run_all
    from salf.experiments.config import load_config
    from salf.report import check_extra, print_tables, write_report

    drawn = out is not None and _can_draw(check_extra)

    base = load_config(source).changed(
        data=data,
        data_dir=data_dir,
        model=model,
        depth=depth,
        users=users,
        rounds=rounds,
        lr=parse_number(lr),
        momentum=momentum,
        batch_size=batch_size,
        eval_every=eval_every,
        device=device,
        engine=engine,
    )
    wanted = cases(
        parse_list(methods) or list(dict.fromkeys(["fedavg", "drop", base.method])),
        parse_list(average) or [base.average],
        parse_list(split) or [base.split],
        [parse_ratio(text) for text in parse_list(stragglers)] or [base.stragglers],
    )
    with progress_bar() as progress:
        task = progress.add_task("rounds", total=None)
        comparison = run_all(
            base,
            wanted,
            range(seeds),
            out,
            options=parse_options(options),
            workers=workers,
            on_progress=lambda done, total: progress.update(task, completed=done, total=total),
            report=say,
        )
    print_tables(comparison, results)
    if out is not None and drawn:
        for path in write_report(comparison, out, command=sys.argv[1:]):
            tell(f"wrote {path}")
    for name, reason in comparison.failures.items():
        say(f"salf: {name} has no result: {reason}")
    if comparison.failures:
        raise typer.Exit(2)


def data(
    name: Annotated[
        str, typer.Argument(help="mnist | fashion-mnist | cifar10 | synthetic | idx:PATH | ...")
    ],
    data_dir: DataDir = None,
) -> None:
    """Get a data set into the cache, check it, and say what it is and where it came from."""
    from salf.data import load

    with console.status(f"looking for {name}"):
        found = load(name, Path(data_dir) if data_dir else None, report=say)
    tell(
        f"{found.name}: {len(found.train):,} training and {len(found.test):,} test samples of "
        f"shape {'x'.join(map(str, found.train.shape))}, {found.classes} classes "
        f"({found.source})"
    )


def _who_is_slow(config: "Config") -> str:
    if METHODS[config.method].waits:
        return "waiting for all users"
    if has_ratio(config.depth):
        return f"{config.stragglers * 100:g} % stragglers"
    return f"{config.depth} depths"


def _can_draw(check: Callable[[], None]) -> bool:
    """Say before training, not after hours of it, that there will be no picture and no page."""
    try:
        check()
    except SalfError as error:
        say(f"There will be results.csv only: {error}")
        return False
    return True
