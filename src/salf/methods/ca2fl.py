"""CA2FL: FedBuff that remembers every user's last update, so that slow users keep their weight."""

from dataclasses import dataclass

from salf.core.arrivals import Arrivals, Floats
from salf.methods.base import limited
from salf.methods.family import Buffering, Remembers, of_whole_updates


@dataclass(frozen=True)
class CA2FL(Remembers, Buffering):
    """w <- w - eta_g (mean_u h_u + 1/K sum_{u in the buffer} (Delta_u - h_u)), then h_u <- Delta_u.

    h_u is the last update of user u, 0 before the first; the mean is over all users. The server
    takes a step after `buffer` = K updates, as in FedBuff: this is FedVARP on a buffer. The weight
    of a remembered update is halved after `fade` steps; by default it does not fade, as in the
    paper. At most `remember` users are remembered, each taking as much memory as the model.

    Wang et al., "Tackling the Data Heterogeneity in Asynchronous Federated Learning with Cached
    Update Calibration", ICLR 2024.
    """

    fade: float | None = limited(None, least=0)

    def share(self, arrived: Arrivals, layers: int) -> Floats:
        """1, however stale; their sum is K."""
        return of_whole_updates(arrived, layers, 1.0)
