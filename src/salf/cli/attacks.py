"""`salf attacks`."""

from pathlib import Path
from typing import Annotated

from salf.cli.options import ConfigSource, GivenSettings, Workers, option, parse_list, settings_of
from salf.cli.terminal import Downloads, tell
from salf.common.bars import Bar
from salf.common.errors import SalfError
from salf.runs.config import Config
from salf.runs.presets import PRESETS, simulated

_CHOSEN = ("attack", "robust", "stragglers", "seed", "threads")
USERS = 8


@settings_of(Config, without=_CHOSEN)
def attacks(
    settings: GivenSettings,
    source: ConfigSource = "mnist-cnn",
    kinds: Annotated[
        str | None,
        option("--attacks", help="Attacks to try, such as flip,constant:2; by default all."),
    ] = None,
    rules: Annotated[
        str | None, option("--rules", help="Values of --robust to compare; by default all.")
    ] = None,
    stragglers: Annotated[
        str | None,
        option("--stragglers", help="Ratios of stragglers (0.5,1), unless there is a --fleet."),
    ] = None,
    seeds: Annotated[int, option("--seeds", help="Number of seeds (1).", min=1)] = 1,
    workers: Workers = None,
    out: Annotated[
        Path | None,
        option(
            "--out",
            help="Folder for the runs, attacks.csv and attacks.md; continues a table begun there.",
        ),
    ] = None,
) -> None:
    """Test the rules of --robust against attacks, and print the accuracies as a table.

    A preset has 8 users here unless you set --users; --attackers (1) of them attack. Attackers
    always send all layers. These attacks are crude: updates that stay within the spread of the
    others' get through (docs/robust.md).

    Examples:

        salf attacks mnist-cnn --seeds 3 --out attacks

        salf attacks digits-mlp --attacks flip,constant:2 --rules none,trimmed

        salf attacks mnist-cnn --fleet phones --deadline 2s    (the same users are always slow)
    """
    from salf.runs.attacks import ATTACKS, RULES, try_attacks

    users = {"users": USERS} if source in PRESETS else {}
    base = simulated(source).changed(**{**users, **settings})
    if base.fleet and stragglers is not None:
        raise SalfError("the devices of a fleet decide who is slow: leave out --stragglers.")
    named = ["" if kind == "none" else kind for kind in parse_list(kinds)]
    with Bar("rounds", counted=True) as bar:
        found = try_attacks(
            base,
            named or ATTACKS,
            parse_list(rules) or RULES,
            [
                base.changed(stragglers=each).stragglers
                for each in parse_list(stragglers or "0.5,1")
            ],
            range(seeds),
            out,
            workers=workers,
            on_progress=bar.update,
            report=Downloads(),
        )
    tell(found.text())
    if out is not None:
        tell(f"The runs are in {out}")
