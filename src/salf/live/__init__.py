"""Real deadlines on real processes; `salf.live.run` does what `salf live` does."""

from salf.common import lazy

__all__, __getattr__ = lazy("salf.live")  # because a user's process needs little of it
