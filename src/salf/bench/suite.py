"""The suite as data: scenarios, data sets, methods, and the config of every run they ask for."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any

from salf.common.errors import SalfError, unknown
from salf.methods import method
from salf.runs.config import Config

POINTS = 40  # evaluations of a run
# The settings of a config that are a method's own; all others are the suite's.
OWN = (
    "average", "batches", "batch_size", "local_steps", "local_epochs", "client_lr", "server",
    "momentum", "beta1", "beta2", "epsilon", "reach",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Entrant:
    """A row of the table: a method with its options and the settings that go with it."""

    method: str
    options: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    given_name: str = ""

    def __post_init__(self) -> None:
        for name in self.settings:
            if name not in OWN:
                raise unknown("setting of a method", name, OWN)

    @property
    def name(self) -> str:
        """As in `salf+equal-time`, or with options `asyncfl(delay=3)`."""
        if self.given_name:
            return self.given_name
        options = ",".join(f"{key}={value}" for key, value in self.options.items())
        others = dict(self.settings)
        batches = f"+{others.pop('batches')}" if "batches" in others else ""
        named = "".join(f"+{key.replace('_', '-')}={value}" for key, value in others.items())
        return self.method + (f"({options})" if options else "") + batches + named


# FedAvg with every user in every round, however long that takes: what targets are a share of.
REFERENCE = Entrant("fedavg", given_name="reference")


@dataclass(frozen=True, eq=False)
class Scenario:
    """Who is slow, or absent, and who holds what; for so many deadlines."""

    key: str
    title: str
    about: str
    rounds: int
    settings: Mapping[str, Any]
    batch_seconds: float = 1.0  # that a batch takes the median device

    @property
    def clocked(self) -> bool:
        return "fleet" in self.settings

    @property
    def budget(self) -> float:
        """In simulated seconds with a clock, else in rounds."""
        return self.rounds * (self.settings["deadline"] if self.clocked else 1)


@dataclass(frozen=True, eq=False)
class BenchCell:
    """A scenario with a data set."""

    scenario: Scenario
    data: str
    model: str
    work: float  # multiply-adds of a batch
    validation: float
    common: Mapping[str, Any]

    @property
    def key(self) -> str:
        return f"{self.data}/{self.scenario.key}"

    def config(self, entrant: Entrant, seed: int, lr: float) -> Config:
        scenario = self.scenario
        settings = {**self.common, **scenario.settings}
        own = {**entrant.settings, "method": entrant.method, "options": dict(entrant.options)}
        if entrant is REFERENCE:
            for name in ("fleet", "deadline", "availability", "pair"):
                settings.pop(name, None)
        average = {"average": own["average"]} if "average" in own else {}
        asks, clocked = (
            method(entrant.method, **average, **entrant.options).asks,
            "fleet" in settings,
        )
        if not asks.chance:  # which is all that reads it
            del settings["reach"]
        if clocked:
            speed = f"{self.work / scenario.batch_seconds:.6g}"
            settings["fleet"] = settings["fleet"].format(speed=speed)
            settings |= {"seconds": scenario.budget, "rounds": 0}
            settings["eval_seconds"] = scenario.budget / POINTS
        else:
            own.pop("batches", None)  # without a clock all devices are alike: batches are equal
            if asks.waits:
                settings["stragglers"] = 0.0  # for whom it waits
            settings["rounds"] = scenario.rounds
            settings["eval_every"] = max(1, scenario.rounds // POINTS)
        return Config(
            **{**settings, **own},
            data=self.data,
            model=self.model,
            validation=self.validation,
            lr=lr,
            seed=seed,
            threads=1,
        )


@dataclass(frozen=True, eq=False)
class Suite:
    """Everything that is compared, and how."""

    name: str
    version: int
    seeds: Sequence[int]
    tuning_seeds: Sequence[int]
    rates: Sequence[float]
    cells: Sequence[BenchCell]
    entrants: Sequence[Entrant]

    @cached_property
    def scenarios(self) -> list[Scenario]:
        return list({cell.scenario.key: cell.scenario for cell in self.cells}.values())

    @cached_property
    def data(self) -> list[str]:
        return list(dict.fromkeys(cell.data for cell in self.cells))

    def only(self, scenarios: Sequence[str]) -> "Suite":
        """The suite with these scenarios only; all of them, if none is named."""
        known = [scenario.key for scenario in self.scenarios]
        for name in scenarios:
            if name not in known:
                raise unknown("scenario", name, known)
        wanted = scenarios or known
        return replace(self, cells=[cell for cell in self.cells if cell.scenario.key in wanted])

    def entrant(self, name: str) -> Entrant:
        """The row of this name, or any other method: by name or import path, with its batches."""
        for entrant in self.entrants:
            if entrant.name == name:
                return entrant
        method, plus, batches = name.partition("+")
        if plus and batches not in ("equal", "equal-time"):
            raise SalfError(f"write a method as in salf+equal-time or salf+equal, not {name!r}.")
        return Entrant(method, settings={"batches": batches} if plus else {})


def load(name: str) -> Suite:
    """A suite of the benchmark by name, or one of your own from a TOML file of the same form."""
    own = name.endswith(".toml")
    try:
        text = (Path(name) if own else files("salf.bench") / "suites.toml").read_text("utf-8")
        table = tomllib.loads(text)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SalfError(f"cannot read the suite {name!r}: {error}.") from None
    suites = {name: dict.fromkeys(table["data"], "all")} if own else table["suites"]
    if name not in suites:
        raise unknown("suite", name, [*suites, "FILE.toml"])
    common = _named(table["common"])
    scenarios = [
        Scenario(key, **{**_named(entry), "settings": _named(entry["settings"])})
        for key, entry in table["scenarios"].items()
    ]
    cells = [
        BenchCell(scenario, data, common=common, **table["data"][data])
        for data, wanted in suites[name].items()
        for scenario in scenarios
        if wanted == "all" or scenario.key in wanted
    ]
    entrants = [
        Entrant(
            own.pop("method"), own.pop("options", {}), given_name=own.pop("name", ""), settings=own
        )
        for own in map(_named, table["methods"])
    ]
    seeds, tuning_seeds = table["seeds"], table["tuning-seeds"]
    return Suite(name, table["version"], seeds, tuning_seeds, table["rates"], cells, entrants)


def _named(table: Mapping[str, Any]) -> dict[str, Any]:
    return {key.replace("-", "_"): value for key, value in table.items()}
