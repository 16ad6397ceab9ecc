"""What the server remembers of users: steps by hand, fading, a bounded table, checkpoints."""

import numpy as np
import pytest
import torch
from torch import nn

from salf.core.aggregate import LayerwiseAggregate
from salf.core.layers import Layers
from salf.methods import Recalled
from salf.stages.recall import Recall, Remembering


def net():
    return nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)).double()


def remembering(recall, t, everybody, weights, own=None):
    sums = LayerwiseAggregate(recall.layers, weights, separate=True)
    return Remembering(sums, recall, t, own or {}, everybody)


class Federation:
    """Two layers of one weight each, so that updates are numbers."""

    def __init__(self, beta=1.0, fade=None, users=10, everybody=4):
        model = net()
        self.weights = dict(model.named_parameters())
        self.recall = Recall(Layers.of(model), self.weights, Recalled(beta, fade, users))
        self.everybody, self.t = everybody, 0

    def round(self, updates, divisor, weights=None):
        """`updates[user]` are its gradients of layers 1 and 2; None if it did not reach layer 1."""
        self.t += 1
        aggregate = remembering(self.recall, self.t, self.everybody, self.weights, weights)
        total = np.zeros(2)
        for user, (first, second) in updates.items():
            reached = np.array([first is not None, True], float) * (weights or {}).get(user, 1.0)
            update = {"1.weight": torch.tensor([[second]], dtype=torch.float64)}
            if first is not None:
                update["0.weight"] = torch.tensor([[first]], dtype=torch.float64)
            aggregate.add(update, reached, user=user)
            total += reached
        step = aggregate.total(total, np.asarray(divisor, float))
        return [step.values[name].item() if name in step.values else None for name in self.weights]


def test_the_first_round_is_the_average_of_what_arrived():
    assert Federation().round({"a": (3.0, 5.0), "b": (None, 7.0)}, [1, 2]) == [3.0, 6.0]


def test_the_next_round_has_what_is_new_and_the_mean_of_what_is_remembered():
    fed = Federation()
    fed.round({"a": (3.0, 5.0), "b": (None, 7.0)}, [1, 2])
    # Layer 1: b is new, 4 - 0, and a is remembered with 3 of 4 users: 4/1 + 3/4.
    # Layer 2: b sends 9 where 7 is remembered: (9 - 7)/1 + (5 + 7)/4.
    assert fed.round({"b": (4.0, 9.0)}, [1, 1]) == [4.75, 5.0]


def test_a_layer_nobody_reached_moves_by_what_is_remembered():
    fed = Federation()
    fed.round({"a": (3.0, 5.0)}, [1, 1])
    assert fed.round({}, [1, 1]) == [0.75, 1.25]


def test_what_is_remembered_counts_half_after_fade_rounds():
    fed = Federation(fade=2.0)
    fed.round({"a": (3.0, 4.0)}, [1, 1])
    fed.round({}, [1, 1])
    assert fed.round({}, [1, 1]) == pytest.approx([3 / 4 / 2, 4 / 4 / 2])
    # The difference is to what is left: 3 of 5 rounds later, 2/(2 + 3).
    assert fed.round({"a": (3.0, 4.0)}, [1, 1])[1] == pytest.approx(4 - 4 * 0.4 + 4 * 0.4 / 4)


def test_without_fading_room_nothing_is_remembered():
    fed = Federation(fade=0.0)
    fed.round({"a": (3.0, 4.0)}, [1, 1])
    assert fed.round({"a": (1.0, 2.0)}, [1, 1]) == [1.0, 2.0]


def test_beta_is_how_much_of_it_enters():
    fed = Federation(beta=0.5)
    fed.round({"a": (3.0, 4.0)}, [1, 1])
    assert fed.round({"a": (5.0, 4.0)}, [1, 1]) == [5 - 1.5 + 0.5 * 3 / 4, 4 - 2 + 0.5]


def test_users_count_by_their_weight_in_the_mean():
    fed = Federation(everybody=10)
    weights = {"a": 3.0, "b": 1.0}
    fed.round({"a": (3.0, 4.0), "b": (1.0, 2.0)}, [4, 4], weights)
    assert fed.round({}, [1, 1], weights) == pytest.approx([(9 + 1) / 10, (12 + 2) / 10])


def test_a_full_table_forgets_who_has_been_away_for_longest():
    fed = Federation(users=2)
    fed.round({"a": (1.0, 1.0), "b": (2.0, 2.0)}, [2, 2])
    fed.round({"a": (1.0, 1.0)}, [1, 1])
    fed.round({"c": (8.0, 8.0)}, [1, 1])
    assert fed.round({}, [1, 1]) == [(1 + 8) / 4, (1 + 8) / 4]
    assert fed.recall.bytes == 2 * 2 * 8


def test_a_server_started_again_goes_on_and_forgets_the_same_user():
    fed, again = Federation(users=2, fade=3.0), Federation(users=2, fade=3.0)
    fed.round({"a": (1.0, 1.0), "b": (None, 2.0)}, [2, 2])
    fed.round({"c": (3.0, 3.0), "b": (2.0, 2.0)}, [2, 2])
    again.t = fed.t
    again.recall.load_state(*fed.recall.state())
    ends = [
        (each.round({"d": (4.0, 4.0)}, [1, 1]), each.round({}, [1, 1])) for each in (fed, again)
    ]
    assert ends[0] == ends[1]
    assert again.recall.remembered == fed.recall.remembered


def test_a_user_that_sends_nothing_takes_nobodys_place():
    fed = Federation(users=1)
    fed.round({"a": (1.0, 1.0)}, [1, 1])
    fed.recall.keep(2, "b", {})
    assert fed.recall.remembered == ["a"]


def test_buffers_are_averaged_as_ever():
    model = nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1), nn.Linear(1, 1)).double()
    weights = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    recall = Recall(Layers.of(model), weights, Recalled(1.0, None, 10))
    for t in (1, 2):
        aggregate = remembering(recall, t, 2, weights)
        aggregate.add({"1.running_mean": torch.tensor([4.0]).double()}, [1.0, 1.0], user="a")
        assert aggregate.total([1.0, 1.0]).values["1.running_mean"].item() == 4.0


def test_a_checkpoint_of_another_model_is_refused():
    users, kept = Federation().recall.state()
    kept["value 0.weight"] = torch.zeros(0, 2, 2)
    with pytest.raises(ValueError, match=r"0\.weight"):
        Federation().recall.load_state(users, kept)
