"""Choose deadlines for a fleet from Python, for your own model and data."""

from pathlib import Path
from typing import Any

from torch import nn

from salf.common.errors import SalfError
from salf.problem import Problem
from salf.report.plan import print_plan, write_plan
from salf.report.tables import printed
from salf.runs.config import Config
from salf.runs.federation import problem_of
from salf.runs.own import TrainData, own_federation
from salf.runs.plan import Planned
from salf.runs.plan import plan as make_plan
from salf.runs.plan_options import PlanOptions
from salf.worlds.fleet.devices import Fleet


class DeadlinePlan(Planned):
    """Deadlines from the bound and from simulation: `print` it, or save files and a page."""

    def __str__(self) -> str:
        return printed(lambda console: print_plan(self, console))

    def save(self, folder: Path | str) -> list[Path]:
        """Write plan.csv, curve.csv, a figure (PNG and SVG) and plan.html into a folder."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        return write_plan(self, folder)


def plan(
    model: nn.Module | Problem,
    data: TrainData,
    test: tuple[Any, Any] | None = None,
    *,
    fleet: str | Fleet,
    seconds: float,
    **settings: Any,
) -> DeadlinePlan:
    """The deadlines for a fleet and a budget of simulated seconds; see `salf.train`.

    The model is copied, not trained. `bound` is "theorem" or "sharp". `rates` is "theorem" (the
    theorem's step sizes) or "run" (those of the run). The constants `rho_c`, `rho_s`, `sigma2`,
    `g2`, `gap` and `distance2` are estimated from a few gradients if they are not given. The search
    trains with `points` deadlines (8), or with the given `deadlines`, and `seeds` seeds (2) each.
    With seeds=0, only the bound is used.
    """
    for name in ("deadline", "rounds", "seed"):
        if name in settings:
            raise SalfError(f"a plan finds or sets {name} itself: leave it out.")
    options = PlanOptions.taken_from(settings)
    settings |= {"fleet": fleet, "seconds": seconds}
    config, given = own_federation(model, data, test, settings)

    def own_problem(config: Config) -> Problem:
        return problem_of(config, given=given.copied())

    return DeadlinePlan(**vars(make_plan(config, own_problem, options, given)))
