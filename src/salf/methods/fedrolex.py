"""FedRolex: HeteroFL whose stragglers train other units in every round, so that all are trained."""

from dataclasses import dataclass
from typing import ClassVar

from salf.methods.heterofl import HeteroFL


@dataclass(frozen=True)
class FedRolex(HeteroFL):
    """In round t stragglers hold the share `width` of every hidden layer from unit t - 1 on.

    Units are counted round the end of a layer, so the window moves on by one unit each round. All
    else is HeteroFL's.

    Alam et al., "FedRolex: Model-Heterogeneous Federated Learning with Rolling Sub-Model
    Extraction", NeurIPS 2022.
    """

    name: ClassVar[str] = "fedrolex"
    rolls: ClassVar[bool] = True
