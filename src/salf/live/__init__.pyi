"""The public names of salf.live, and where each one lives."""

from salf.live.launch import Joining, run
from salf.live.replays import replay
from salf.runs.live_config import LiveConfig
from salf.runs.live_config import live as config

__all__ = ["Joining", "LiveConfig", "config", "replay", "run"]
