"""Voice: whose gradients the steps are made of, by hand."""

import numpy as np
import pytest

from nets import small_mlp
from reference import Scripted, data, equal_shares, simulate
from salf.stages.pipeline import MOST_USERS, Voice
from salf.worlds.depth import Mixture

# Two users, three layers: user 0 always finishes, user 1 reaches layer 3 in round 1 only.
ROUNDS = [[1, 3], [1, 4]]


def shares(name, depth, rounds=2, **options):
    sim = simulate(small_mlp(), name, depth, data(2, 2, (4,)), equal_shares(2, 2), options=options)
    for _ in range(rounds):
        sim.step()
    return sim.voice.parts()


def test_a_method_that_waits_hears_all_alike():
    assert shares("fedavg", Scripted(ROUNDS, 3)) == pytest.approx([0.5, 0.5])


def test_salf_hears_who_reached_a_layer():
    # Round 1: user 0 has 1, 1, 1/2, user 1 has 0, 0, 1/2 in the layers; round 2 is user 0's.
    assert shares("salf", Scripted(ROUNDS, 3)) == pytest.approx([5.5 / 6, 0.5 / 6])


def test_what_is_remembered_has_a_voice():
    # MIFA, fading by half a round later, of two users: a new gradient weighs 1/2.
    # Round 1: user 0 has 3/2 over the layers, user 1 has 1/2, of layer 3.
    # Round 2: user 0 again 3/2, 1/2 of what is new and half of a half of what is not, twice:
    # (1/2)(1 - 1/2) + (1/2)(1/2) = 1/2 in each layer; user 1 has (1/2)(1/2) in layer 3.
    assert shares("mifa", Scripted(ROUNDS, 3), fade=1.0) == pytest.approx([3 / 3.75, 0.75 / 3.75])


def test_stand_ins_have_a_voice():
    # SALF-Recall, half left a round later. Round 1: user 0 has 1, 1, 1/2 in the layers, user 1 has
    # 1/2 of layer 3. Round 2: user 0 has 1, 1, and 1/(1 + 1/2) of layer 3, user 1 the rest of it.
    wanted = [2.5 + 2 + 2 / 3, 0.5 + 1 / 3]
    found = shares("salf-recall", Scripted(ROUNDS, 3), fade=1.0)
    assert found == pytest.approx([each / 6 for each in wanted])


def test_shares_are_of_the_sum():
    voice = Voice(3)
    voice.total = np.array([1.0, 2.0, 1.0])
    assert voice.parts().tolist() == [0.25, 0.5, 0.25]


def test_nothing_heard_is_no_voice():
    assert len(shares("drop", Mixture(2, 3, 1.0))) == 0


def test_for_a_million_users_nothing_is_kept():
    assert len(Voice(MOST_USERS + 1).total) == 0
