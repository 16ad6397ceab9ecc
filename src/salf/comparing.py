"""Compare methods and settings: every combination is a run, and all of them are one table."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from html import escape
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import nn

from salf.common import Report
from salf.common.bars import Bar, console
from salf.common.errors import SalfError, TrainingDiverged
from salf.common.files import csv_of, json_text, write_whole
from salf.common.notebook import frame
from salf.common.pictures import svg
from salf.data import DataSet, are_of_users
from salf.methods import Method, asks, named
from salf.methods import method as make_method
from salf.problem import Problem
from salf.report.charts import curves
from salf.report.comparison import print_tables, write_report
from salf.report.tables import printed
from salf.runs.compare import CASES, RUNS, Case, Comparison, check_options, check_target, options_of
from salf.runs.config import Config
from salf.runs.events import TensorBoard
from salf.runs.federation import data_files, load_data
from salf.runs.own import TrainData, federation
from salf.runs.pool import Interrupted, Job, WorkersLike, run_all, run_job
from salf.runs.presets import simulated
from salf.runs.run import Result
from salf.runs.settings import key, refuse_with_fleet, typed
from salf.runs.training import OnPart, OnRound
from salf.worlds.depth import has_ratio
from salf.worlds.fleet.deadlines import missing
from salf.worlds.fleet.named import GIVEN

Model = nn.Module | Problem | Callable[[], nn.Module]
Own = tuple[Any, Any, Any]  # model, data and test data; what is None is the config's
SplitRule = str | Sequence[Sequence[int]]
# Settings that may be Python objects.
OBJECTS = ("method", "split", "layers", "depth", "fleet", "lr", "loss", "metrics")
NAMES = ("method", "split", "average")  # axes whose values are named
CASE = ("stragglers", "batches")  # axes that a case always has


class Compared(Comparison):
    """The finished runs of a comparison: `print` it, save it, or convert it to pandas."""

    def __str__(self) -> str:
        """The tables, as `salf compare` prints them."""
        if not self.results:
            return "No run is done."
        return printed(lambda console: print_tables(self, console))

    def _repr_html_(self) -> str:
        return f"{svg(curves(self)) if self.results else ''}<pre>{escape(str(self))}</pre>"

    def save(self, folder: Path | str, command: Sequence[str] = ()) -> list[Path]:
        """Write results.csv, a picture and the page report.html into a folder."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / "results.csv", csv_of(self.records()))
        return [folder / "results.csv", *write_report(self, folder, command)]

    def to_pandas(self) -> Any:
        """A data frame with a row per case and seed, as in results.csv."""
        return frame(self.records())


def compare(
    model: Model | str | Sequence[str] | None = None,
    data: TrainData | str | None = None,
    test: tuple[Any, Any] | None = None,
    *,
    config: Config | str | None = None,
    methods: Sequence[str | Method] | None = None,
    splits: Sequence[str] | Mapping[str, SplitRule] | None = None,
    averages: Sequence[str] | None = None,
    seeds: int | Sequence[int] = 3,
    target: float | None = None,
    out: Path | str | None = None,
    workers: WorkersLike = None,
    on_round: OnRound | None = None,
    **settings: Any,
) -> Compared:
    """Train with every combination of methods, settings and seeds; see `salf.train`.

        salf.compare(net, data, test, methods=["fedavg", "salf"], lr=[0.03, 0.1, 0.3])
        salf.compare(config="digits-mlp", stragglers=[0.3, 0.9], momentum=[0, 0.5])

    A setting of `salf.Config` given as a list is compared: each of its values is combined with each
    of the others'. `methods`, `splits` and `averages` are lists of `method`, `split` and `average`;
    methods may be objects, which keep their own average, and splits a dictionary of named rules or
    lists of each user's indices. Options of methods may be lists, too: `options={"mu": [0, 0.1]}`.
    `config` is a config, a preset or a file to begin with.

    `model` is a module or a `salf.Problem`, which is copied for every run, or a function that
    returns a module, called with torch seeded by the run's seed. If everything has a name
    (`model="mlp", data="digits"`), runs are computed by `workers` processes, one per core by
    default; otherwise, or with `on_round`, which is called as by `salf.train`, one after the other
    in this process. With a `fleet`, runs have a simulated clock instead of `stragglers`, and
    `target` is the accuracy to reach (by default 95 % of waiting FedAvg's). With `out`, every run
    is saved there, and results.csv, a picture and the page report.html at the end; repeat an
    interrupted call to continue it.
    """
    lists = {"method": methods, "split": splits, "average": averages}
    settings |= {name: each for name, each in lists.items() if each is not None}
    if isinstance(model, str) or _are_names(model):
        settings["model"], model = model, None
    if isinstance(data, str) or _are_names(data):
        settings["data"], data = data, None
    if isinstance(model, list | tuple):
        raise SalfError("several models are compared by their names, as in model=['mlp', 'cnn'].")
    if data is not None and test is None and not isinstance(data, DataSet):
        raise SalfError("a comparison needs test data: pass test=(inputs, labels).")
    base = simulated(config) if isinstance(config, str) else config or Config()
    sweep = Sweep.of(base, settings, seeds, target, (model, data, test))
    compared = sweep.run(out, workers, on_round)
    if out is not None:
        compared.save(out)
    if compared.interrupted:
        done = sum(map(len, compared.results.values()))
        way = "repeat the call to continue" if out else "with out=, a call can be continued"
        console.print(
            f"Interrupted: {done} of {len(sweep.names)} runs are done; {way}.", highlight=False
        )
    return compared


