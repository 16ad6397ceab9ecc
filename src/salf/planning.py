"""Choose deadlines for a fleet from Python, for your own model and data."""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from torch import nn

from salf.common.errors import SalfError
from salf.data import DataSet
from salf.report.plan import print_plan, write_plan
from salf.report.tables import printed
from salf.runs import plan as planning
from salf.runs.config import Config
from salf.runs.own import own_federation
from salf.runs.training import Training
from salf.worlds.fleet.devices import Fleet
from salf.worlds.fleet.named import parse


class Plan(planning.Planned):
    """Deadlines from the bound and from simulation: `print` it, or save files and a page."""

    def __str__(self) -> str:
        """What `salf plan` prints."""
        return printed(lambda console: print_plan(self, console))

    def save(self, folder: Path | str) -> list[Path]:
        """Write plan.csv, curve.csv, a figure (PNG and SVG) and plan.html into a folder."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        return write_plan(self, folder)


def plan(
    model: nn.Module,
    data: DataSet | tuple[Any, Any] | Sequence[Any] | Callable[[int], Any],
    test: tuple[Any, Any] | None = None,
    *,
    fleet: str | Fleet,
    seconds: float,
    bound: str = "theorem",
    rates: str = "theorem",
    constants: Mapping[str, float] | None = None,
    seeds: int = 2,
    points: int = 8,
    deadlines: Sequence[float] = (),
    **settings: Any,
) -> Plan:
    """The deadlines for a fleet and a budget of simulated seconds; see `salf.train`.

    The model is copied, not trained. `bound` is "theorem" or "sharp". `rates` is "theorem" (the
    theorem's step sizes) or "run" (those of the run). `constants` sets known values of rho_c,
    rho_s, sigma2, g2, gap and distance2; the others are estimated from a few gradients. The search
    trains with `points` deadlines, or with the given `deadlines`, and `seeds` seeds each. With
    seeds=0, only the bound is used.
    """
    available = settings.pop("availability", "always")
    if isinstance(fleet, str):  # the same devices for every seed of the search
        fleet = parse(fleet, _users(data, settings), 0, available)
    else:
        fleet = fleet.available(available)

    def made(**more: Any) -> tuple[Config, Callable[[Config], Training]]:
        return own_federation(
            deepcopy(model), data, test, fleet=fleet, seconds=seconds, **{**settings, **more}
        )

    for name in ("deadline", "rounds", "seed"):
        if name in settings:
            raise SalfError(f"a plan finds or sets {name} itself: leave it out.")
    config, _ = made()
    found = planning.plan(
        config,
        lambda config: made()[1](config),
        form=bound,
        rates=rates,
        given=constants,
        seeds=seeds,
        points=points,
        deadlines=deadlines,
    )
    return Plan(**{name: getattr(found, name) for name in found.__dataclass_fields__})


def _users(data: Any, settings: Mapping[str, Any]) -> int:
    """How many there are: as said, or as many as parts of the data were given."""
    split = settings.get("split", "iid")
    if "users" in settings:
        return int(settings["users"])
    given = data if isinstance(data, list) else None if isinstance(split, str) else split
    return Config.users if given is None else len(given)
