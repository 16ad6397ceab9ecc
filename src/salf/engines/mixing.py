"""Do the rows of different users mix? A probe of a model on example rows, before training.

An engine that runs many users' rows in one pass is right only if each user's outputs and gradients
are what they are alone. The probe runs the model in training mode, dropout off, on the rows of a
few users, and compares: with each user alone, and with another user's rows replaced.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from salf.common.errors import in_one_line
from salf.core.inputs import Inputs, unchanged
from salf.engines.blocks import BlockEngine
from salf.engines.dropout import WithoutDropout

USERS, ROWS = 3, 3  # batch norm needs several rows, and makes of two whatever they are +1 and -1
NEGLIGIBLE = 0.1  # gradients that are smaller, relative to the largest, may be all rounding


def reason_for_the_loop(engine: BlockEngine, example: Tensor) -> str | None:
    """Why this engine must not run its model; None if the probe finds nothing against it."""
    inputs = example[torch.arange(USERS * ROWS, device=example.device) % len(example)]
    try:
        with _trial(engine.model):
            return _Probe(engine, inputs).finding()
    except Exception as error:  # whatever somebody else's code raises
        name, cause = type(engine.model).__name__, in_one_line(error)
        return f"{name} fails on the rows of several users at once ({cause})"


@contextmanager
def _trial(model: nn.Module) -> Iterator[None]:
    """Try a model in training mode without dropout; afterwards everything is as before."""
    attributes = [(module, dict(vars(module))) for module in model.modules()]
    with unchanged(model):
        try:
            model.train()
            for module in model.modules():
                if isinstance(module, nn.RNNBase | nn.MultiheadAttention):
                    module.dropout = 0.0  # it is not done by a function of its own
            with WithoutDropout():
                yield
        finally:
            for module, before in attributes:
                vars(module).clear()
                vars(module).update(before)


@dataclass(frozen=True, eq=False)
class _Probe:
    engine: BlockEngine
    inputs: Tensor

    def finding(self) -> str | None:
        model, who = self.engine.model, type(self.engine.model).__name__
        for name, module in model.named_modules():
            if isinstance(module, nn.Embedding | nn.EmbeddingBag) and (
                module.scale_grad_by_freq or module.max_norm is not None
            ):
                return f"{name} ({type(module).__name__}) mixes the rows of different users"
        buffers = {name: value.clone() for name, value in model.named_buffers()}
        given = self.inputs.clone()
        together = self._outputs(given)
        if not given.equal(self.inputs):
            return f"{who} modifies its input in place"
        for name, value in model.named_buffers():
            if not torch.equal(value, buffers[name]):
                return f"the forward pass of {who} changes the buffer {name}"
        if not same(self._outputs(self.inputs), together):
            return f"{who} keeps a state from one call to the next"
        if not same(self._outputs(self.inputs, seed=1), together):
            return f"{who} draws random numbers other than dropout's"
        if self._mixes(together) or self._mixes_gradients():
            return f"{who} mixes the rows of different users"
        return None

    @torch.no_grad()
    def _outputs(self, inputs: Tensor, seed: int = 0) -> Tensor:
        torch.manual_seed(seed)
        return self.engine.outputs(inputs, len(inputs) // ROWS)

    @torch.no_grad()
    def _mixes(self, together: Tensor) -> bool:
        for user in range(USERS):
            own = slice(user * ROWS, (user + 1) * ROWS)
            with unchanged(self.engine.model):
                alone = self.engine.model(self.inputs[own])
            if not same(alone, together[own]):
                return True
            others = torch.ones(len(self.inputs), dtype=torch.bool)
            others[own] = False
            for rows in self._replacements(own):
                changed = self.inputs.clone()
                changed[own] = rows
                try:
                    outputs = self._outputs(changed)
                except Exception:  # not what this model takes: numbers of words, say
                    continue
                if not same(outputs[others], together[others]):
                    return True
        return not same(self._outputs(self.inputs[ROWS:]), together[ROWS:])

    def _mixes_gradients(self) -> bool:
        """Whether all users' gradients are another sum than that of each alone."""
        model = self.engine.model
        parameters = [each for each in model.parameters() if each.requires_grad]

        def gradients(outputs: Tensor, factors: Tensor) -> tuple[Tensor, ...]:
            objective = (outputs * factors).sum()
            return torch.autograd.grad(
                objective, parameters, allow_unused=True, materialize_grads=True
            )

        outputs = self.engine.outputs(self.inputs, USERS)
        factors = torch.randn(outputs.shape).to(outputs)
        together = gradients(outputs, factors)
        alone = [torch.zeros_like(each) for each in together]
        for start in range(0, len(self.inputs), ROWS):
            own = slice(start, start + ROWS)
            with unchanged(model):
                torch._foreach_add_(alone, gradients(model(self.inputs[own]), factors[own]))
        least = NEGLIGIBLE * max(float(each.abs().max()) for each in alone)
        return not all(same(*pair, least) for pair in zip(together, alone, strict=True))

    def _replacements(self, own: slice) -> Iterator[Tensor]:
        """Other rows that a user might have: somebody else's, and some of other sizes."""
        yield self.inputs[list(range(own.start - ROWS, own.stop - ROWS))]
        rows: Any = self.inputs[own]
        parts = rows.parts.items() if isinstance(rows, Inputs) else [(None, rows)]
        for key, part in parts:
            others = [part.flip(0)]
            if part.is_floating_point():
                others += [part * torch.nan, torch.zeros_like(part), torch.randn(part.shape) * 100]
            for other in others:
                changed = Inputs({**rows.parts, key: other.to(part)}) if key is not None else other
                yield cast(Tensor, changed)


def same(found: Tensor, wanted: Tensor, least: float = 0.0) -> bool:
    """Whether two tensors differ by rounding only: 1e-4 of the largest entry in single precision.

    Where the largest entry is below `least`, relative to that.
    """
    if found.shape != wanted.shape:
        return False
    largest = max(float(wanted.abs().nan_to_num(0, 0).max()), least)
    relative = torch.finfo(wanted.dtype).eps ** 0.57 if wanted.is_floating_point() else 0.0
    return torch.allclose(found, wanted, 0, relative * largest, equal_nan=True)
