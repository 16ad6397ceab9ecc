"""`salf bound`."""

from typing import Annotated

from rich.table import Table

from salf.cli.options import option, parse_list
from salf.cli.terminal import results
from salf.common.errors import SalfError


def bound(
    users: Annotated[int, option("--users", help="U, the number of users (30).")] = 30,
    layers: Annotated[int, option("--layers", help="L, the number of layers (3).")] = 3,
    t: Annotated[int, option("--round", help="t, the round (250).")] = 250,
    rho_c: Annotated[float, option("--rho-c", help="Strong convexity, AS1 (1).")] = 1.0,
    rho_s: Annotated[float, option("--rho-s", help="Smoothness, AS1 (1).")] = 1.0,
    sigma2: Annotated[
        str,
        option("--sigma2", help="Variance of stochastic gradients, AS2: one, or one per user (1)."),
    ] = "1",
    g2: Annotated[float, option("--g2", help="G^2, squared norm of gradients, AS3 (1).")] = 1.0,
    gap: Annotated[float, option("--gap", help="Gamma, the heterogeneity gap (0).")] = 0.0,
    distance2: Annotated[float, option("--distance2", help="|w_1 - w_opt|^2 (1).")] = 1.0,
) -> None:
    """Print the theorem's constants and bounds, and how they depend on U and L.

    B is the part of the bound that FedAvg has too; C is what the deadline adds. Bounds are worst
    cases: measured gaps are far smaller.

    Example:

        salf bound --users 30 --layers 9 --round 1000 --rho-c 0.1 --rho-s 4 --g2 10
    """
    from salf.core.server import theorem_rate
    from salf.theory import Constants, Federation, convergence_bound, variance_bound
    from salf.theory.bounds import LARGEST

    try:
        variances = [float(part) for part in parse_list(sigma2)]
    except ValueError:
        raise SalfError(f"sigma2 must be comma-separated numbers, not {sigma2!r}.") from None
    constants = Constants(rho_c, rho_s, variances, g2, gap)
    table = Table(title=f"Bounds for round {t}", title_justify="left")
    for column in ("U", "L", "B", "C", "variance of the step", "gap of SALF", "gap of FedAvg"):
        table.add_column(column, justify="right")
    asked = Federation(users, layers)
    # One value per user says nothing about other numbers of users.
    sizes = () if len(variances) > 1 else (users // 2, users * 2, users * 10)
    others = [Federation(n, layers) for n in sizes if 1 < n <= LARGEST]
    depths = (layers // 2, layers * 2, layers * 4)
    others += [Federation(users, n) for n in depths if 0 < n <= LARGEST]
    for federation in (asked, *others):
        gaps = [
            convergence_bound(federation, constants, t, distance2, deadline=deadline)
            for deadline in (True, False)
        ]
        eta = theorem_rate(rho_c, rho_s)(t)
        values = [constants.B(federation), constants.C(federation)]
        values += [variance_bound(federation, eta, g2), *gaps]
        cells = [str(federation.users), str(federation.layers), *(f"{v:.4g}" for v in values)]
        first = federation is asked
        table.add_row(*cells, style="bold" if first else None, end_section=first)
    results.print(table)
