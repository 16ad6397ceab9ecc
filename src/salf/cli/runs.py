"""`salf run`, `salf compare` and `salf plan`: one simulated run, many, and which to run."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from salf.cli.options import (
    ConfigSource,
    Events,
    GivenSettings,
    Nodes,
    Workers,
    lists_of,
    option,
    parse_list,
    settings_of,
    with_settings,
    workers_of,
)
from salf.cli.terminal import (
    INTERRUPTED,
    answer,
    as_options,
    console,
    results,
    say,
    wrote,
)
from salf.common.errors import SalfError
from salf.methods import find
from salf.runs.config import Config
from salf.runs.presets import PRESETS, simulated
from salf.runs.settings import PAPER_MODELS, refuse_with_fleet

if TYPE_CHECKING:
    from salf.comparing import Compared


def _changed(config: Config, **settings: Any) -> Config:
    if settings.get("fleet", config.fleet):
        refuse_with_fleet(settings)
    return config.changed(**settings)


@settings_of(Config)
def run(
    settings: GivenSettings,
    source: ConfigSource = "mnist-mlp",
    out: Annotated[Path | None, option("--out", help="Folder to save the run in.")] = None,
    resume: Annotated[
        bool,
        option("--resume", help="Continue the run in --out; --rounds or --seconds may extend it."),
    ] = False,
    checkpoint_every: Annotated[
        float, option("--checkpoint-every", help="Seconds between checkpoints (10).")
    ] = 10.0,
    workers: Annotated[
        int,
        option(
            "--workers",
            help="Processes that share the users of a round where these are computed one by one; "
            "by default, one per core if rounds take long enough.",
            min=0,
        ),
    ] = 0,
    cluster: Nodes = None,
    tensorboard: Events = None,
) -> None:
    """Train once. With --out, save model, metrics, config and a page in a folder.

    Examples:

        salf run mnist-mlp --method salf --stragglers 0.9

        salf run --data synthetic --model mynets:Net --users 20 --out runs/mine

        salf run runs/mine/config.toml    (the same numbers again, bit for bit)

        salf run mnist-mlp --fleet phones --deadline 60ms --seconds 30    (a simulated clock)
    """
    from salf.report import names
    from salf.report.watch import write_page
    from salf.runs.events import TensorBoard
    from salf.runs.run import run as train
    from salf.runs.training import watched

    if resume and out is None:
        raise SalfError("--resume needs --out, the folder of the run to continue.")
    config = with_settings(simulated(source), settings, _changed)
    name = find(config.method).name
    shared = workers_of(workers, cluster)
    events = None if tensorboard is None else TensorBoard(tensorboard)
    with shared as given, watched(name, config.rounds, config.seconds, events) as on_round:
        result = train(
            config,
            out,
            resume=resume,
            checkpoint_every=checkpoint_every,
            on_round=on_round,
            report=say,
            workers=given,
        )
    found = result.summary
    accuracy, clock = found["test_accuracy"], found.get("simulated_seconds")
    told = [
        f"{name}, {names.who_is_slow(config)}: "
        + ("" if accuracy is None else f"test accuracy {accuracy:.4f} ")
        + f"after {found['rounds']} rounds "
        + ("" if clock is None else f"and {clock:.4g} simulated seconds ")
        + f"in {found['seconds']:.1f} s ({found['engine']} engine: {found['why']})"
    ]
    if out is None:
        say("Nothing was saved: add --out FOLDER to save the model, the metrics and the config.")
    else:
        told.append(f"The run is in {out}, and its page is {write_page(out)}")
    answer(found, *told)


@settings_of(Config, without=("method", "seed", "threads"), several=True)
def compare(
    settings: GivenSettings,
    source: ConfigSource = "mnist-mlp",
    methods: Annotated[
        str | None,
        option(
            "--methods",
            help="Comma-separated; by default fedavg,drop and the config's. With a fleet, "
            "salf+equal-time is salf with --batches equal-time.",
        ),
    ] = None,
    seeds: Annotated[int, option("--seeds", help="Number of seeds (3): 0, 1, 2.", min=1)] = 3,
    target: Annotated[
        float | None,
        option(
            "--target",
            help="With a fleet, the accuracy on held-out data to reach; by default 95 % of waiting "
            "FedAvg's at the end.",
        ),
    ] = None,
    workers: Workers = None,
    cluster: Nodes = None,
    out: Annotated[
        Path | None,
        option(
            "--out",
            help="Folder for results.csv, a figure and a page; continues a comparison begun there.",
        ),
    ] = None,
    tensorboard: Events = None,
) -> None:
    """Compare methods and settings, and print one table: mean and spread over the seeds.

    Give a setting or an option several values to compare them, separated by commas or by repeating
    it; every combination is run. step:0.1,50,0.5 is one learning rate.

    Examples:

        salf compare mnist-mlp --methods fedavg,drop,salf --stragglers 0.3,0.9 --seeds 3

        salf compare mnist-mlp --fleet phones --deadline 60ms --seconds 30 \\
            --batches equal,equal-time --out phones    (accuracy over simulated seconds)
    """
    from salf.comparing import Sweep
    from salf.report.comparison import print_tables, write_report

    options = {name: [value] for name, value in settings.pop("options", {}).items()}
    asked = {**lists_of(settings), "options": lists_of(options)}
    asked |= {"method": parse_list(methods)} if methods else {}
    sweep = Sweep.of(simulated(source), asked, seeds, target)
    with workers_of(workers, cluster) as given:
        compared = sweep.run(out, given, report=say, tensorboard=tensorboard)
    if compared.results:
        print_tables(compared, results)
        wrote(*write_report(compared, out, sys.argv[1:]) if out else ())
        answer(compared.records())
    end(compared)


def end(*comparisons: "Compared") -> None:
    """Say what diverged; then the exit code is 2."""
    if any(each.interrupted for each in comparisons):
        raise typer.Exit(INTERRUPTED)
    failures = {name: why for each in comparisons for name, why in each.failures.items()}
    for name, reason in failures.items():
        say(f"salf: {name} failed: {as_options(reason)}")
    if failures:
        raise typer.Exit(2)


_CHOSEN = ("rounds", "seed", "depth", "stragglers", "eval_every", "eval_seconds")


@settings_of(Config, without=_CHOSEN)
def plan(
    settings: GivenSettings,
    source: ConfigSource = "mnist-mlp",
    target: Annotated[
        float | None,
        option("--target", help="Accuracy on held-out data to reach as soon as possible."),
    ] = None,
    seeds: Annotated[int, option("--seeds", help="Seeds of the finalists (3).", min=1)] = 3,
    workers: Workers = None,
    cluster: Nodes = None,
    out: Annotated[
        Path, option("--out", help="Folder for the plan (plan); continues a plan begun there.")
    ] = Path("plan"),
) -> None:
    """Say what to run on a fleet: method, deadline, batches, local steps, compression, rate.

    Candidates are simulated; those that are behind end early. The best has the highest accuracy
    after --seconds, or reaches --target soonest. --method, --deadline, --batches, --local-steps
    and --compress keep what they are given; --lr is the middle of the rates tried. The folder gets
    config.toml for `salf run`, live.toml for `salf live`, and a page.

    Examples:

        salf plan mnist-cnn --fleet phones --seconds 60

        salf plan mynets:Net --data digits --fleet phones --target 0.9 --out what-to-run
    """
    from salf.planning import plan_config
    from salf.report.plan import print_plan
    from salf.runs.federation import load_data
    from salf.runs.plan import SEARCHED, Asked

    config = with_settings(_planned(source), settings, _changed)
    fixed = {name: settings[name] for name in SEARCHED if name in settings}
    asked = Asked(target, seeds, fixed)
    with console.status(f"looking for {config.data}"):
        load_data(config, say)  # fetched once, and what is wrong with them is said once
    with workers_of(workers, cluster) as given:
        planned = plan_config(config, asked, out, given)
    planned.save(out, sys.argv[1:])
    print_plan(planned, results)
    told = f"The plan is in {out}: salf run {out / 'config.toml'}"
    answer(planned.config.table(), told)


def _planned(source: str) -> Config:
    """A preset, a file, or the preset of a model."""
    if source not in PAPER_MODELS and ":" not in source:
        return simulated(source)
    presets = (preset for preset in PRESETS.values() if preset.model == source)
    return next(presets, Config(model=source))
