"""A method of one's own that keeps a state of everything: for tests, which name it by its path."""

from dataclasses import dataclass

import numpy as np
import torch

import salf


@dataclass(frozen=True)
class Leaning(salf.LocalRule):
    """Steps lean towards the user's last ones, the more the longer the server has trained."""

    lean: float

    def gradient(self, gradients, step):
        lean = self.lean * (1 - 0.5 ** step.server["rounds"]).to(next(iter(gradients.values())))
        return {name: g + lean * step.own[name] for name, g in gradients.items()}


@dataclass(frozen=True)
class Leans(salf.Method):
    """The server keeps a number and the sum of all updates; a user has its last mean gradient."""

    lean: float = 0.2

    def server_state(self, weights):
        return {"rounds": 0, **{f"sum {name}": torch.zeros_like(w) for name, w in weights.items()}}

    def user_state(self, weights):
        return {name: torch.zeros_like(w) for name, w in weights.items()}

    def local_rule(self, steps):
        return Leaning(self.lean)

    def after(self, done):
        return {name: total / done.steps[name] for name, total in done.total.items()}

    def heard(self, done):
        return {f"sum {name}": done.rate * total for name, total in done.total.items()}

    def learned(self, server, heard, closing):
        sums = {name: server[name] + value for name, value in heard.items()}
        return {"rounds": server["rounds"] + 1, **sums}

    def step(self, step, server, rate):
        return {name: g + 0.01 * server[f"sum {name}"] for name, g in step.items()}

    def share(self, arrived, layers):
        return super().share(arrived, layers) * (1 + arrived.round / 100)

    def divisor(self, closing):
        return np.maximum(closing.shares, 1e-9) * (1 + float(closing.server["rounds"]) / 50)


@dataclass(frozen=True)
class LeansOnDevice(Leans):
    """The same, with users' states on their devices."""

    users_keep = "device"
