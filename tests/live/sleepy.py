"""A model whose first layer takes six seconds to reach, whatever the machine."""

import time
from math import prod

from torch import nn


class Sleep(nn.Module):
    def forward(self, inputs):
        if inputs.requires_grad:
            inputs.register_hook(lambda gradient: time.sleep(6))
        return inputs * 1


def sleepy(shape, classes):
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(prod(shape), 8),
        Sleep(),
        nn.ReLU(),
        nn.Linear(8, 8),
        nn.ReLU(),
        nn.Linear(8, classes),
    )
