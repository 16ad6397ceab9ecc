"""Real deadlines on real processes; `salf.live.run` does what `salf live` does."""

from importlib import import_module
from typing import Any

# What is public here lives with the experiments, which build on this package: so it is loaded when
# it is used, and not before.
_HOMES = {
    "LiveConfig": ("salf.runs.live_config", "LiveConfig"),
    "Joining": ("salf.runs.live", "Joining"),
    "config": ("salf.runs.live_config", "live"),
    "replay": ("salf.runs.replay", "replay"),
    "run": ("salf.runs.live", "run"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'salf.live' has no attribute {name!r}")
    home, attribute = _HOMES[name]
    return getattr(import_module(home), attribute)
