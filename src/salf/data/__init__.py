"""Data sets, and how their samples are shared out among users."""

from salf.data.generated import synthetic
from salf.data.loading import example, load, placed
from salf.data.samples import DataSet, Samples, from_tensors
from salf.data.splits import given, holdout, split

__all__ = [
    "DataSet",
    "Samples",
    "example",
    "from_tensors",
    "given",
    "holdout",
    "load",
    "placed",
    "split",
    "synthetic",
]
