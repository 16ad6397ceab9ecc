"""All items: the paper's experiments in its order, then its theory."""

from collections.abc import Mapping

from reproduction import convergence, vgg
from reproduction.item import Item
from reproduction.latency import Latency
from reproduction.lemma1 import Lemma1
from reproduction.lemma2 import Lemma2
from reproduction.lemma3 import Lemma3
from reproduction.table1 import Table1
from reproduction.theorem import Theorem

_EXPERIMENTS = (Table1(), convergence.MLP, convergence.CNN, Latency(), vgg.BY_SHARE, vgg.AT_90)
_THEORY = (Lemma1(), Lemma2(), Lemma3(), Theorem())
ITEMS: Mapping[str, Item] = {item.name: item for item in (*_EXPERIMENTS, *_THEORY)}
