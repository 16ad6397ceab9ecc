"""Data sets, and how their samples are shared out among users."""

from salf.data.generated import synthetic
from salf.data.loading import example, load, placed
from salf.data.samples import DataSet, Samples, from_tensors
from salf.data.shares import Own, Parts, Shares, Split, joined, some
from salf.data.splits import given, holdout, split

__all__ = [
    "DataSet",
    "Own",
    "Parts",
    "Samples",
    "Shares",
    "Split",
    "example",
    "from_tensors",
    "given",
    "holdout",
    "joined",
    "load",
    "placed",
    "some",
    "split",
    "synthetic",
]
