"""Many machines: the jobs of a study on the nodes of a Ray cluster."""

from salf.cluster.studies import Cluster

__all__ = ["Cluster"]
