"""FedAvg and Drop: weights by hand, and methods found by name."""

import numpy as np
import pytest

from salf.common.errors import SalfError
from salf.core.arrivals import Arrivals
from salf.core.draws import Keyed
from salf.methods import METHODS, method
from salf.methods.drop import Drop
from salf.methods.fedavg import FedAvg
from salf.worlds.base import AtDeadline
from salf.worlds.depth import fixed

P = np.array([0.5, 0.25, 0.1])


def depths(*values, stragglers=()):
    depth = np.array(values)
    return Arrivals(depth, np.isin(np.arange(len(depth)), stragglers))


def test_fedavg_waits_so_that_everybody_counts_alike_whatever_their_depth():
    world = FedAvg().world(AtDeadline(fixed([1, 4, 2, 3], 3)))
    arrived, _ = world.arrivals(1, Keyed(0, 1), np.arange(world.users), world.start())
    p = world.unreached(1, np.arange(world.users), world.start())
    assert FedAvg().weights(arrived, p).tolist() == [[0.25] * 4] * 3
    assert FedAvg().asks.waits


def test_fedavg_is_the_mean_over_those_heard_where_a_user_failed():
    """Live: depth L + 1 is a user that was asked and sent nothing that could be used."""
    assert FedAvg().weights(depths(1, 4, 1, 1), P).tolist() == [[1 / 3, 0, 1 / 3, 1 / 3]] * 3


def test_drop_averages_over_the_users_that_are_no_stragglers():
    """[fl_updateStr]: in the mixture a straggler is dropped even if its depth happens to be 1."""
    found = Drop().weights(depths(1, 4, 1, 2, 1, stragglers=(1, 2, 3)), P)
    assert found.tolist() == [[0.5, 0, 0, 0, 0.5]] * 3


def test_drop_with_nobody_finished_weighs_nobody():
    assert Drop().weights(depths(2, 4, stragglers=(0, 1)), P).tolist() == [[0, 0]] * 3


def test_the_five_methods_of_the_paper_are_found_by_name():
    assert set(METHODS) >= {"fedavg", "drop", "salf", "heterofl", "asyncfl"}
    assert [name for name, cls in METHODS.items() if cls().asks.waits] == ["fedavg"]


def test_unknown_methods_and_options_are_refused_with_what_is_allowed():
    with pytest.raises(SalfError, match=r"unknown method 'salv'. Did you mean 'salf'"):
        method("salv")
    with pytest.raises(SalfError, match=r"option of salf 'width'.*none"):
        method("salf", width=0.5)
