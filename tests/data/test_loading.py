import pytest

from salf.data import load
from salf.errors import SalfError


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("minst", "Did you mean 'mnist'?"),
        ("cifar-10", "Did you mean 'cifar10'?"),
        ("", "Allowed: cifar10, fashion-mnist, folder:PATH, idx:PATH, mnist, synthetic"),
        ("idx:", "unknown data set 'idx:'"),
        ("synthetic:", "unknown data set 'synthetic:'"),
        ("mnist:3", "unknown data set 'mnist:3'"),
        ("synthetic:x", "must be a whole number"),
        ("synthetic:-1", "must be a whole number"),
    ],
)
def test_a_name_not_known_is_answered_with_what_is(spec, message):
    with pytest.raises(SalfError) as caught:
        load(spec)
    assert message in str(caught.value)


def test_a_data_folder_that_does_not_exist_is_an_error(tmp_path):
    with pytest.raises(SalfError, match="nowhere does not exist"):
        load("mnist", folder=tmp_path / "nowhere", cache=tmp_path)