@dataclass(frozen=True, eq=False)
class Sweep:
    """Runs to compare: cases, each with its settings on top of the base, and seeds.

    Settings, and model, data and test data, may be Python objects.
    """

    base: Config
    cases: Mapping[Case, Mapping[str, Any]]
    seeds: Sequence[int]
    target: float | None = None
    own: Own = (None, None, None)

    @classmethod
    def of(
        cls,
        base: Config,
        settings: Mapping[str, Any],
        seeds: int | Sequence[int] = 3,
        target: float | None = None,
        own: Own = (None, None, None),
    ) -> "Sweep":
        """All combinations of the values of settings that are lists, with every seed."""
        if "seed" in settings:
            raise SalfError("every case is run with several seeds: pass seeds=[1, 2], not seed=.")
        axes, fixed = _axes(settings)
        fleets = axes.get("fleet", [fixed.get("fleet", base.fleet)])
        fleet = bool(fleets[0])
        _check_clock(fleets, settings, target)
        apart = isinstance(own[0], Problem) or are_of_users(own[1])
        splits = axes.pop("split", {"own": "iid"} if apart else [base.split])
        if not isinstance(splits, Mapping):
            splits = {each if isinstance(each, str) else "given": each for each in splits}
        methods = axes.pop("method", ["fedavg", "drop", base.method])
        averages, options = axes.pop("average", []), {**base.options, **fixed.pop("options", {})}
        ratios = axes.pop("stragglers", [base.stragglers])
        batches = axes.pop("batches", [base.batches])
        more = list(product(*([(name, value) for value in axes[name]] for name in axes)))
        common = {**base.table(), **fixed}
        if isinstance(common["depth"], str) and len(ratios) > 1 and not has_ratio(common["depth"]):
            raise SalfError(
                "ratios of stragglers belong to depth='mixture' and have no effect with depth "
                f"{common['depth']}: pass only one."
            )
        found: dict[Case, dict[str, Any]] = {}
        for each in methods:
            average = base.average if isinstance(each, str) else getattr(each, "average", "reached")
            for name, size, chosen in _expanded(each, options):
                auto = "equal-time" if fleet and asks(name).stands_in else "equal"
                sizes = [auto if one == "auto" else one for one in ([size] if size else batches)]
                of_each = (splits, averages or [average], sizes, more, ratios)
                for split, averaged, sized, others, ratio in product(*of_each):
                    case = Case(name, averaged, split, ratio, sized, others)
                    method = case.made(each, chosen)
                    timed = fleet and method.asks.deadline
                    if timed and (common | dict(others))["deadline"] is None:
                        raise missing()
                    named = each.partition("+")[0] if isinstance(each, str) else method
                    given = {"method": named, "split": splits[split], "options": chosen}
                    found[case] = {**fixed, **case.settings(method, fleet), **given}
        check_options(options, found)
        seeds = range(seeds) if isinstance(seeds, int) else seeds
        if not (found and seeds):
            raise SalfError("there is nothing to compare: pass at least one method and one seed.")
        sweep = cls(base, found, seeds, target, own)
        if not sweep.by_name:
            return sweep
        return replace(sweep, base=base.changed(**fixed, **dict(more[0])))

    @cached_property
    def by_name(self) -> bool:
        """Whether everything has a name, so that runs can be computed by other processes."""
        given = [case[name] for case in self.cases.values() for name in OBJECTS if name in case]
        return all(
            each is None or isinstance(each, str | float | int) for each in (*self.own, *given)
        )

    @cached_property
    def fleet(self) -> str:
        """The name of the fleet, if there is one."""
        fleet = next(iter(self.cases.values())).get("fleet", self.base.fleet)
        return fleet if isinstance(fleet, str) else GIVEN

    @cached_property
    def names(self) -> dict[tuple[Case, int], str]:
        """What each run is called; several cases may have one in common."""
        return {(case, n): case.label(n, self.fleet) for case in self.cases for n in self.seeds}

    def run(
        self,
        out: Path | str | None = None,
        workers: WorkersLike = None,
        on_round: OnRound | None = None,
        report: Report | None = None,
        tensorboard: Path | None = None,
    ) -> Compared:
        """Do all runs; with `out`, each is kept in a folder, and results.csv at the end."""
        asked = {
            name: {**self.cases[case], "seed": seed} for (case, seed), name in self.names.items()
        }
        kept = {n: None if out is None else Path(out, RUNS, n).absolute() for n in asked}
        if out is not None:
            cases = [(name, asdict(case)) for (case, _), name in self.names.items()]
            write_whole(Path(out) / CASES, json_text(cases))
        jobs = {
            n: self._job(each, kept[n], TensorBoard(tensorboard / n) if tensorboard else on_round)
            for n, each in asked.items()
        }
        if self.by_name:  # here, so that data are fetched and what is wrong with them is said once
            for data in dict.fromkeys(each.get("data", self.base.data) for each in asked.values()):
                load_data(self.base.changed(data=data), report)
        by_clock = any(settings.get("seconds", self.base.seconds) for settings in asked.values())
        interrupted, here = False, workers is None or isinstance(workers, int)
        if on_round is not None or (here and not self.by_name):  # processes here know names only
            workers = 0
        with Bar("simulated seconds" if by_clock else "rounds", counted=not by_clock) as bar:
            try:
                done = run_all(jobs, workers, bar.update)
            except Interrupted as error:
                done, interrupted = error.done, True
        results: dict[Case, list[Result]] = {}
        for (case, _), name in self.names.items():
            if name in done.results:
                results.setdefault(case, []).append(done.results[name])
        if not results and not interrupted:
            failed = " ".join(f"{name}: {reason}" for name, reason in done.failures.items())
            raise TrainingDiverged(f"no run finished: {failed}")
        # Runs of own objects say what these are called.
        first = None if self.by_name else next(iter(done.results.values()), None)
        base = self.base if first is None else first.config
        compared = Compared(base, results, done.failures, self.target, interrupted)
        if out is not None:
            write_whole(Path(out) / "results.csv", csv_of(compared.records()))
        return compared

    def _job(
        self, settings: Mapping[str, Any], folder: Path | None, on_round: OnRound | None
    ) -> Job:
        if self.by_name:
            config = self.base.changed(**settings)
            return run_job(config.changed(threads=config.threads or 1), folder, on_round=on_round)
        base, (model, data, test) = self.base, self.own

        def do(progress: OnPart) -> Any:
            own, kept = _made(model, settings["seed"]), folder is not None
            config, given = federation(base, settings, own, data, test, kept=kept)
            return run_job(config, folder, on_round=on_round, given=given).do(progress)

        seconds, rounds = (settings.get(n, getattr(base, n)) for n in ("seconds", "rounds"))
        reads = () if data is not None else data_files(base.changed(data=settings.get("data")))
        return Job(do, seconds or rounds, folder, reads)


