"""Flower, across organisations: the strategy, what a ClientApp calls, and a federation to try."""

from salf.common.errors import SalfError

try:
    import flwr  # noqa: F401  (here, so that every module of this folder says the same without it)
except ImportError:
    raise SalfError("Flower is not installed: run pip install 'salf[flower]'.") from None
