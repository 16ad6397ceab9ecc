"""What users have: parts of one data set, or data of their own, made when needed."""

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from salf.common.errors import SalfError
from salf.data import OwnData, Partition, Partitioned, Samples, from_tensors, of_users, some

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


class Table:
    """As `datasets.Dataset` of Hugging Face: a row is a dictionary, a slice one of lists."""

    def __init__(self, columns):
        self.columns = columns

    def __len__(self):
        return len(next(iter(self.columns.values())))

    def __getitem__(self, place):
        return {name: column[place] for name, column in self.columns.items()}

    def select_columns(self, names):
        return Table({name: self.columns[name] for name in names})


class Batched(Table):
    """It gives several rows at once, and nothing else."""

    def __getitem__(self, place):
        raise AssertionError("one by one")

    def __getitems__(self, places):
        return [Table.__getitem__(self, place) for place in places]


def table(user, size, kind=Table, keys=("img", "label")):
    inputs, labels = pair(user, size)
    columns = (inputs.tolist(), labels.tolist())
    return kind(dict(zip(keys, columns, strict=True)))


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


@pytest.mark.parametrize(
    "data",
    [
        of_users([pair(user, size) for user, size in enumerate((3, 1, 4))]),
        OwnData(lambda user: pair(user, (3, 1, 4)[user]), 3),
        OwnData(lambda user: [np.asarray(each) for each in pair(user, (3, 1, 4)[user])], 3),
        OwnData([TensorDataset(*pair(u, s)) for u, s in enumerate((3, 1, 4))].__getitem__, 3),
        OwnData([Plain(u, s) for u, s in enumerate((3, 1, 4))].__getitem__, 3),
        of_users([table(u, s) for u, s in enumerate((3, 1, 4))], None),
        of_users([table(u, s, Batched) for u, s in enumerate((3, 1, 4))], 3),
        OwnData(lambda user: table(user, (3, 1, 4)[user], keys=("x", "y")), 3),
        OwnData(lambda user: list(Plain(user, (3, 1, 4)[user])), 3),
        of_users([list(Plain(u, s)) for u, s in enumerate((3, 1, 4))], None),
    ],
)
def test_all_ways_to_give_each_user_its_data_give_the_same_rows(data):
    assert len(data) == 3
    assert data.sizes(np.array([2, 0, 1])).tolist() == [4, 3, 1]
    inputs, labels = data.rows(np.array([2, 0]), np.array([[3, 0], [1, 2]]))
    assert inputs.tolist() == [[2, 2], [2, 2], [0, 0], [0, 0]]
    assert labels.tolist() == [23, 20, 1, 2]
    assert data.own(2).labels.tolist() == [20, 21, 22, 23]
    moved = data.to(CPU, torch.float16)
    assert moved.rows(np.array([1]), np.array([[0]]))[0].dtype == torch.float16
    assert moved.rows(np.array([1]), np.array([[0]]))[1].dtype == torch.int64


def test_bytes_are_images_and_normalised_for_users_of_their_own_too():
    images = torch.tensor([[0, 255]], dtype=torch.uint8)
    for data in (of_users([(images, torch.tensor([1]))]), OwnData(lambda user: (images, [1]), 1)):
        assert data.rows(np.array([0]), np.array([[0]]))[0].tolist() == [[-1, 1]]


def test_a_users_data_is_made_once_while_it_is_kept():
    made = []
    data = OwnData(lambda user: made.append(user) or pair(user), 10)
    data.KEPT = 2
    for user in (4, 4, 5, 4, 6, 4):
        data.own(user)
    assert made == [4, 5, 6, 4]


def test_some_samples_are_of_several_users():
    data = OwnData(lambda user: pair(user, 1 + user), 100)
    found = some(data, 16)
    assert found.inputs[:, 0].unique().tolist() == list(range(8))
    assert len(found) == 15


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ((torch.ones(0, 2), torch.ones(0)), "user 3 has no samples"),
        ((torch.ones(3, 2), torch.ones(2)), "3 inputs but 2 labels"),
        ((["a", "b"], [0, 1]), "user 3's inputs cannot be converted .* text as token ids"),
        (7, r"user 3's data must be a pair \(inputs, labels\), or a data set .*, not a int"),
        (Stream(), "user 3's data must .*, not a Stream"),
        ((torch.tensor([[float("nan")]]), [0]), "user 3's inputs contain NaN"),
    ],
)
def test_data_of_a_user_that_cannot_be_used_are_refused_in_a_sentence(data, said):
    with pytest.raises(SalfError, match=said):
        OwnData(lambda user: data, 5).own(3)


def test_a_data_set_of_single_tensors_is_refused():
    with pytest.raises(SalfError, match=r"must return a pair \(input, label\) per sample"):
        OwnData(lambda user: TensorDataset(torch.ones(3, 2)), 1).own(0)


@pytest.mark.parametrize(
    ("keys", "swapped"),
    [(("image", "label"), False), (("labels", "x"), True), (("target", "data"), True),
     (("words", "kind"), False)],
)  # fmt: skip
def test_the_label_is_told_by_its_key_or_comes_second(keys, swapped):
    first, second = torch.ones(2, 3).tolist(), [5, 6]
    columns = (second, first) if swapped else (first, second)
    found = OwnData(lambda user: Table(dict(zip(keys, columns, strict=True))), 1).own(0)
    assert found.inputs.tolist() == first
    assert found.labels.tolist() == [5, 6]


def test_more_columns_than_two_are_refused_with_the_way_out():
    full = Table({"image": [[1.0]], "writer": [3], "label": [1]})
    with pytest.raises(SalfError, match=r"fields image, writer, label: keep .*select_columns\(\["):
        OwnData(lambda user: full, 1).own(0)
    assert OwnData(lambda user: full.select_columns(["image", "label"]), 1).own(0).labels == 1


@pytest.mark.parametrize(("mode", "channels"), [("L", 1), ("RGB", 3), ("RGBA", 3)])
def test_images_become_bytes_by_channel(mode, channels):
    from PIL import Image

    images = [Image.new(mode, (5, 4), color) for color in ("black", "white")]
    found = OwnData(lambda user: Table({"img": images, "label": [0, 1]}), 1).own(0)
    assert found.inputs.shape == (2, channels, 4, 5)
    assert found.inputs.unique().tolist() == [-1, 1]  # normalised, as all bytes are


def test_a_data_set_of_samples_can_be_split_and_tested_on():
    data = from_tensors(table(1, 6), table(2, 2), name="tables")
    assert (len(data.train), data.test.labels.tolist()) == (6, [20, 21])
    assert of_users(table(1, 6), None) is None


def test_users_of_a_list_may_have_data_of_different_kinds():
    mixed = of_users([pair(0), TensorDataset(*pair(1)), table(2, 3)])
    assert mixed.rows(np.arange(3), np.zeros((3, 1), np.int64))[1].tolist() == [0, 10, 20]


def test_pairs_of_different_shapes_are_refused():
    with pytest.raises(SalfError, match=r"user 1 have shape \(\(3,\), \(\)\), .* user 0 have"):
        of_users([pair(0), (torch.ones(2, 3), torch.ones(2).long())])


def test_a_split_has_the_users_own_samples_as_stored():
    samples = Samples(torch.arange(4, dtype=torch.uint8)[:, None], torch.arange(4))
    own = Partitioned(samples, [np.array([0, 3]), np.array([1])]).own(0)
    assert own.inputs.dtype == torch.uint8
    assert own.labels.tolist() == [0, 3]
