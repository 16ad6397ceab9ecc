"""`salf attacks`."""

from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Annotated

import typer

from salf.cli.options import ConfigSource, GivenSettings, Workers, option, parse_list, settings_of
from salf.cli.terminal import INTERRUPTED, say, tell
from salf.common.errors import SalfError
from salf.common.files import write_whole
from salf.runs.config import Config
from salf.runs.presets import PRESETS, simulated

_CHOSEN = ("attack", "robust", "stragglers", "seed", "threads")
if TYPE_CHECKING:
    from salf.runs.run import Result

USERS = 8
TABLE = "attacks.md"
# Just below the live server's bound, and as large as an honest gradient.
ATTACKS = ("", "flip", "flip:1", "random", "constant", "constant:1", "large-first")
RULES = ("none", "trimmed", "median", "clip")


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
        option("--out", help="Folder for runs and results; continues what is there."),
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
    users = {"users": USERS} if source in PRESETS else {}
    base = simulated(source).changed(**{**users, **settings})
    if base.fleet and stragglers is not None:
        raise SalfError("the devices of a fleet decide who is slow: leave out --stragglers.")
    named = ["" if kind == "none" else kind for kind in parse_list(kinds)] or ATTACKS
    ratios = () if base.fleet else parse_list(stragglers or "0.5,1")
    tell(try_attacks(base, named, parse_list(rules) or RULES, ratios, seeds, out, workers))
    if out is not None:
        tell(f"The runs are in {out}")


def try_attacks(
    base: Config,
    attacks: Sequence[str],
    rules: Sequence[str],
    stragglers: Sequence[float | str],
    seeds: int,
    out: Path | None = None,
    workers: int | None = None,
) -> str:
    """A table in Markdown for each ratio of stragglers, with the mean accuracy in each cell."""
    from salf.comparing import Sweep

    axes = {"method": base.method, "attack": [*attacks], "robust": [*rules]}
    sweep = Sweep.of(base, axes | ({"stragglers": [*stragglers]} if stragglers else {}), seeds)
    compared = sweep.run(out, workers, report=say)
    if compared.interrupted:
        raise typer.Exit(INTERRUPTED)
    lines = []
    for ratio in dict.fromkeys(case.stragglers for case in sweep.cases):
        title = base.fleet or f"{ratio:.0%} stragglers"
        lines += [f"| {title} | {' | '.join(rules)} |", "|---" * (len(rules) + 1) + "|"]
        for attack in attacks:
            cells = [
                _cell(compared.results.get(case, ()), seeds)
                for rule in rules
                for case in sweep.cases
                if case.stragglers == ratio
                and {"attack": attack, "robust": rule}.items() >= set(case.more)
            ]
            lines.append(f"| {attack or 'no attack'} | {' | '.join(cells)} |")
        lines.append("")
    if out is not None:
        write_whole(out / TABLE, "\n".join(lines))
    return "\n".join(lines)


def _cell(runs: Sequence["Result"], seeds: int) -> str:
    accuracy = mean(run.summary["test_accuracy"] for run in runs) if runs else 0.0
    return f"{accuracy:.3f}" if len(runs) == seeds else "diverged"
