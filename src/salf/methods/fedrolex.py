"""FedRolex: HeteroFL whose stragglers train different units in every round, so none is left out."""

from dataclasses import dataclass, replace

from salf.methods.base import Narrow
from salf.methods.heterofl import HeteroFL


@dataclass(frozen=True)
class FedRolex(HeteroFL):
    """In round t, stragglers train a fraction `width` of every hidden layer, from unit t - 1.

    The window moves by one unit per round and wraps around at the end of a layer. Everything else
    is as in HeteroFL.

    Alam et al., "FedRolex: Model-Heterogeneous Federated Learning with Rolling Sub-Model
    Extraction", NeurIPS 2022.
    """

    def narrow(self, t: int) -> Narrow:
        """The units from number t - 1 on."""
        return replace(super().narrow(t), shift=t - 1)
