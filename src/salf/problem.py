"""A problem: the model that is trained, its users' data, the loss, and the data held out.

Also what a model is worth on these: its loss, its accuracy, and metrics of your own.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from salf.common.errors import SalfError, in_one_line
from salf.core.layers import Layers
from salf.data import Samples, UsersData
from salf.engines.losses import Loss, cross_entropy, user_losses

# Called with the outputs and targets of all held-out rows.
Metric = Callable[[Tensor, Tensor], Tensor | float]

ROWS_AT_ONCE = 500  # with 1,000 the CNN's activations outgrow memory that is reused
OURS = ("loss", "accuracy")


# eq=False: comparing tensors element by element has no single truth value.
@dataclass(eq=False)
class Problem:
    """The task of a federation: simulator, live server and live users take the same object.

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
        """A problem of a model with the layers that it has by default.

        problem = salf.Problem.of(net, salf.data.of_users(pairs), test=salf.Samples(x, y))
        """
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
        if self.model.training:
            self.model.eval()
        with torch.inference_mode():
            return self.model(inputs)  # type: ignore[no-any-return]


class Predictor(Protocol):
    """A model with its loss: a problem, or an engine, which is faster."""

    @property
    def loss(self) -> Loss: ...

    def predict(self, inputs: Tensor) -> Tensor:
        """The outputs in evaluation mode."""


def evaluate(
    model: Predictor, samples: Samples, metrics: Mapping[str, Metric] | None = None
) -> dict[str, float]:
    """`loss`, `accuracy` if the labels are classes, and `metrics`, in evaluation mode.

    A loss of one value per user is averaged over chunks of rows. The accuracy is the share of
    labels that are the largest output.
    """
    loss, correct = 0.0, 0
    outputs: list[Tensor] = []
    targets: list[Tensor] = []
    for start in range(0, len(samples), ROWS_AT_ONCE):
        stop = min(start + ROWS_AT_ONCE, len(samples))
        inputs, labels = samples.rows(torch.arange(start, stop, device=samples.labels.device))
        found = model.predict(inputs)
        with torch.inference_mode():
            loss += (stop - start) * user_losses(model.loss, found, labels, users=1).item()
        if classifies := _classifies(found, labels):
            correct += int((found.argmax(1) == labels).sum())
        if metrics:
            outputs.append(found)
            targets.append(labels)
    measured = {"loss": loss / len(samples)}
    if classifies:
        measured["accuracy"] = correct / samples.labels.numel()
    if metrics:
        whole = torch.cat(outputs), torch.cat(targets)
        measured |= {name: _value(name, metric, *whole) for name, metric in metrics.items()}
    return measured


def check_names(metrics: Mapping[str, Metric]) -> None:
    """Refuse metrics that could not be told from ours."""
    for name, metric in metrics.items():
        if name in OURS or not name.isidentifier():
            raise SalfError(
                f"a metric cannot be called {name!r}: use a Python name other than "
                f"{' and '.join(OURS)}, which are always measured."
            )
        if not callable(metric):
            raise SalfError(f"the metric {name} must be a function of outputs and targets.")


def _classifies(outputs: Tensor, labels: Tensor) -> bool:
    """Whether labels are class numbers of outputs that score the classes."""
    if labels.is_floating_point() or outputs.dim() < 2:
        return False
    return outputs.shape[:1] + outputs.shape[2:] == labels.shape


def _value(name: str, metric: Metric, outputs: Tensor, targets: Tensor) -> float:
    try:
        with torch.no_grad():
            return float(metric(outputs.clone(), targets))
    except Exception as error:  # whatever somebody else's code raises
        raise SalfError(f"the metric {name} fails: {in_one_line(error)}") from error
