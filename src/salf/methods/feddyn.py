"""FedDyn: every user's loss is bent until the users' minima are the federation's."""

from dataclasses import dataclass

from salf.core.arrivals import Closing
from salf.core.rules import Done, LocalRule, LocalStep, State, Tensors
from salf.core.server import SGD, Optimiser
from salf.methods.base import Method, limited


@dataclass(frozen=True)
class Bent(LocalRule):
    """The gradient of F_u(w) + alpha/2 ||w - w_t||^2 - <h_u, w>."""

    alpha: float

    def gradient(self, gradients: Tensors, step: LocalStep) -> Tensors:
        pull = self.alpha * step.rate  # w - w_t is -rate times the total
        return {n: g - step.own[n] - pull * step.total[n] for n, g in gradients.items()}


@dataclass(frozen=True)
class FedDyn(Method):
    """Users step on F_u(w) + alpha/2 ||w - w_t||^2 - <h_u, w>; the server takes mean w_u - h/alpha.

    After its round, user u has h_u <- h_u - alpha (w_u - w_t), and the server h <- h - alpha/N
    sum_u (w_u - w_t) over all N users. Both are 0 at first. In layers that user u did not reach,
    h_u stays as it is, and a layer that nobody reached does not move. The paper tunes alpha in
    {0.001, 0.01, 0.1}. The server must not have momentum of its own; a server rate other than the
    users' multiplies the whole step.

    Acar et al., "Federated Learning Based on Dynamic Regularization", ICLR 2021. Live, h_u is kept
    on the user's device.
    """

    alpha: float = limited(0.01, above=0)

    users_keep = "device"

    def server_state(self, weights: Tensors) -> State:
        """h."""
        return {name: weight.new_zeros(weight.shape) for name, weight in weights.items()}

    def user_state(self, weights: Tensors) -> State:
        """h_u."""
        return self.server_state(weights)

    def local_rule(self, steps: int) -> LocalRule:
        """Also of the first step."""
        return Bent(self.alpha)

    def after(self, done: Done) -> State:
        """h_u - alpha (w_u - w_t)."""
        return {name: done.own[name] + moved for name, moved in self.heard(done).items()}

    def heard(self, done: Done) -> State:
        """-alpha (w_u - w_t)."""
        return {name: self.alpha * done.rate * total for name, total in done.total.items()}

    def learned(self, server: State, heard: State, closing: Closing) -> State:
        """h - alpha/N sum_u (w_u - w_t)."""
        return {name: server[name] + moved / closing.everybody for name, moved in heard.items()}

    def step(self, step: Tensors, server: State, rate: float) -> Tensors:
        """mean w_u - h/alpha is w_t - rate (mean of the totals + h / (alpha rate))."""
        return {name: g + server[name] / (self.alpha * rate) for name, g in step.items()}

    def refuses(self, optimiser: Optimiser) -> str:
        """The step is no gradient."""
        return "" if optimiser == SGD() else "needs server 'sgd' with momentum 0"
