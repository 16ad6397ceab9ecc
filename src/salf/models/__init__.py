"""The paper's networks, made for a data set's shape, and a user's own by import path."""

from salf.models.build import build, find
from salf.models.paper import PAPER_MODELS, cnn, mlp, vgg

__all__ = ["PAPER_MODELS", "build", "cnn", "find", "mlp", "vgg"]
