"""`salf run`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from salf.cli.options import ConfigSource, GivenSettings, Options, option, settings_of, with_options
from salf.cli.terminal import say, tell
from salf.common.errors import SalfError
from salf.methods import find
from salf.runs.config import Config
from salf.runs.presets import simulated


@settings_of(Config)
def run(
    settings: GivenSettings,
    source: ConfigSource = "mnist-mlp",
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
    workers: Annotated[
        int,
        option(
            "--workers",
            help="Processes that share the users of a round where these are computed one by one; "
            "by default, one per core if rounds take long enough.",
            min=0,
        ),
    ] = 0,
) -> None:
    """Train once. With --out, save the model, the metrics and the config in a folder.

    Examples:

        salf run mnist-mlp --method salf --stragglers 0.9

        salf run --data synthetic --model mynets:Net --users 20 --out runs/mine

        salf run runs/mine/config.toml    (the same numbers again, bit for bit)

        salf run --data digits --method mymethods:Halves    (a method of your own)

        salf run mnist-mlp --fleet phones --deadline 60ms --seconds 30    (a simulated clock)
    """
    from salf.report import names
    from salf.runs.run import run as train
    from salf.runs.training import watched

    if resume and out is None:
        raise SalfError("--resume needs --out, the folder of the run to continue.")
    config = with_options(simulated(source), settings, options)
    name = find(config.method).name
    with watched(name, config.rounds, config.seconds) as on_round:
        result = train(
            config,
            out,
            resume=resume,
            checkpoint_every=checkpoint_every,
            on_round=on_round,
            report=say,
            workers=workers,
        )
    found = result.summary
    accuracy = found["test_accuracy"]
    tell(
        f"{name}, {names.who_is_slow(config)}: "
        + ("" if accuracy is None else f"test accuracy {accuracy:.4f} ")
        + f"after {found['rounds']} rounds {_clock(found)}in {found['seconds']:.1f} s "
        + f"({found['engine']} engine: {found['why']})"
    )
    if out is None:
        say("Nothing was saved: add --out FOLDER to save the model, the metrics and the config.")
    else:
        tell(f"The run is in {out}")


def _clock(summary: Mapping[str, Any]) -> str:
    simulated = summary.get("simulated_seconds")
    return "" if simulated is None else f"and {simulated:.4g} simulated seconds "
