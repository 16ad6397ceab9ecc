"""salf: federated learning that never waits for stragglers.

The paper's method and those it is compared with (`salf.methods`), a simulator that runs them
(`salf.train`, the command `salf`), and the parts both are made of (`salf.core`, `salf.worlds`,
and `salf.core.deadline` for deadlines on real devices).
"""

import ast
from importlib import import_module, resources
from typing import Any

# Where each public name lives, as `__init__.pyi` says. Loaded when first used, so that the help
# need not wait for torch, and a server that only aggregates need not load the simulator.
_HOME_OF = {
    each.name: line.module
    for line in ast.parse(resources.files("salf").joinpath("__init__.pyi").read_text()).body
    if isinstance(line, ast.ImportFrom) and line.module
    for each in line.names
}
__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("salf.common").version()
    if name not in _HOME_OF:
        raise AttributeError(f"module 'salf' has no attribute {name!r}")
    return getattr(import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return __all__
