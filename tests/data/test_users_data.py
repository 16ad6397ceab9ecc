"""What users have: parts of one data set, or data of their own, made when needed."""

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from salf.common.errors import SalfError
from salf.data import OwnData, Partition, Partitioned, Samples, joined, some

CPU = torch.device("cpu")


def pair(user, size=3):
    return torch.full((size, 2), float(user)), torch.arange(size) + 10 * user


class Plain(Dataset):
    """A data set whose samples are NumPy arrays and Python numbers."""

    def __init__(self, user, size):
        self.user, self.size = user, size

    def __len__(self):
        return self.size

    def __getitem__(self, place):
        if not 0 <= place < self.size:
            raise IndexError(place)
        return np.full(2, float(self.user)), place + 10 * self.user


class Stream(IterableDataset):
    """It has no length."""

    def __iter__(self):
        yield pair(0)


def test_parts_are_views_of_one_array():
    parts = Partition.of([np.array([4, 5]), np.array([0]), np.array([1, 2, 3])])
    assert [own.tolist() for own in parts] == [[4, 5], [0], [1, 2, 3]]
    assert parts.sizes(np.array([2, 0])).tolist() == [3, 2]
    assert parts.at(np.array([2, 0]), np.array([[2, 0], [1, 1]])).tolist() == [[3, 1], [5, 5]]
    assert parts[1].base is parts[0].base
    assert Partition.of(parts) is parts


@pytest.mark.parametrize(
    "shares",
    [
        joined([pair(user, size) for user, size in enumerate((3, 1, 4))]),
        OwnData(lambda user: pair(user, (3, 1, 4)[user]), 3),
        OwnData(lambda user: [np.asarray(each) for each in pair(user, (3, 1, 4)[user])], 3),
        OwnData([TensorDataset(*pair(u, s)) for u, s in enumerate((3, 1, 4))].__getitem__, 3),
        OwnData([Plain(u, s) for u, s in enumerate((3, 1, 4))].__getitem__, 3),
    ],
    ids=["list of pairs", "function", "arrays", "list of TensorDataset", "list of Dataset"],
)
def test_all_ways_to_give_each_user_its_data_give_the_same_rows(shares):
    assert len(shares) == 3
    assert shares.sizes(np.array([2, 0, 1])).tolist() == [4, 3, 1]
    inputs, labels = shares.rows(np.array([2, 0]), np.array([[3, 0], [1, 2]]))
    assert inputs.tolist() == [[2, 2], [2, 2], [0, 0], [0, 0]]
    assert labels.tolist() == [23, 20, 1, 2]
    assert shares.own(2).labels.tolist() == [20, 21, 22, 23]
    moved = shares.to(CPU, torch.float16)
    assert moved.rows(np.array([1]), np.array([[0]]))[0].dtype == torch.float16
    assert moved.rows(np.array([1]), np.array([[0]]))[1].dtype == torch.int64


def test_bytes_are_images_and_normalised_for_users_of_their_own_too():
    images = torch.tensor([[0, 255]], dtype=torch.uint8)
    for shares in (joined([(images, torch.tensor([1]))]), OwnData(lambda user: (images, [1]), 1)):
        assert shares.rows(np.array([0]), np.array([[0]]))[0].tolist() == [[-1, 1]]


def test_a_users_data_is_made_once_while_it_is_kept():
    made = []
    shares = OwnData(lambda user: made.append(user) or pair(user), 10)
    shares.KEPT = 2
    for user in (4, 4, 5, 4, 6, 4):
        shares.own(user)
    assert made == [4, 5, 6, 4]


def test_some_samples_are_of_several_users():
    shares = OwnData(lambda user: pair(user, 1 + user), 100)
    found = some(shares, 16)
    assert found.inputs[:, 0].unique().tolist() == list(range(8))
    assert len(found) == 15


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ((torch.ones(0, 2), torch.ones(0)), "user 3 has no samples"),
        ((torch.ones(3, 2), torch.ones(2)), "3 inputs but 2 labels"),
        ((["a", "b"], [0, 1]), "user 3's inputs are text: tokenize"),
        ((torch.ones(2, 2), ["cat", "dog"]), "user 3's labels are text: number the classes"),
        (7, "user 3's data are a int: pass a pair"),
        (Stream(), "user 3's data are a Stream"),
        ((torch.tensor([[float("nan")]]), [0]), "user 3's inputs contain NaN"),
    ],
)
def test_data_of_a_user_that_cannot_be_used_are_refused_in_a_sentence(data, said):
    with pytest.raises(SalfError, match=said):
        OwnData(lambda user: data, 5).own(3)


def test_a_data_set_of_single_tensors_is_refused():
    with pytest.raises(SalfError, match=r"must return a pair \(input, label\) per sample"):
        OwnData(lambda user: TensorDataset(torch.ones(3, 2)), 1).own(0)


def test_pairs_of_different_shapes_are_refused():
    with pytest.raises(SalfError, match=r"user 1 have shape \(3,\) .* user 0 have \(2,\)"):
        joined([pair(0), (torch.ones(2, 3), torch.ones(2).long())])


def test_a_split_has_the_users_own_samples_as_stored():
    samples = Samples(torch.arange(4, dtype=torch.uint8)[:, None], torch.arange(4))
    own = Partitioned(samples, [np.array([0, 3]), np.array([1])]).own(0)
    assert own.inputs.dtype == torch.uint8
    assert own.labels.tolist() == [0, 3]
