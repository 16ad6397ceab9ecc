"""Compare methods and settings: every combination is a run, and all of them are one table."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
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
from salf.common.files import csv_of, write_whole
from salf.common.notebook import frame
from salf.data import DataSet, are_of_users, load
from salf.methods import Method, named
from salf.methods import method as make_method
from salf.models import build
from salf.problem import Problem
from salf.report.comparison import print_tables, write_report
from salf.report.tables import printed
from salf.runs.compare import Case, Comparison, cases, check_options, own_options
from salf.runs.config import Config
from salf.runs.federation import load_data
from salf.runs.own import TrainData, run_own
from salf.runs.pool import Interrupted, Job, WorkersLike, run_all, run_here, run_job
from salf.runs.presets import simulated
from salf.runs.run import How, Result
from salf.runs.settings import refuse_with_fleet, typed
from salf.runs.training import OnPart, OnRound, counted
from salf.worlds.depth import has_ratio
from salf.worlds.fleet.deadlines import missing
from salf.worlds.fleet.named import GIVEN

Model = nn.Module | Problem | Callable[[], nn.Module] | str
Data = TrainData | str
SplitRule = str | Sequence[Sequence[int]]
# Python objects that a run may be given, besides model, data and method.
OBJECTS = ("layers", "depth", "fleet", "lr", "loss", "metrics")
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
        return f"<pre>{escape(str(self))}</pre>"

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
    model: Model | None = None,
    data: Data | None = None,
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
    base = simulated(config) if isinstance(config, str) else config or Config()
    lists = {"method": methods, "split": splits, "average": averages}
    settings |= {name: each for name, each in lists.items() if each is not None}
    own: dict[str, Any] = {"model": model, "data": data}
    if _are_names(data) or isinstance(model, list | tuple):
        if not all(
            each is None or isinstance(each, str) or _are_names(each) for each in own.values()
        ):
            raise SalfError(
                "several models or data sets are compared by their names: pass both as names, such "
                "as model=['mlp', 'cnn'], data='digits'."
            )
        settings |= {name: each for name, each in own.items() if each is not None}
        own = {"model": None, "data": None}
    sweep = Sweep.of(base, settings, seeds, target, (own["model"], own["data"], test))
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
    """Runs to compare: cases, seeds, and what all of them share, by name or as Python objects."""

    base: Config
    settings: Mapping[str, Any]  # on top of the base
    cases: Sequence[Case]
    seeds: Sequence[int]
    target: float | None
    methods: Mapping[str, str | Method]  # by what cases call them
    options: Mapping[str, Mapping[str, Any]]  # of methods, by the same
    splits: Mapping[str, SplitRule]
    own: tuple[Model | None, Data | None, Any]  # model, data and test data

    @classmethod
    def of(
        cls,
        base: Config,
        settings: Mapping[str, Any],
        seeds: int | Sequence[int] = 3,
        target: float | None = None,
        own: tuple[Model | None, Data | None, Any] = (None, None, None),
    ) -> "Sweep":
        """All combinations of the values of settings that are lists, with every seed."""
        if "seed" in settings:
            raise SalfError("every case is run with several seeds: pass seeds=[1, 2], not seed=.")
        axes, fixed = _axes(settings)
        fleet = axes["fleet"][0] if "fleet" in axes else fixed.get("fleet", base.fleet)
        if fleet:
            refuse_with_fleet(settings)
        if not all(axes.get("fleet", [True])):
            raise SalfError(
                "without a fleet a run has no clock: name one in every value of fleet=."
            )
        if target is not None and not fleet:
            raise SalfError(
                "a target needs the simulated clock of a fleet, such as fleet='phones'."
            )
        if target is not None and not 0 < target <= 1:
            raise SalfError(f"the target is an accuracy above 0 and at most 1, not {target}.")
        apart = isinstance(own[0], Problem) or are_of_users(own[1])
        splits = axes.pop("split", {"own": base.split} if apart else [base.split])
        if not isinstance(splits, Mapping):
            splits = {each if isinstance(each, str) else "given": each for each in splits}
        axes = {"split": [*splits], "stragglers": [base.stragglers], **axes}
        axes = {"batches": [base.batches], **axes}
        averages = axes.pop("average", [])
        options = {**base.options, **fixed.pop("options", {})}
        methods: dict[str, str | Method] = {}
        told: dict[str, Mapping[str, Any]] = {}
        found: dict[Case, None] = {}
        for each in axes.pop("method", ["fedavg", "drop", base.method]):
            average = base.average if isinstance(each, str) else getattr(each, "average", "reached")
            for name, batches, of_method in _expanded(each, options):
                entry = each.partition("+")[0] if isinstance(each, str) else each
                if type(methods.setdefault(name, entry)) is not type(entry):
                    raise SalfError(f"there are two methods called {name}: rename one of them.")
                told[name] = of_method
                own_axes = {"method": [name + batches], "average": averages or [average], **axes}
                found |= dict.fromkeys(cases(own_axes, bool(fleet)))
        check_options(options, [*found])
        seeds = range(seeds) if isinstance(seeds, int) else seeds
        if not (found and seeds):
            raise SalfError("there is nothing to compare: pass at least one method and one seed.")
        sweep = cls(base, fixed, [*found], seeds, target, methods, told, splits, own)
        if not sweep.by_name:
            return sweep
        first = {name: values[0] for name, values in axes.items() if name not in (*CASE, *NAMES)}
        named_own = {"model": own[0], "data": own[1]} if own[0] or own[1] else {}
        return replace(sweep, base=base.changed(**{**fixed, **first, **named_own}), settings={})

    @cached_property
    def by_name(self) -> bool:
        """Whether everything has a name, so that runs can be computed by other processes."""
        parts = [*self.own, *self.methods.values(), *self.splits.values()]
        objects = [each for name, each in self.settings.items() if name in OBJECTS]
        return all(each is None or isinstance(each, str | float | int) for each in parts + objects)

    @cached_property
    def fleet(self) -> str:
        """The name of the fleet, if there is one."""
        swept = dict(self.cases[0].more).get("fleet", self.base.fleet)
        fleet = self.settings.get("fleet", swept)
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
    ) -> Compared:
        """Do all runs; with `out`, each is kept in a folder, and results.csv at the end."""
        asked = {name: self._settings(case, seed) for (case, seed), name in self.names.items()}
        self._check()
        kept = {name: None if out is None else Path(out, "runs", name) for name in asked}
        if self.by_name:
            base = self.base.changed(threads=self.base.threads or 1)
            configs = {name: base.changed(**settings) for name, settings in asked.items()}
            # Here, so that data are fetched once, and what is wrong with them is said once.
            for config in {config.data: config for config in configs.values()}.values():
                load_data(config, report)
            jobs = {n: run_job(each, kept[n], on_round=on_round) for n, each in configs.items()}
        else:
            jobs = {n: self._own_job(each, kept[n], on_round) for n, each in asked.items()}
        interrupted, by_clock = False, "seconds" in self.settings or self.base.seconds
        named = workers is None or isinstance(workers, int)  # processes here know names only
        pooled = (self.by_name or not named) and on_round is None
        with Bar("simulated seconds" if by_clock else "rounds", counted=not by_clock) as bar:
            try:
                done = run_all(jobs, workers, bar.update) if pooled else run_here(jobs, bar.update)
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

    def _check(self) -> None:
        """Refuse what fits none of the cases, or not all of them."""
        common = {**self.base.table(), **self.settings}
        ratios = {case.stragglers for case in self.cases}
        if isinstance(common["depth"], str) and len(ratios) > 1 and not has_ratio(common["depth"]):
            raise SalfError(
                "ratios of stragglers belong to depth='mixture' and have no effect with depth "
                f"{common['depth']}: pass only one."
            )
        methods = {case: self._method(case) for case in self.cases}
        if common["reach"] == "learned" and not any(m.asks.reach for m in methods.values()):
            raise SalfError("none of these methods uses p_l: leave out reach=.")
        for case, method in methods.items():
            deadline = {**common, **dict(case.more)}["deadline"]
            if self.fleet and deadline is None and method.asks.deadline:
                raise missing()

    def _settings(self, case: Case, seed: int) -> dict[str, Any]:
        """The settings of a run on top of the base."""
        given, made = self.methods[case.method], self._method(case)
        return {
            **self.settings,
            **case.settings(seed, made, bool(self.fleet)),
            "method": given if isinstance(given, str) else made,
            "split": self.splits[case.split],
            "options": self.options[case.method],
        }

    def _method(self, case: Case) -> Method:
        given = self.methods[case.method]
        if isinstance(given, str):
            return make_method(given, average=case.average_used, **self.options[case.method])
        averaged = {"average": case.average_used} if case.averages else {}
        return replace(given, **averaged)

    def _own_job(
        self, settings: Mapping[str, Any], folder: Path | None, on_round: OnRound | None
    ) -> Job:
        """A run of Python objects."""
        model, data, test = self._objects
        defaults, apart = Config().table(), ("model", "data", "data_dir", "options")
        table = {name: each for name, each in self.base.table().items() if name not in apart}
        base = {name: value for name, value in table.items() if value != defaults[name]}
        settings = {**base, **settings}
        seconds = settings.get("seconds")
        rounds = settings.get("rounds", 0 if seconds else Config.rounds)

        def do(progress: OnPart) -> Result:
            how = How(on_round=counted(rounds, seconds, progress, on_round))
            own = _fresh(model, data, settings["seed"])
            return run_own(own, data, test, settings, folder, resume=folder is not None, how=how)

        return Job(do, seconds or rounds, folder and folder.absolute())

    @cached_property
    def _objects(self) -> tuple[Model, Any, Any]:
        """Model, data and test data of runs of Python objects."""
        model, data, test = self.own
        if isinstance(model, Problem):
            return model, data, None if data is None else model.test  # a problem has its own
        if model is None or data is None:
            raise SalfError("some of what is compared has no name: pass model= and data=, too.")
        data = load(data) if isinstance(data, str) else data
        if test is None and not isinstance(data, DataSet):
            raise SalfError("a comparison needs test data: pass test=(inputs, labels).")
        return model, data, test


def _expanded(
    method: str | Method, options: Mapping[str, Any]
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """A method with every combination of its options: a name, +batches, and the options."""
    if isinstance(method, Method):
        yield named(method), "", {}
        return
    name, plus, batches = method.partition("+")
    own = own_options(options, name)
    several = [option for option, value in own.items() if isinstance(value, list | tuple | range)]
    for values in product(*(own[option] for option in several)):
        chosen = {**own, **dict(zip(several, values, strict=True))}
        yield named(make_method(name, **chosen)) if several else name, plus + batches, chosen


def _fresh(model: Model, data: Any, seed: int) -> nn.Module | Problem:
    """The model of a run before its first round."""
    if isinstance(model, Problem):
        return replace(model, model=deepcopy(model.model))
    if isinstance(model, nn.Module):
        return deepcopy(model)
    if isinstance(model, str):
        return build(model, data.train.shape, data.classes, seed)
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
