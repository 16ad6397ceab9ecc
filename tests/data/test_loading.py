import pytest

from salf.common.errors import SalfError
from salf.data import example, load, loading
from salf.data.named import RECIPES


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("minst", "Did you mean 'mnist'?"),
        ("cifar-10", "Did you mean 'cifar10'?"),
        ("", "Allowed: cifar10, digits, fashion-mnist, folder:PATH, idx:PATH, mnist"),
        ("idx:", "unknown data set 'idx:'"),
        ("synthetic:", "unknown data set 'synthetic:'"),
        ("mnist:3", "unknown data set 'mnist:3'"),
        ("synthetic:x", "must be an integer"),
        ("synthetic:-1", "must be an integer"),
    ],
)
def test_a_name_not_known_is_answered_with_what_is(spec, message):
    with pytest.raises(SalfError) as caught:
        load(spec)
    assert message in str(caught.value)


def test_a_data_folder_that_does_not_exist_is_an_error(tmp_path):
    with pytest.raises(SalfError, match="nowhere does not exist"):
        load("mnist", folder=tmp_path / "nowhere", cache=tmp_path)


@pytest.mark.parametrize("spec", RECIPES)
def test_an_example_of_a_data_set_that_is_fetched_needs_no_fetching(spec, monkeypatch):
    monkeypatch.setattr(loading, "load_named", None)  # which would be called
    inputs, classes = example(spec, 3)
    assert inputs.shape == ((3, 3, 32, 32) if spec == "cifar10" else (3, 1, 28, 28))
    assert classes == 10


def test_an_example_of_other_data_is_their_first_rows():
    inputs, classes = example("digits", 5)
    assert inputs.equal(load("digits").train.rows()[0][:5])
    assert classes == 10
    assert len(example("digits", 10**6)[0]) == len(load("digits").train)
