"""Real deadlines on real processes; `salf.live.run` does what `salf live` does."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from salf.live.launch import Joining, run
    from salf.live.replays import replay
    from salf.runs.live_config import LiveConfig
    from salf.runs.live_config import live as config

# Loaded when it is used, because a user's process needs little of it.
_HOMES = {
    "LiveConfig": ("salf.runs.live_config", "LiveConfig"),
    "Joining": ("salf.live.launch", "Joining"),
    "config": ("salf.runs.live_config", "live"),
    "replay": ("salf.live.replays", "replay"),
    "run": ("salf.live.launch", "run"),
}

__all__ = ["Joining", "LiveConfig", "config", "replay", "run"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'salf.live' has no attribute {name!r}")
    home, attribute = _HOMES[name]
    return getattr(import_module(home), attribute)
