"""`salf attacks`: what attackers do to a federation, with and without a rule against them."""

from pathlib import Path
from typing import Annotated, Any

from salf.cli.options import (
    AsJson,
    ConfigSource,
    GivenSettings,
    Nodes,
    Workers,
    lists_of,
    option,
    settings_of,
    workers_of,
)
from salf.cli.runs import end
from salf.cli.terminal import answer, results, say, tell
from salf.common.files import write_whole
from salf.runs.config import Config
from salf.runs.presets import simulated

# Every attack, in all layers, and the strongest of them where few users compare.
ATTACKS = (
    "none", "alie", "alie-own", "ipm", "min-max", "min-sum", "mimic", "label-flip", "backdoor",
    "flip:1", "flip", "random", "constant:1", "constant", "large-first",
    "alie@first", "alie@last", "alie@rare", "min-max@first", "min-max@last", "min-max@rare",
)  # fmt: skip


@settings_of(Config, without=("method", "seed", "threads"), several=True)
def attacks(
    settings: GivenSettings,
    source: ConfigSource = "mnist-cnn",
    seeds: Annotated[int, option("--seeds", help="Number of seeds (2): 0, 1.", min=1)] = 2,
    workers: Workers = None,
    cluster: Nodes = None,
    out: Annotated[
        Path, option("--out", help="Folder for the table; continues a table begun there.")
    ] = Path("attacks"),
    as_json: AsJson = False,
) -> None:
    """Test every attack against every robust rule, and print a table that names the worst.

    By default all --attack's, with --robust none, trimmed and mixed, 1 attacker of 8 users, all of
    them stragglers, and i.i.d. data. Give a setting several values, separated by commas, to compare
    them. --out gets attacks.md and results.csv; a repeated command continues.

    Examples:

        salf attacks mnist-cnn --split iid,dirichlet:0.1 --stragglers 0.5,1

        salf attacks mnist-cnn --attackers 2 --tolerate 2 --robust mixed --out two
    """
    from salf.comparing import Sweep
    from salf.report.attacks import table_of

    config = simulated(source)
    asked: dict[str, Any] = {
        "users": 8, "stragglers": [1.0], "attack": [*ATTACKS], "method": [config.method],
        "robust": ["none", "trimmed", "mixed"], "eval_every": config.rounds,
    }  # fmt: skip
    asked |= lists_of({name: value for name, value in settings.items() if name != "options"})
    with workers_of(workers, cluster) as given:
        compared = Sweep.of(config, asked, seeds).run(out, given, report=say)
    table = table_of(compared)
    write_whole(out / "attacks.md", table)
    if as_json:
        answer(compared.records(), as_json)
    else:
        results.print(table, soft_wrap=True, markup=False, highlight=False)
    (say if as_json else tell)(f"wrote {out / 'attacks.md'}")
    end(compared)
