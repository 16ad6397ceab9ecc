"""What the server keeps of each user from round to round: tensors with a row for each."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from salf.core.aggregate import UserId
from salf.core.arrivals import Ints


class UserTable:
    """Tensors like these, with a row for every user that was added, by its number (live, its name).

    Rows are 0 at first. There is room for at most `most` users.
    """

    def __init__(self, like: Mapping[str, Tensor], most: float = np.inf) -> None:
        self.row: dict[UserId, int] = {}
        self.most = most
        self.columns = {name: one.new_zeros((0, *one.shape)) for name, one in like.items()}

    def rows(self, users: Iterable[Any], add: bool = False) -> Ints:
        """The rows of these users; -1 for users that have none, which `add` gives one."""
        given = [user.item() if isinstance(user, np.generic) else user for user in users]
        for user in given if add else ():
            self.row.setdefault(user, len(self.row))
        needed = len(self.row)
        for name, column in self.columns.items():
            if needed > len(column):
                room = int(min(self.most, max(8, needed, 2 * (needed - 1))))
                self.columns[name] = column.new_zeros((room, *column.shape[1:]))
                self.columns[name][: len(column)] = column
        return np.array([self.row.get(user, -1) for user in given], np.int64)

    @property
    def users(self) -> list[UserId]:
        """All that have a row, row by row."""
        return sorted(self.row, key=self.row.__getitem__)

    def state(self) -> tuple[list[UserId], dict[str, Tensor]]:
        return self.users, {n: column[: len(self.row)] for n, column in self.columns.items()}

    def load_state(self, users: Sequence[UserId], columns: Mapping[str, Tensor]) -> None:
        for name, column in self.columns.items():
            if columns[name].shape != (len(users), *column.shape[1:]):
                raise ValueError(f"what is kept of users as {name!r} has a different shape")
            self.columns[name] = column[:0]
        self.row = {}
        for user in users:  # one by one: spare rows, which a sum over rows counts, are the same
            self.rows([user], add=True)
        for name, column in self.columns.items():
            column[: len(users)] = columns[name]
