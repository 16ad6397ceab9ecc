"""SCAFFOLD: control variates take the users' own directions out of their local steps."""

from dataclasses import dataclass

from salf.core.arrivals import Closing
from salf.core.rules import Done, LocalRule, LocalStep, State, Tensors
from salf.methods.base import Method


class Corrected(LocalRule):
    """The gradient without what is the user's own in it: g - c_u + c."""

    def gradient(self, gradients: Tensors, step: LocalStep) -> Tensors:
        return {name: g - step.own[name] + step.server[name] for name, g in gradients.items()}


@dataclass(frozen=True)
class SCAFFOLD(Method):
    """Local steps follow g - c_u + c; the server averages where users get to, layer by layer.

    After its round, user u has c_u <- c_u - c + (w_t - w_u) / (K eta), the mean of its gradients
    (the paper's option II), and the server c <- c + 1/N sum_u (change of c_u) over all N users.
    Both are 0 at first. Here K is counted layer by layer: a user that is stopped has one gradient
    more of its last layers, and c_u stays as it is in layers it did not reach. The server's rate is
    the paper's eta_g; its momentum is of the averaged steps and does not enter c.

    Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning",
    ICML 2020. Live, c_u is kept on the user's device.
    """

    users_keep = "device"

    def server_state(self, weights: Tensors) -> State:
        """c."""
        return {name: weight.new_zeros(weight.shape) for name, weight in weights.items()}

    def user_state(self, weights: Tensors) -> State:
        """c_u."""
        return self.server_state(weights)

    def local_rule(self, steps: int) -> LocalRule:
        """Also of the first step."""
        return Corrected()

    def after(self, done: Done) -> State:
        """(w_t - w_u) / (K eta) is the mean of the corrected gradients."""
        return {name: done.own[name] + change for name, change in self.heard(done).items()}

    def heard(self, done: Done) -> State:
        """What c_u changes by."""
        return {name: g / done.steps[name] - done.server[name] for name, g in done.total.items()}

    def learned(self, server: State, heard: State, closing: Closing) -> State:
        """c moves with the mean of all c_u, also of those who were away."""
        return {name: server[name] + each / closing.everybody for name, each in heard.items()}
