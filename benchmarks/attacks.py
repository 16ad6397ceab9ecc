"""What attackers do to a federation, with and without a rule against them: attacks by rules."""

from pathlib import Path
from typing import Annotated, Any

import typer

from salf.cli import main
from salf.cli.options import ConfigSource, GivenSettings, Workers, lists_of, option, settings_of
from salf.cli.runs import end
from salf.cli.terminal import say, tell
from salf.common.files import write_whole
from salf.runs.compare import Comparison
from salf.runs.config import Config
from salf.runs.presets import simulated
from salf.runs.training import BACKDOOR

ATTACKS = (
    "none,alie,alie-own,ipm,min-max,min-sum,mimic,label-flip,backdoor,flip,flip:1,random,constant,"
    "constant:1,large-first,alie@first,alie@last,alie@rare,min-max@rare"
)


@settings_of(Config, without=("method", "seed", "threads", "options"), several=True)
def attacks(
    settings: GivenSettings,
    source: ConfigSource = "mnist-cnn",
    seeds: Annotated[int, option("--seeds", help="Number of seeds (2): 0, 1.", min=1)] = 2,
    workers: Workers = None,
    out: Annotated[Path, option("--out", help="Folder of the table, begun or new.")] = Path(
        "attacks"
    ),
) -> None:
    """Train under every attack with every robust rule, and say which attack is worst.

    By default one of 8 users attacks, and all are stragglers. --attack, --robust, --split,
    --stragglers and other settings may have several values, separated by commas. --out gets
    attacks.md and results.csv; the same command continues.

    Example:

        python benchmarks/attacks.py mnist-cnn --attackers 2 --tolerate 2 --out two
    """
    from salf.comparing import Sweep

    base = simulated(source).changed(users=8, stragglers=1.0)
    asked: dict[str, Any] = {"attack": [ATTACKS], "robust": ["none,median,mixed"]} | settings
    asked = {**lists_of(asked), "method": [base.method], "eval_every": base.rounds}
    compared = Sweep.of(base, asked, seeds).run(out, workers, report=say)
    write_whole(out / "attacks.md", table := table_of(compared, seeds))
    tell(table, f"wrote {out / 'attacks.md'}")
    end(compared)


def table_of(compared: Comparison, seeds: int) -> str:
    """Test accuracy by attack, in Markdown, with columns for conditions and rules; what is worst.

    What an attack costs is what is lost against no attack and no rule, if that was run; otherwise,
    with the rule. Seeds that diverged count 0.
    """
    found: dict[str, dict[tuple[str, str, str], float]] = {"none": {}}
    for case, runs in compared.results.items():
        config: Any = runs[0].config
        column = (case.split, f"{100 * config.stragglers:g}% stragglers", str(config.robust))
        for name, metric in ((config.attack, "accuracy"), ("backdoor's success", BACKDOOR)):
            if metric in runs[0].history.test:
                mean = sum(run.history.test.get(metric, 0.0) for run in runs) / seeds
                found.setdefault(name or "none", {})[column] = mean
    columns = list(dict.fromkeys(column for row in found.values() for column in row))
    lines = [["attack", *map(", ".join, columns)], ["---"] * (len(columns) + 1)]
    lines += [[a, *(f"{row.get(c, 0.0):.3f}" for c in columns)] for a, row in found.items()]
    text = "".join(f"| {' | '.join(line)} |\n" for line in lines) + "\n"
    for column in columns:
        own = {attack: row.get(column, 0.0) for attack, row in found.items() if "'" not in attack}
        honest = found["none"].get((*column[:2], "none"), own.pop("none"))
        if own:
            worst = min(own, key=own.__getitem__)
            cost = honest - own[worst]
            text += f"- {', '.join(column)}: worst is {worst}, at a cost of {cost:.3f}\n"
    return text


if __name__ == "__main__":
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(attacks)
    main(app, continues=True)
