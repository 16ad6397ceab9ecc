"""The options of a plan, beside the settings of its runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from salf.common.registry import duration
from salf.runs.settings import names_of, read_fields, setting

CONSTANTS = ("rho_c", "rho_s", "sigma2", "g2", "gap", "distance2")


def _durations(value: Any) -> tuple[float, ...]:
    """Seconds, also from a text such as 0.5s,1s,2s."""
    parts = value.split(",") if isinstance(value, str) else value
    return tuple(float(duration(part)) for part in parts)


@dataclass(frozen=True)
class PlanOptions:
    """Which bound the schedule minimises, its constants, and what the search tries.

    Constants that are None are estimated. Every deadline is tried with every seed.
    """

    bound: Literal["theorem", "sharp"] = setting(
        "theorem",
        "Which bound the schedule minimises: theorem | sharp (the proof's expression that still "
        "has the number of users that reach a layer). Both are shown.",
    )
    rates: Literal["theorem", "run"] = setting(
        "theorem", "Step sizes of the bound: theorem | run (those of --lr)."
    )
    rho_c: float | None = setting(None, "Strong convexity (rho_s/10).", least=0)
    rho_s: float | None = setting(None, "Smoothness (estimated).", least=0)
    sigma2: float | None = setting(None, "Variance of a batch's gradient (estimated).", least=0)
    g2: float | None = setting(None, "G^2, squared norm of gradients (estimated).", least=0)
    gap: float | None = setting(None, "Gamma, the heterogeneity gap (0).", least=0)
    distance2: float | None = setting(None, "|w_1 - w_opt|^2 (estimated).", least=0)
    seeds: int = setting(2, "Seeds of the search (2); 0 for no search.", least=0)
    points: int = setting(8, "Deadlines that the search tries (8).", least=2)
    deadlines: Sequence[float] = setting(
        (), "Deadlines to try instead, such as 0.5s,1s,2s.", _durations
    )

    def __post_init__(self) -> None:
        read_fields(self)

    @classmethod
    def taken_from(cls, settings: dict[str, Any]) -> "PlanOptions":
        """The options among these settings, which then are of the config alone."""
        return cls(**{name: settings.pop(name) for name in names_of(cls) if name in settings})

    @property
    def constants(self) -> dict[str, float]:
        """The constants that are known."""
        known = {name: getattr(self, name) for name in CONSTANTS}
        return {name: value for name, value in known.items() if value is not None}
