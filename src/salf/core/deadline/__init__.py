"""Backpropagation that stops at a deadline, for real devices.

A round is a sequence of stages: the forward pass, the layers L, L-1, ..., 1, and the return to the
caller. `times` learns how long each stage takes, `retry` decides when to start a round whose last
layer is not expected to fit, and `backprop` runs the stages and stops before the one that does not
fit.
"""

from salf.core.deadline.backprop import Backpropagation, Partial

__all__ = ["Backpropagation", "Partial"]
