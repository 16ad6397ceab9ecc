"""The command line: `salf run`, `salf compare`, `salf data`."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from salf.errors import SalfError

app = typer.Typer(
    name="salf",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Federated learning that never waits for stragglers.\n\n"
    "Every round ends at a deadline; each user sends the gradients of the layers its "
    "backpropagation reached; the server averages every layer over the users that reached it.",
)
INTERRUPTED = 130  # the exit code of a program stopped by Ctrl-C
# Typer has its own copy of click, or uses click itself; either way this is the common ancestor.
UsageError: Any = typer.BadParameter.__bases__[0]
# Results go to standard output; progress and messages to standard error.
console = Console(stderr=True)
results = Console()


def option(*names: str, help: str, **more: Any) -> Any:
    """An option with its help; the default shown is the preset's."""
    return typer.Option(*names, help=help, show_default=False, **more)


Source = Annotated[
    str,
    typer.Argument(
        metavar="[PRESET|CONFIG.toml]",
        help="mnist-mlp, mnist-cnn, cifar-vgg11, cifar-vgg13, cifar-vgg16, cifar-vgg19 (the "
        "paper's settings), or a TOML file, such as a run's config.toml.",
    ),
]
Data = Annotated[
    str | None,
    option(
        "--data",
        help="mnist | fashion-mnist | cifar10 | synthetic | idx:PATH | folder:PATH",
    ),
]
DataDir = Annotated[
    str | None, option("--data-dir", help="A folder to look for the data set's files in.")
]
Model = Annotated[
    str | None,
    option("--model", help="mlp | cnn | vgg11 | vgg13 | vgg16 | vgg19 | package.module:Name"),
]
Depth = Annotated[
    str | None,
    option(
        "--depth",
        help="How deep users get: mixture (a ratio of stragglers, the rest finish) | uniform "
        "(assumption AS4) | fixed:D1,D2,... | probabilities:P1,...",
    ),
]
Users = Annotated[int | None, option("--users", help="Number of users.")]
Rounds = Annotated[int | None, option("--rounds", help="Number of rounds.")]
Lr = Annotated[
    str | None,
    option(
        "--lr",
        help="Learning rate: 0.05 | cosine:RATE | step:RATE,EVERY,FACTOR | theorem:RHO_C,RHO_S",
    ),
]
Momentum = Annotated[float | None, option("--momentum", help="The server's momentum.")]
BatchSize = Annotated[int | None, option("--batch-size", help="Samples per user and round.")]
EvalEvery = Annotated[
    int | None,
    option("--eval-every", help="Rounds between evaluations; 0 keeps them a small part."),
]
Device = Annotated[str | None, option("--device", help="cpu, cuda, ...")]
Engine = Annotated[
    str | None,
    option("--engine", help="auto | fused (fast) | loop (any module, one user at a time)"),
]
Options = Annotated[
    list[str] | None,
    option(
        "--option",
        metavar="NAME=VALUE",
        help="An option of the method: heterofl has width; asyncfl has delay, stale, discount. "
        "May be repeated.",
    ),
]


@app.command("run")
def run_command(
    source: Source = "mnist-mlp",
    method: Annotated[
        str | None, option("--method", help="salf | fedavg | drop | heterofl | asyncfl")
    ] = None,
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
        int | None, option("--threads", help="Cores to use; all by default.")
    ] = None,
    out: Annotated[Path | None, option("--out", help="Leave the run's folder here.")] = None,
    resume: Annotated[
        bool, option("--resume", help="Go on with the run that --out holds.")
    ] = False,
    checkpoint_every: Annotated[
        float, option("--checkpoint-every", help="Seconds between checkpoints (10).")
    ] = 10.0,
) -> None:
    """Train once, and leave a folder with all there is to know about it.

    Examples:

        salf run mnist-mlp --method salf --stragglers 0.9

        salf run --data synthetic --model mynets:Net --users 20 --out runs/mine

        salf run runs/mine/config.toml    (the same numbers again, bit for bit)
    """
    from salf.experiments.config import load_config
    from salf.experiments.run import run

    if resume and out is None:
        raise SalfError("--resume needs --out, the folder of the run to go on with.")
    config = load_config(source).changed(
        method=method,
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
        lr=_number(lr),
        momentum=momentum,
        batch_size=batch_size,
        eval_every=eval_every,
        device=device,
        engine=engine,
        threads=threads,
        options=_options(options),
    )
    with _progress("{task.fields[accuracy]}") as progress:
        task = progress.add_task(config.method, total=config.rounds, accuracy="")

        def on_row(row: Any) -> None:
            progress.update(task, completed=row.round)
            if row.accuracy is not None:
                progress.update(task, accuracy=f"accuracy {row.accuracy:.4f}")

        result = run(
            config,
            out,
            resume=resume,
            checkpoint_every=checkpoint_every,
            on_row=on_row,
            report=console.print,
        )
    found = result.summary
    accuracy = found["test_accuracy"]
    results.print(
        f"{config.method}, {config.stragglers:.0%} stragglers: "
        + ("" if accuracy is None else f"test accuracy {accuracy:.4f} ")
        + f"after {config.rounds} rounds in {found['seconds']:.1f} s",
        highlight=False,
    )
    if out is not None:
        results.print(f"The run is in {out}", highlight=False, soft_wrap=True)


