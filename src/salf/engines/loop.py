"""The loop engine: one user at a time, any module. Slow, obvious, and the oracle."""

from salf.core.aggregate import LayerwiseAggregate
from salf.engines.base import Engine, Network, Rows
from salf.methods import Group


class LoopEngine(Engine):
    """Every user in turn: its local steps, the last one to its depth; add what it reached."""

    name = "loop"
    local_steps = True

    def _compute(
        self, group: Group, network: Network, rows: Rows, aggregate: LayerwiseAggregate
    ) -> float:
        return self._separately(group, network, rows, aggregate)
