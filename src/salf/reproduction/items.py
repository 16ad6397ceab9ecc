"""All items, in the order of the paper's experiments, then its theory."""

from collections.abc import Mapping

from salf.reproduction.item import Item
from salf.reproduction.table1 import Table1

ITEMS: Mapping[str, Item] = {item.name: item for item in (Table1(),)}
