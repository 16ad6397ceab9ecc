"""What to run on a fleet, from Python: for your own model and data, or for those of a config."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from salf.common.bars import Bar
from salf.common.errors import SalfError
from salf.common.files import temporary_folder, write_whole
from salf.methods import asks
from salf.problem import Problem
from salf.report.plan import page, print_plan
from salf.report.tables import printed
from salf.runs.config import Config
from salf.runs.federation import Given, problem_of
from salf.runs.live_config import LiveConfig
from salf.runs.own import TrainData, federation
from salf.runs.plan import SEARCHED, Asked, Planned, Planner
from salf.runs.pool import Finished, Job, WorkersLike, pool_of, run_job
from salf.runs.settings import Settings
from salf.worlds.fleet.devices import Fleet

CONFIG, LIVE, PAGE = "config.toml", "live.toml", "plan.html"
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
        rounds = max(1, round(self.rounds(self.best)))
        return LiveConfig(**{**self.config.table(Settings), "rounds": rounds})

    def save(self, folder: Path | str, command: Sequence[str] = ()) -> Path:
        """Write config.toml, live.toml and plan.html into a folder."""
        folder = Path(folder)
        write_whole(folder / CONFIG, self.config.to_toml())
        if (live := self.live_config) is not None:
            write_whole(folder / LIVE, live.to_toml())
        write_whole(folder / PAGE, page(self, command).html())
        return folder


def plan(
    model: nn.Module | Problem,
    data: TrainData | None = None,
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
    given are kept. Learning rates around that of the config are tried for the best of each method.
    The other settings are those of `salf.train`. The model is copied, not trained. With `out`, the
    plan and its runs are kept in that folder, where an interrupted plan continues.
    """
    for name in ("rounds", "seed", "eval_every", "eval_seconds"):
        if name in settings:
            raise SalfError(f"a plan sets {name} itself: leave it out.")
    asked = Asked(target, seeds, {n: settings.pop(n) for n in SEARCHED if n in settings})
    settings |= {"fleet": fleet, "seconds": seconds, "threads": settings.get("threads") or 1}
    config, given = federation(Config(), settings, model, data, test, kept=True)
    found = plan_config(config, asked, out, given=given)
    if out is not None:
        found.save(out)
    return found


def plan_config(
    config: Config,
    asked: Asked,
    out: Path | str | None,
    workers: WorkersLike = None,
    given: Given | None = None,
) -> Plan:
    """What to run, for the model, data and fleet of a config; see `plan`.

    The runs are kept in the folder `out`. With Python objects in place of settings, they are done
    in this process.
    """
    base = config.changed(threads=config.threads or 1)
    problem = problem_of(base, given=given and given.copied())

    def job(chosen: Mapping[str, Any], folder: Path) -> Job:
        return run_job(base.changed(**chosen), folder, given=given)

    with (
        Bar("plan") as bar,
        temporary_folder("plan") as temporary,
        pool_of(workers if given is None else 0) as pool,
    ):

        def run(what: str, jobs: Mapping[str, Job]) -> Finished:
            return pool.do(jobs, partial(bar.update, description=what))

        folder = temporary if out is None else Path(out) / SEARCH
        fleet = None if given is None else given.fleet
        planner = Planner(base, problem, asked, job, run, folder, out is not None, fleet)
        return Plan(**vars(planner.plan()))
