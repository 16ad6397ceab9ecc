"""`salf bound`: what makes no sense is a sentence, never a table of nan or a traceback."""

import json

import pytest

from salf.cli import main


@pytest.fixture
def bound(monkeypatch, capsys):
    def run(*arguments):
        monkeypatch.setattr("sys.argv", ["salf", "bound", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code, capsys.readouterr()

    return run


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--layers", "1e20"], "not a valid integer"),
        (["--layers", "1" + "0" * 20], "at most 1e9"),
        (["--round", "1" + "0" * 400], "the round t must be from 1"),
        (["--g2", "nan"], "G^2 must be finite and not negative, not nan"),
        (["--sigma2", "inf"], "sigma^2 must be finite and not negative, not inf"),
        (["--rho-c", "nan"], "0 < rho_c <= rho_s, not nan"),
    ],
)
def test_constants_that_make_no_sense_are_a_sentence(bound, arguments, told):
    code, printed = bound(*arguments)
    assert code == 2
    assert told in printed.err.replace("\n", " ")
    assert printed.err.startswith("salf: ")
    assert printed.err.count("\n") == 1
    assert printed.out == ""


def test_the_largest_federation_has_its_bounds(bound):
    code, printed = bound("--users", str(10**9))
    assert not code
    assert "1,000,000,000" in printed.out
    assert "nan" not in printed.out


def test_the_step_has_the_theorems_size(bound):
    """U = 2, L = 1, kappa = 2: C = 40/3 G^2, and eta_5 = 2 / (16 + 5)."""
    size = ["--users", "2", "--layers", "1", "--round", "5", "--rho-s", "2", "--g2", "3"]
    _, printed = bound(*size, "--json")
    asked = json.loads(printed.out)
    assert asked["C"] == pytest.approx(40)
    assert asked["variance of the step"] == pytest.approx(0.3628, rel=1e-4)
