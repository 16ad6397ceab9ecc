"""Data sets, and how their samples are shared out among users."""

from salf.data.loading import example, load, synthetic
from salf.data.samples import DataSet, Samples, from_tensors
from salf.data.tables import from_columns
from salf.data.users_data import (
    OwnData,
    Partition,
    Partitioned,
    UsersData,
    are_of_users,
    given,
    holdout,
    natural,
    of_users,
    some,
    split,
)

__all__ = [
    "DataSet", "OwnData", "Partition", "Partitioned", "Samples", "UsersData", "are_of_users",
    "example", "from_columns", "from_tensors", "given", "holdout", "load", "natural", "of_users",
    "some", "split", "synthetic",
]  # fmt: skip
