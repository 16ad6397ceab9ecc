"""Lemma 3 and the theorem: how far SALF can be from FedAvg in a step, and from the best model.

Symbols are the paper's: U users, L layers, rho_c and rho_s the constants of strong convexity and
smoothness (AS1), sigma_u^2 the variance of user u's stochastic gradients (AS2), G^2 their expected
squared norm (AS3), Gamma the heterogeneity gap [psi_heterogeneity_gap].
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import expm1, inf, log1p

from salf.common.errors import SalfError
from salf.core.server import theorem_gamma

LARGEST = 10**9  # users, layers or rounds: what is more is a slip of the pen


@dataclass(frozen=True)
class Federation:
    """How many users there are, and how many layers."""

    users: int  # U
    layers: int  # L

    def __post_init__(self) -> None:
        if not (2 <= self.users <= LARGEST and 1 <= self.layers <= LARGEST):
            raise SalfError(
                "the bounds need at least 2 users and 1 layer, and at most 1e9 of each, not "
                f"{self.users} and {self.layers}."
            )

    @property
    def spread(self) -> float:
        """C / G^2 [C_constant]: L times that of layer 1, whose p_l is the largest.

        p_1 = (1 - 1/(L+1))^U, the chance that nobody reaches the first layer.
        """
        reached = -expm1(self.users * log1p(-1 / (self.layers + 1)))  # 1 - p_1, however small
        return self.layers * layer_spread(self.users, reached)


@dataclass(frozen=True)
class Constants:
    """The theorem's assumptions about the problem, as numbers (AS1 to AS3)."""

    rho_c: float
    rho_s: float
    sigma2: Sequence[float]  # sigma_u^2 of every user; one value stands for all
    G2: float
    Gamma: float = 0.0

    def __post_init__(self) -> None:
        theorem_gamma(self.rho_c, self.rho_s)  # checks the two
        if not self.sigma2:
            raise SalfError("sigma^2 must be given, once for all users or once for each.")
        _check("rho_s", self.rho_s)
        _check("sigma^2", *self.sigma2)
        _check("G^2", self.G2)
        _check("Gamma", self.Gamma)

    def B(self, federation: Federation) -> float:
        """[C_constant]: sum_u sigma_u^2 / U^2 + 6 rho_s Gamma, what FedAvg has too."""
        if len(self.sigma2) not in (1, federation.users):
            raise SalfError(
                f"there are {len(self.sigma2)} values of sigma^2 for {federation.users} users; "
                "give one for all or one for each."
            )
        mean = sum(self.sigma2) / len(self.sigma2)
        return mean / federation.users + 6 * self.rho_s * self.Gamma

    def C(self, federation: Federation) -> float:
        """[C_constant]: what the deadline costs."""
        return self.G2 * federation.spread


def layer_spread(users: int, reached: float) -> float:
    """A layer's part of C / G^2, in the proof of Lemma 3: 4 U / (U - 1) * (1 + p_l) / (1 - p_l).

    `reached` is 1 - p_l. If it is 0, nobody ever reaches the layer and there is no bound: inf.
    """
    return 4 * users / (users - 1) * (2 - reached) / reached if reached else inf


def variance_bound(federation: Federation, eta: float, G2: float) -> float:
    """[bounded_var]: E |w~ - w|^2 <= eta^2 C, of one step around FedAvg's."""
    return eta * eta * G2 * federation.spread


def convergence_bound(
    federation: Federation, constants: Constants, t: int, distance2: float, *, deadline: bool = True
) -> float:
    """[FL_Convergence]: E F(w_t) - F(w_opt) <= kappa/(gamma+t-1) (2(B+C)/rho_c + ...).

    `distance2` is |w_1 - w_opt|^2. Without a deadline, C = 0: full FedAvg.
    """
    if not 1 <= t <= LARGEST:
        raise SalfError(f"the round t must be from 1 to 1e9, not {t}.")
    _check("the distance", distance2)
    rho_c, kappa = constants.rho_c, constants.rho_s / constants.rho_c
    gamma = theorem_gamma(rho_c, constants.rho_s)
    noise = constants.B(federation) + (constants.C(federation) if deadline else 0.0)
    return kappa / (gamma + t - 1) * (2 * noise / rho_c + rho_c * gamma / 2 * distance2)


def _check(name: str, *numbers: float) -> None:
    for number in numbers:
        if not 0 <= number < inf:
            raise SalfError(f"{name} must be finite and not negative, not {number}.")
