"""salf on Flower: a strategy for a ServerApp, and the function that a ClientApp calls.

from salf.flower import SALF, train
"""

from salf.live.flower.client import train
from salf.live.flower.strategy import SALF

__all__ = ["SALF", "train"]
