import numpy as np
import pytest
import torch

from salf.common.errors import SalfError
from salf.data import DataSet, Samples, from_tensors


def bytes_samples(count=5, **options):
    inputs = torch.arange(count * 4, dtype=torch.uint8).view(count, 1, 2, 2)
    return Samples(inputs, torch.arange(count), **options)


def test_bytes_are_normalised_when_taken_and_stay_bytes_in_store():
    samples = Samples(
        torch.tensor([[0, 51, 255]], dtype=torch.uint8), torch.tensor([1]), mean=0.2, std=0.4
    )
    x, y = samples.rows()
    torch.testing.assert_close(x, torch.tensor([[-0.5, 0.0, 2.0]]))
    assert y.tolist() == [1]
    assert samples.inputs.dtype == torch.uint8
    assert samples.inputs.tolist() == [[0, 51, 255]]
    x, _ = Samples(torch.tensor([[0, 255]], dtype=torch.uint8), torch.tensor([0])).rows()
    torch.testing.assert_close(x, torch.tensor([[-1.0, 1.0]]))  # by default


def test_rows_come_in_the_order_asked_for_with_their_labels():
    samples = bytes_samples()
    x, y = samples.rows(torch.tensor([3, 0, 3]))
    everything, _ = samples.rows()
    assert y.tolist() == [3, 0, 3]
    assert torch.equal(x, everything[[3, 0, 3]])


@pytest.mark.parametrize("inputs", [torch.randn(4, 3), torch.arange(12).view(4, 3)])
def test_inputs_that_are_not_bytes_are_returned_as_they_are(inputs):
    before, samples = inputs.clone(), Samples(inputs, torch.zeros(4))
    x, _ = samples.rows(torch.tensor([2, 1]))
    assert x.dtype == inputs.dtype
    assert torch.equal(x, inputs[[2, 1]])
    samples.rows()
    assert torch.equal(inputs, before)


def test_subset_keeps_storage_type_and_normalisation():
    part = bytes_samples(mean=0.1, std=0.3).subset(np.array([4, 1]))
    assert (part.inputs.dtype, part.mean, part.std) == (torch.uint8, 0.1, 0.3)
    assert part.labels.tolist() == [4, 1]
    assert len(part) == 2
    assert part.shape == (1, 2, 2)


def test_inputs_and_labels_must_be_as_many_and_std_positive():
    with pytest.raises(SalfError, match="3 inputs but 2 labels"):
        Samples(torch.zeros(3, 1), torch.zeros(2))
    with pytest.raises(SalfError, match="std must be above 0, not 0"):
        bytes_samples(std=0)


def test_tensors_make_a_data_set_that_counts_classes_over_both_halves():
    data = from_tensors(
        train=(torch.zeros(3, 2), torch.tensor([0, 1, 1])),
        test=(np.zeros((2, 2), np.float32), np.array([4, 0], np.uint8)),
    )
    assert isinstance(data, DataSet)
    assert data.classes == 5
    assert data.test.labels.dtype == torch.int64
    assert (data.name, data.source) == ("own data", "own data")
    named = from_tensors((data.train.inputs, [0, 1, 1]), (data.test.inputs, [0, 1]), name="Mine")
    assert (named.name, named.source) == ("Mine", "Mine")


def test_float_labels_have_no_classes():
    half = (torch.zeros(3, 2), torch.tensor([0.5, -1.0, 2.0]))
    assert from_tensors(half, half).classes == 0


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        ((torch.zeros(2, 2), torch.tensor([0, -1])), None, "one of them is -1"),
        (None, (torch.zeros(2, 3), torch.tensor([0, 1])), r"\(2,\) but test samples have \(3,\)"),
        (
            None,
            (torch.zeros(0, 2), torch.zeros(0, dtype=torch.int64)),
            "and 0 test samples",
        ),
        (None, (torch.zeros(2, 2), torch.zeros(2)), "both be integers or both be floats"),
        (None, (torch.zeros(2, 2), torch.tensor([1])), "2 inputs but 1 labels"),
        ((torch.tensor(1.0), torch.tensor([1])), None, "first dimension"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(train, test, message):
    good = (torch.zeros(2, 2), torch.tensor([0, 1]))
    with pytest.raises(SalfError, match=message):
        from_tensors(train or good, test or good)


WORDS = ["one", "two", "two"]


@pytest.mark.parametrize(
    ("inputs", "labels", "message"),
    [
        (None, WORDS, r"training labels cannot be .* names of classes .* numpy\.unique"),
        (None, np.array(WORDS), "training labels cannot be"),
        (None, np.array(WORDS, dtype=object), "training labels cannot be"),
        (WORDS, None, "training inputs cannot be converted .* text as token ids"),
        ([b"one", b"two", b"two"], None, "training inputs cannot be"),
        ((torch.zeros(3, 2), torch.zeros(2, 2)), None, "inputs need one row per sample"),
        ([torch.zeros(2), torch.zeros(3), torch.zeros(2)], None, "same shape for all samples"),
        ([[1.0, 2.0], [3.0], [4.0, 5.0]], None, "same shape for all samples"),
        ({"words": WORDS}, None, "training inputs 'words' cannot be"),
        (None, [None, None, None], "training labels cannot be converted"),
        (torch.full((3, 2), float("nan")), None, "training inputs contain NaN .*nan_to_num"),
        (None, torch.tensor([0.0, float("inf"), 1.0]), "training labels contain NaN"),
        (torch.zeros(0, 2), torch.zeros(0).long(), "has 0 training"),
    ],
)
def test_what_is_not_one_array_of_numbers_is_refused_with_the_way_out(inputs, labels, message):
    good = (torch.zeros(3, 2), torch.tensor([0, 1, 1]))
    pair = (good[0] if inputs is None else inputs, good[1] if labels is None else labels)
    with pytest.raises(SalfError, match=message):
        from_tensors(pair, good)


def test_lists_of_numbers_or_arrays_and_reversed_arrays_are_taken():
    numbers = np.unique(WORDS, return_inverse=True)[1]
    half = ([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], numbers[::-1])
    taken = from_tensors(half, ([*map(torch.tensor, half[0])], numbers)).train
    assert taken.inputs.tolist() == half[0]
    assert taken.labels.tolist() == [1, 1, 0]


def test_to_moves_all_and_converts_floating_point_only():
    taken = Samples(torch.zeros(3, 2, dtype=torch.float64), torch.arange(3)).to("cpu", torch.half)
    assert (taken.inputs.dtype, taken.labels.dtype) == (torch.half, torch.int64)
    taken = bytes_samples().to("meta", torch.half)
    assert taken.inputs.dtype == torch.uint8
    assert taken.inputs.device.type == taken.labels.device.type == "meta"
