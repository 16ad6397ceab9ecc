"""What a model is worth on held-out data: its loss, its accuracy, and metrics of your own."""

from collections.abc import Callable, Mapping
from typing import Protocol

import torch
from torch import Tensor

from salf.common.errors import SalfError, in_one_line
from salf.data import Samples
from salf.engines.losses import Loss, user_losses

# Called with the outputs and targets of all held-out rows.
Metric = Callable[[Tensor, Tensor], Tensor | float]

ROWS_AT_ONCE = 500  # with 1,000 the CNN's activations outgrow memory that is reused
OURS = ("loss", "accuracy")


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
