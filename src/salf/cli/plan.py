"""`salf plan`."""

import sys
from pathlib import Path
from typing import Annotated

from salf.cli.options import (
    ConfigSource,
    GivenSettings,
    Options,
    Workers,
    option,
    settings_of,
    with_options,
)
from salf.cli.terminal import can_draw, console, results, say, tell
from salf.runs.config import Config
from salf.runs.presets import PRESETS, simulated
from salf.runs.settings import PAPER_MODELS

_CHOSEN = ("rounds", "seed", "depth", "stragglers", "eval_every", "eval_seconds")


@settings_of(Config, without=_CHOSEN)
def plan(
    settings: GivenSettings,
    source: ConfigSource = "mnist-mlp",
    options: Options = None,
    target: Annotated[
        float | None,
        option("--target", help="Accuracy on held-out data to reach as soon as possible."),
    ] = None,
    seeds: Annotated[int, option("--seeds", help="Seeds of the finalists (3).", min=1)] = 3,
    workers: Workers = None,
    out: Annotated[
        Path,
        option("--out", help="Folder for the plan (plan); continues a plan begun there."),
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
    from salf.report.extra import check_extra
    from salf.report.plan import print_plan
    from salf.runs.federation import load_data
    from salf.runs.plan import SEARCHED, Asked

    drawn = can_draw(check_extra)
    config = with_options(_config(source), settings, options)
    fixed = {name: settings[name] for name in SEARCHED if name in settings}
    asked = Asked(target, seeds, fixed)
    with console.status(f"looking for {config.data}"):
        load_data(config, say)  # fetched once, and what is wrong with them is said once
    planned = plan_config(config, asked, out, workers)
    print_plan(planned, results)
    planned.save(out, sys.argv[1:], drawn)
    tell(f"The plan is in {out}: salf run {out / 'config.toml'}")


def _config(source: str) -> Config:
    """A preset, a file, or the preset of a model."""
    if source not in PAPER_MODELS and ":" not in source:
        return simulated(source)
    presets = (preset for preset in PRESETS.values() if preset.model == source)
    return next(presets, Config(model=source))
