"""Compare methods on your own model and data, from Python: table, page and data frame."""

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from torch import nn

from salf.common.errors import SalfError, TrainingDiverged
from salf.common.files import write_whole
from salf.core.layers import Prefixes
from salf.data import DataSet
from salf.engines import Loss, cross_entropy
from salf.evaluation import Metric
from salf.methods import Method, asks, named
from salf.methods import method as make_method
from salf.report.comparison import print_tables, write_report
from salf.report.extra import check_extra
from salf.report.tables import printed
from salf.runs.compare import (
    RESULTS,
    Case,
    Comparison,
    average_of,
    cases,
    check_goal,
    label,
    results_csv,
)
from salf.runs.config import Config
from salf.runs.own import run_own
from salf.runs.pool import share
from salf.runs.run import How, Result
from salf.worlds.base import World
from salf.worlds.depth import DepthDistribution
from salf.worlds.fleet.deadlines import missing
from salf.worlds.fleet.devices import Fleet
from salf.worlds.fleet.named import GIVEN

Split = str | Sequence[Sequence[int]]


class Compared(Comparison):
    """The finished runs of a comparison: `print` it, save it, or convert it to pandas."""

    def __str__(self) -> str:
        """The tables, as `salf compare` prints them."""
        return printed(lambda console: print_tables(self, console))

    def save(self, folder: Path | str) -> list[Path]:
        """Write results.csv, a picture (PNG and SVG) and the page report.html into a folder."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / RESULTS, results_csv(self))
        return [folder / RESULTS, *write_report(self, folder, command=())]

    def to_pandas(self) -> Any:
        """A data frame with a row per case and seed, as in results.csv."""
        try:
            import pandas
        except ImportError:
            raise SalfError("to_pandas needs pandas: run pip install pandas.") from None
        return pandas.DataFrame(self.records())


def compare(
    model: nn.Module | Callable[[], nn.Module],
    data: DataSet | tuple[Any, Any] | Sequence[Any] | Callable[[int], Any],
    test: tuple[Any, Any] | None = None,
    *,
    methods: Sequence[str | Method] = ("fedavg", "drop", "salf"),
    stragglers: Sequence[float] | None = None,
    splits: Sequence[str] | Mapping[str, Split] = ("iid",),
    averages: Sequence[str] | None = None,
    seeds: int | Sequence[int] = 3,
    layers: str | Sequence[Prefixes] | None = None,
    depth: str | DepthDistribution | World = "mixture",
    fleet: str | Fleet = "",
    batches: Sequence[str] | str = "auto",
    target: float | None = None,
    loss: Loss = cross_entropy,
    metrics: Mapping[str, Metric] | None = None,
    out: Path | str | None = None,
    **settings: Any,
) -> Compared:
    """Train every method with every ratio of stragglers, split, average and seed; see `salf.train`.

    `model` is a module, which is copied for every run, or a function that returns one, called with
    torch seeded by the run's seed. `methods` are names or method objects. `averages` applies to
    names and is `reached` by default; objects keep their own. `splits` are rules, or a dictionary
    of named rules or lists of each user's indices. With a `fleet`, runs have a simulated clock
    instead of `stragglers`, `batches` may list several ways to size batches, and `target` is the
    accuracy to reach (by default 95 % of waiting FedAvg's). With `out`, every run is saved there;
    repeat an interrupted call to continue it. results.csv, a picture and the page report.html are
    written at the end.
    """
    if fleet and stragglers is not None:
        raise SalfError("the fleet determines how far users get: leave out stragglers=.")
    stragglers = [Config.stragglers] if stragglers is None else stragglers
    batches = [batches] if isinstance(batches, str) else batches
    if not (methods and stragglers and splits and seeds and batches) or averages == []:
        raise SalfError("there is nothing to compare: name at least one method, ratio and seed.")
    if test is None and not isinstance(data, DataSet):
        raise SalfError("a comparison needs test data: pass test=(inputs, labels).")
    check_goal(target, fleet)
    if out is not None:
        check_extra()  # now, not after hours of training
    objects = {each if isinstance(each, str) else named(each): each for each in methods}
    rules = splits if isinstance(splits, Mapping) else {split: split for split in splits}
    wanted = dict.fromkeys(
        case
        for name, each in objects.items()
        for case in cases(
            [name],
            averages or [each.average if isinstance(each, Method) else "reached"],
            [*rules],
            [float(ratio) for ratio in stragglers],
            batches,
            bool(fleet),
        )
    )
    seeds = range(seeds) if isinstance(seeds, int) else seeds
    shared = {
        "data": data,
        "test": test,
        "layers": layers,
        "depth": depth,
        "fleet": fleet,
        "loss": loss,
        "metrics": metrics,
    }
    runs: dict[str, Callable[[Any], Result]] = {}
    of_case: dict[Case, list[str]] = {}
    for case in wanted:
        for seed in seeds:
            waits = asks(case.method).waits  # one result whatever the ratio of stragglers is
            average = average_of(case)
            ratio = 0.0 if waits and not fleet else case.stragglers
            condition = _named(fleet) if fleet else f"{ratio:g}"
            key = label(case.method, average, case.split, condition, seed, case.batches)
            of_case.setdefault(case, []).append(key)
            method = objects.get(case.method, case.method)
            if isinstance(method, Method):
                method = replace(method, average=average)  # type: ignore[arg-type]
                made = method
            else:
                made = make_method(method, average=average, **settings.get("options", {}))
            if fleet and settings.get("deadline") is None and made.asks.deadline:
                raise missing()
            runs[key] = _run(
                model,
                {**shared, "method": method, "split": rules[case.split]},
                {
                    **settings,
                    "average": average,
                    **({} if fleet else {"stragglers": ratio}),
                    "batches": case.batches,
                    **({} if made.asks.reach else {"reach": "known"}),
                    "seed": seed,
                },
                None if out is None else Path(out) / "runs" / key,
            )
    done, failures = _run_all(runs, settings)
    results = {
        case: [done[key] for key in keys if key in done]
        for case, keys in of_case.items()
        if any(key in done for key in keys)
    }
    if not results:
        raise TrainingDiverged("no run finished: " + " ".join(failures.values()))
    base = next(iter(done.values())).config
    assert isinstance(base, Config)
    compared = Compared(base, results, failures, target)
    if out is not None:
        compared.save(out)
    return compared


def _run(
    model: nn.Module | Callable[[], nn.Module],
    parts: Mapping[str, Any],
    settings: Mapping[str, Any],
    out: Path | None,
) -> Callable[[Any], Result]:
    def run(on_round: Any) -> Result:
        if isinstance(model, nn.Module):
            fresh = deepcopy(model)
        else:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(settings["seed"])
                fresh = model()
        return run_own(fresh, parts, settings, out, True, How(on_round=on_round))

    return run


def _run_all(
    runs: Mapping[str, Callable[[Any], Result]], settings: Mapping[str, Any]
) -> tuple[dict[str, Result], dict[str, str]]:
    """Run one after the other, with a bar where there is a terminal."""
    done: dict[str, Result] = {}
    failures: dict[str, str] = {}
    bar = Progress(console=Console(stderr=True), transient=True)
    seconds = settings.get("seconds")
    rounds = settings.get("rounds", 0 if seconds else Config.rounds)
    with bar if sys.stderr.isatty() else nullcontext():
        task = bar.add_task("runs", total=len(runs))
        for number, (key, run) in enumerate(runs.items()):

            def on_round(row: Any, model: nn.Module, before: int = number) -> None:
                bar.update(task, completed=before + share(row, rounds, seconds))

            try:
                done[key] = run(on_round)
            except TrainingDiverged as error:
                failures[key] = str(error)
    return done, failures


def _named(fleet: str | Fleet) -> str:
    return fleet if isinstance(fleet, str) else GIVEN
