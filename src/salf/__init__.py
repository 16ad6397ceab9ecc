"""salf: federated learning that never waits for stragglers.

The paper's method and those it is compared with (`salf.methods`), a simulator that runs them
(`salf.train`, the command `salf`), and the parts both are made of (`salf.core`, `salf.worlds`,
and `salf.core.deadline` for deadlines on real devices).
"""

from typing import Any

from salf.common import lazy, version

# So `salf --help` need not wait for torch, nor a server that only aggregates for the simulator.
__all__, _load = lazy("salf")


def __getattr__(name: str) -> Any:
    return version() if name == "__version__" else _load(name)


def __dir__() -> list[str]:
    return __all__