@app.command("compare")
def compare_command(
    source: Source = "mnist-mlp",
    methods: Annotated[
        str, option("--methods", help="Comma-separated; fedavg,drop,salf by default.")
    ] = "fedavg,drop,salf",
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
    from salf.experiments.compare import cases, compare
    from salf.experiments.config import load_config
    from salf.report import check_extra, print_tables, write_report

    if out is not None:
        check_extra()  # now, not after hours of training

    base = load_config(source).changed(
        data=data,
        data_dir=data_dir,
        model=model,
        depth=depth,
        users=users,
        rounds=rounds,
        lr=_number(lr),
        momentum=momentum,
        batch_size=batch_size,
        eval_every=eval_every,
        device=device,
        engine=engine,
    )
    wanted = cases(
        _list(methods),
        _list(average) or [base.average],
        _list(split) or [base.split],
        [_ratio(text) for text in _list(stragglers)] or [base.stragglers],
    )
    with _progress() as progress:
        task = progress.add_task("rounds", total=None)
        comparison = compare(
            base,
            wanted,
            range(seeds),
            out,
            options=_options(options),
            workers=workers,
            on_progress=lambda done, total: progress.update(task, completed=done, total=total),
            report=console.print,
        )
    print_tables(comparison, results)
    if out is not None:
        for path in write_report(comparison, out, command=sys.argv[1:]):
            results.print(f"wrote {path}", highlight=False, soft_wrap=True)


@app.command("data")
def data_command(
    name: Annotated[
        str, typer.Argument(help="mnist | fashion-mnist | cifar10 | synthetic | idx:PATH | ...")
    ],
    data_dir: DataDir = None,
) -> None:
    """Get a data set into the cache, check it, and say what it is and where it came from."""
    from salf.data import load

    data = load(name, Path(data_dir) if data_dir else None, report=console.print)
    results.print(
        f"{data.name}: {len(data.train):,} training and {len(data.test):,} test samples of shape "
        f"{'x'.join(map(str, data.train.shape))}, {data.classes} classes, from {data.source}",
        highlight=False,
        soft_wrap=True,
    )


def main() -> None:
    """Run the command line. What a person can mend is one sentence and exit code 2."""
    try:
        code = app(standalone_mode=False)
    except SalfError as error:
        _fail(str(error))
    except UsageError as error:
        _fail(error.format_message())
    except (typer.Abort, KeyboardInterrupt):
        code = INTERRUPTED
    if code == INTERRUPTED:  # which newer versions of typer return instead of raising
        console.print("salf: stopped. With --out, add --resume (run) or repeat (compare) to go on.")
    raise SystemExit(code)


def _fail(message: str) -> None:
    console.print(f"salf: {message}", markup=False, highlight=False, soft_wrap=True)
    raise SystemExit(2)


def _progress(*more: str) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        *(TextColumn(text) for text in more),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    )


def _list(text: str | None) -> list[str]:
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def _number(text: str | None) -> float | str | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return text


def _ratio(text: str) -> float:
    number = _number(text)
    if not isinstance(number, float) or not 0 <= number <= 1:
        raise SalfError(f"stragglers must be ratios in [0, 1], such as 0.3,0.9, not {text!r}.")
    return number


def _options(given: list[str] | None) -> dict[str, Any] | None:
    if not given:
        return None
    options: dict[str, Any] = {}
    for entry in given:
        name, equals, value = entry.partition("=")
        if not equals:
            raise SalfError(f"an option is written NAME=VALUE, not {entry!r}.")
        number = _number(value)
        whole = isinstance(number, float) and number.is_integer() and "." not in value
        options[name] = int(value) if whole else number
    return options