def _check_clock(fleets: Sequence[Any], settings: Mapping[str, Any], target: float | None) -> None:
    """Refuse what does not go with a simulated clock, or without one."""
    if fleets[0]:
        refuse_with_fleet(settings)
        if not all(fleets):
            raise SalfError(
                "without a fleet a run has no clock: name one in every value of fleet=."
            )
    elif target is not None:
        raise SalfError("a target needs the simulated clock of a fleet, such as fleet='phones'.")
    check_target(target)


def _expanded(
    method: str | Method, options: Mapping[str, Any]
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """A method with every combination of its options: a name, batches of its own, the options."""
    if isinstance(method, Method):
        yield named(method), "", {}
        return
    name, _, batches = method.partition("+")
    own = {option: each for option, each in options.items() if key(option) in options_of(name)}
    several = [option for option, value in own.items() if isinstance(value, list | tuple | range)]
    for values in product(*(own[option] for option in several)):
        chosen = {**own, **dict(zip(several, values, strict=True))}
        yield named(make_method(name, **chosen)) if several else name, batches, chosen


def _made(model: Model | None, seed: int) -> nn.Module | Problem | None:
    """The model, made with a seed if it is a function that returns one."""
    if model is None or isinstance(model, nn.Module | Problem):
        return model
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return model()


def _are_names(value: object) -> bool:
    return isinstance(value, list | tuple) and bool(value) and isinstance(value[0], str)


def _axes(settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings to compare, each with its values, and those that all runs have in common."""
    axes: dict[str, Any] = {}
    fixed: dict[str, Any] = {}
    for name, value in settings.items():
        if name in NAMES:
            indices = (
                name == "split" and isinstance(value, list) and value and not _are_names(value)
            )
            axes[name] = [value] if isinstance(value, str | Method) or indices else value
        elif isinstance(value, list | tuple) and name in ("loss", "metrics", "options"):
            raise SalfError(f"{name}= cannot be compared: call compare once for each.")
        elif isinstance(value, list | tuple | range) and name != "layers":
            axes[name] = [typed(Config, name, each) for each in value]
        elif name in CASE:
            axes[name] = [typed(Config, name, value)]
        else:
            fixed[name] = value
    if not all(axes.values()):
        raise SalfError("there is nothing to compare: every list needs at least one value.")
    for name in [name for name in axes if len(axes[name]) == 1 and name not in (*CASE, *NAMES)]:
        (fixed[name],) = axes.pop(name)
    return axes, fixed
