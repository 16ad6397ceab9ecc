"""What to run on a fleet, from Python: for your own model and data, or for those of a config."""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from salf.common.bars import Bar
from salf.common.errors import SalfError
from salf.common.files import temporary_folder, write_whole
from salf.data import DataSet
from salf.methods import asks
from salf.problem import Problem
from salf.report.extra import check_extra
from salf.report.plan import page, print_plan
from salf.report.tables import printed
from salf.runs.config import Config
from salf.runs.federation import make_problem, problem_of
from salf.runs.fingerprint import fingerprints
from salf.runs.live_config import LiveConfig
from salf.runs.own import own_federation, run_own
from salf.runs.plan import SEARCHED, Asked, Planned, Planner
from salf.runs.pool import Finished, Job, Workers, run_here, run_job
from salf.runs.run import How, Result
from salf.runs.settings import Settings, names_of
from salf.runs.watched import OnPart, counted
from salf.worlds.fleet.devices import Fleet

CONFIG, LIVE, CANDIDATES, PAGE = "config.toml", "live.toml", "candidates.csv", "plan.html"
SEARCH = "search"  # the folder of the runs, in that of the plan


class Plan(Planned):
    """What to run: `print` it, run its `config`, or save files and a page."""

    def __str__(self) -> str:
        return printed(lambda console: print_plan(self, console))

    @property
    def live_config(self) -> LiveConfig | None:
        """The choice for real users, if its method has a deadline and needs no simulator."""
        if asks(self.config.method).simulated_only or self.config.given:
            return None
        shared = {name: getattr(self.config, name) for name in names_of(Settings)}
        return LiveConfig(**{**shared, "rounds": max(1, round(self.rounds(self.best)))})

    def save(self, folder: Path | str, command: Sequence[str] = (), drawn: bool = True) -> Path:
        """Write config.toml, live.toml, candidates.csv and, if `drawn`, plan.html into a folder."""
        folder = Path(folder)
        write_whole(folder / CONFIG, self.config.to_toml())
        write_whole(folder / CANDIDATES, self.candidates_csv())
        if (live := self.live_config) is not None:
            write_whole(folder / LIVE, live.to_toml())
        if drawn:
            write_whole(folder / PAGE, page(self, command).html())
        return folder


def plan(
    model: nn.Module | Problem,
    data: DataSet | tuple[Any, Any] | Sequence[Any] | Callable[[int], Any] | None = None,
    test: tuple[Any, Any] | None = None,
    *,
    fleet: str | Fleet,
    seconds: float | None = None,
    target: float | None = None,
    seeds: int = 3,
    out: Path | str | None = None,
    **settings: Any,
) -> Plan:
    """What to run on a fleet for the best accuracy within `seconds`, or to reach `target` soonest.

    Methods, deadlines, batches, local steps and compressions are tried by simulation; what is
    behind ends early, and the best are run with `seeds` seeds. Of these settings, those that are
    given are kept, and the learning rate is the middle of those tried. The other settings are those
    of `salf.train`. The model is copied, not trained. With `out`, runs are kept in that folder with
    the result, and a plan that was interrupted continues there.
    """
    if out is not None:
        check_extra()  # now, not after hours of training
    _refuse_set(settings)
    fixed = {name: settings.pop(name) for name in SEARCHED if name in settings}
    objects = ("split", "layers", "loss", "metrics")
    parts: dict[str, Any] = {"data": data, "test": test, "fleet": fleet}
    parts |= {name: settings.pop(name) for name in objects if name in settings}
    method = {"method": fixed["method"]} if "method" in fixed else {}
    base, made, given = own_federation(model, **parts, **method, **settings, seconds=seconds)
    own = {"users": model.users} if isinstance(model, Problem) else {}
    marks = fingerprints({**parts, **own, **method})
    base = base.changed(threads=base.threads or 1, given={**base.given, **marks})
    if not isinstance(made, Problem):
        made = make_problem(base, replace(made, model=deepcopy(made.model)))

    def job(chosen: Mapping[str, Any], folder: Path) -> Job:
        def do(progress: OnPart) -> Result:
            copied = _copied(model)
            how = How(on_round=counted(0, chosen["seconds"], progress))
            told = {**settings, "threads": base.threads, **chosen}
            objects = {**parts, "method": told.pop("method")}
            return run_own(copied, objects, told, folder, resume=True, how=how)

        return Job(do, chosen["seconds"])

    asked = Asked(target, seeds, fixed)
    with Bar("plan") as bar:

        def run(what: str, jobs: Mapping[str, Job]) -> Finished:
            return run_here(jobs, partial(bar.update, description=what))

        found = _planned(base, made, asked, job, run, out, given.fleet)
    if out is not None:
        found.save(out)
    return found


def plan_config(config: Config, asked: Asked, out: Path, workers: int | None = None) -> Plan:
    """What to run, for the model, data and fleet of a config; see `plan`."""
    base = config.changed(threads=config.threads or 1)

    def job(chosen: Mapping[str, Any], folder: Path) -> Job:
        return run_job(base.changed(**chosen), folder)

    with Bar("plan") as bar, Workers(workers) as pool:

        def run(what: str, jobs: Mapping[str, Job]) -> Finished:
            return pool.do(jobs, partial(bar.update, description=what))

        return _planned(base, problem_of(base), asked, job, run, out)


def _planned(
    base: Config,
    problem: Problem,
    asked: Asked,
    job: Callable[[Mapping[str, Any], Path], Job],
    run: Callable[[str, Mapping[str, Job]], Finished],
    out: Path | str | None,
    fleet: Fleet | None = None,
) -> Plan:
    with temporary_folder("plan") as temporary:
        folder = temporary if out is None else Path(out) / SEARCH
        planner = Planner(base, problem, asked, job, run, folder, out is not None, fleet)
        return Plan(**vars(planner.plan()))


def _copied(model: nn.Module | Problem) -> nn.Module | Problem:
    if isinstance(model, Problem):
        return replace(model, model=deepcopy(model.model))
    return deepcopy(model)


def _refuse_set(settings: Mapping[str, Any]) -> None:
    for name in ("rounds", "seed", "eval_every", "eval_seconds"):
        if name in settings:
            raise SalfError(f"a plan sets {name} itself: leave it out.")
