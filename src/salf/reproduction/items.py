"""All items: the paper's experiments in its order, then its theory."""

from collections.abc import Mapping

from salf.reproduction import convergence, vgg
from salf.reproduction.item import Item
from salf.reproduction.latency import Latency
from salf.reproduction.lemma1 import Lemma1
from salf.reproduction.lemma2 import Lemma2
from salf.reproduction.lemma3 import Lemma3
from salf.reproduction.table1 import Table1
from salf.reproduction.theorem import Theorem

_EXPERIMENTS = (Table1(), convergence.MLP, convergence.CNN, Latency(), vgg.BY_SHARE, vgg.AT_90)
_THEORY = (Lemma1(), Lemma2(), Lemma3(), Theorem())
ITEMS: Mapping[str, Item] = {item.name: item for item in (*_EXPERIMENTS, *_THEORY)}
