"""A fast engine that gives way to the loop engine, for rounds it must not or cannot compute."""

from collections.abc import Mapping

import torch
from torch import Tensor

from salf.common.errors import in_one_line
from salf.core.aggregate import LayerwiseAggregate
from salf.engines.base import ONE_STEP, Engine, LocalSteps, Network, RoundResult, Rows, Weights
from salf.engines.fused import NotNested
from salf.engines.loop import LoopEngine
from salf.engines.mixing import tolerance, trial
from salf.methods import Group, RoundPlan

NEGLIGIBLE = 1e-3  # a layer whose gradients are smaller, relative to the largest, is all rounding


class CheckedEngine(Engine):
    """Runs as `fast`, or as the loop engine from a round on that needs it.

    If `fast` is in doubt, that is the first round if it differs from the loop engine's; for the
    fused engine, it is one with weights that are not nested.
    """

    def __init__(self, fast: Engine, in_doubt: bool = True) -> None:
        super().__init__(fast.model, fast.layers, fast.loss)
        self._chosen = fast
        self._checked = not in_doubt

    @property
    def name(self) -> str:  # type: ignore[override]
        """The name of the engine that runs."""
        return self._chosen.name

    @property
    def local_steps(self) -> bool:  # type: ignore[override]
        """Whether the engine that runs can compute more than one."""
        return self._chosen.local_steps

    @property
    def why(self) -> str:  # type: ignore[override]
        """The reason for choosing the engine that runs."""
        return self._chosen.why

    def settle(self, name: str, why: str) -> None:
        """Run as the engine of this name, without checking."""
        self._checked = True
        if name != self._chosen.name:
            self._chosen = LoopEngine(self.model, self.layers, self.loss)
            self._chosen.why = why

    def round(
        self,
        plan: RoundPlan,
        t: int,
        old: Mapping[int, Weights],
        rows: Rows,
        local: LocalSteps = ONE_STEP,
        aggregate: LayerwiseAggregate | None = None,
    ) -> RoundResult:
        """Compute round t; in doubt, the first one with users both ways."""
        if not self._checked and any(len(group.users) for group in plan.groups):
            separate = aggregate is not None and aggregate.separate
            if reason := self._difference(plan, t, old, rows, local, separate):
                self.settle("loop", f"{reason}, so users are computed one at a time")
            self._checked = True
        try:
            return self._chosen.round(plan, t, old, rows, local, aggregate)
        except NotNested:
            why = "a user may count in a layer and not in later ones"
            self.settle("loop", f"{why}, so users are computed one at a time")
            return self._chosen.round(plan, t, old, rows, local, aggregate)

    def predict(self, inputs: Tensor) -> Tensor:
        return self._chosen.predict(inputs)

    def _difference(
        self,
        plan: RoundPlan,
        t: int,
        old: Mapping[int, Weights],
        rows: Rows,
        local: LocalSteps,
        separate: bool,
    ) -> str | None:
        # Another one, because what it measures without dropout is not to be kept.
        fast = type(self._chosen)(self.model, self.layers, self.loss)
        with trial(self.model):
            loop = LoopEngine(self.model, self.layers, self.loss)
            wanted = loop.round(plan, t, old, rows, local)
            try:
                sums = LayerwiseAggregate(self.layers, self.weights, separate)
                found = fast.round(plan, t, old, rows, local, sums)
            except Exception as error:  # whatever somebody else's code raises
                cause = in_one_line(error)
                return f"the first round failed on the {self.name} engine ({cause})"
        off = self._furthest(found.step.values, wanted.step.values)
        if off is None:
            return None
        return f"the first round differed from the loop engine's by {off:.1g} of the largest entry"

    def _furthest(self, found: Weights, wanted: Weights) -> float | None:
        """The largest difference, relative to its layer's largest entry; None if all is rounding.

        Parameters and running statistics of a layer are compared with their own largest entries.
        """

        def kind(name: str) -> tuple[int, bool]:
            return self.layers.index_of[name], self.weights[name].requires_grad

        largest: dict[tuple[int, bool], float] = {}
        for name, value in wanted.items():
            largest[kind(name)] = max(largest.get(kind(name), 0.0), float(value.abs().max()))
        # Gradients far smaller than any other are rounding: of a bias before a norm, say.
        least = NEGLIGIBLE * max(
            (size for (_, trains), size in largest.items() if trains), default=0
        )
        furthest = 0.0
        for name, value in wanted.items():
            off = float((value - found.get(name, torch.zeros_like(value))).abs().max())
            off /= max(largest[kind(name)], least if kind(name)[1] else 0.0) or 1.0
            if off > tolerance(value):  # false for NaN: a diverged round tells nothing
                furthest = max(furthest, off)
        return furthest or None

    def _compute(
        self, group: Group, network: Network, rows: Rows, aggregate: LayerwiseAggregate
    ) -> float:
        return self._chosen._compute(group, network, rows, aggregate)
