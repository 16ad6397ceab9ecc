"""A problem: the model that is trained, its users' data, the loss, and the data held out."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from salf.core.layers import Layers
from salf.data import Samples, UsersData
from salf.engines import Loss, cross_entropy
from salf.evaluation import Metric


# eq=False: comparing tensors element by element has no single truth value.
@dataclass(eq=False)
class Problem:
    """What a federation learns: simulator, live server and live users take the same object.

    A live user's problem has its own data only, and the server's needs none. `example` are inputs
    for trying the model, such as those that an engine is chosen by.
    """

    model: nn.Module
    layers: Layers
    users: UsersData | None = None
    loss: Loss = cross_entropy
    example: Tensor | None = field(default=None, repr=False)
    validation: Samples | None = None  # on which the curve is measured
    test: Samples | None = None
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    source: str = ""  # of the data

    @classmethod
    def of(cls, model: nn.Module, users: UsersData | None = None, **more: Any) -> "Problem":
        """A problem of a model with the layers that it has by default."""
        return cls(model, Layers.of(model, example=more.get("example")), users, **more)

    @property
    def weights(self) -> dict[str, Tensor]:
        """The parameters and buffers of the model, by name."""
        return {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}

    @property
    def users_data(self) -> UsersData:
        """The users' data, where there must be some."""
        assert self.users is not None, "a problem without users' data cannot be simulated"
        return self.users

    def predict(self, inputs: Tensor) -> Tensor:
        """The model's outputs in evaluation mode."""
        if self.model.training:
            self.model.eval()
        with torch.inference_mode():
            return self.model(inputs)  # type: ignore[no-any-return]
