"""Options of methods: defaults are the publications', and what cannot be is one sentence."""

import pytest

from salf.common.errors import SalfError
from salf.methods import method


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("asyncfl", {"delay": 0}, "delay >= 1"),
        ("asyncfl", {"discount": -1.0}, "discount >= 0"),
        ("asyncfl", {"stale": "weights"}, "option stale of asyncfl 'weights'.*difference, model"),
        ("asyncfl", {"average": "none"}, "value of average 'none'"),
        ("ca2fl", {"fade": -2}, "fade >= 0"),
        ("fedasync", {"alpha": 0}, r"alpha of FedAsync must be in \(0, 1\]"),
        ("fedasync", {"power": -1}, "power of FedAsync must be at least 0"),
        ("fedasync", {"average": "all"}, "average must be 'reached'"),
        ("fedasync", {"staleness": "exponential"}, "constant, hinge, polynomial"),
        ("fedau", {"cutoff": 0}, "fedau must be at least 1"),
        ("fedbuff", {"buffer": 0}, "buffer of FedBuff must be at least 1"),
        ("fedbuff", {"discount": -1}, "discount of FedBuff must be at least 0"),
        ("feddyn", {"alpha": 0}, "alpha of FedDyn must be positive"),
        ("fedprox", {"mu": -1}, "mu of FedProx must be at least 0"),
        ("fedstale", {"recall": 1.5}, r"recall in \[0, 1\]"),
        *(("heterofl", {"width": width}, "width of") for width in (0, -0.5, 1.5, float("nan"))),
        ("inverse", {"floor": 0.0}, "floor of inverse"),
        ("mifa", {"fade": -1.0}, "fade of mifa"),
        ("mifa", {"remember": 0}, "mifa must remember at least one user"),
    ],
)
def test_options_out_of_range_are_refused(name, options, says):
    with pytest.raises(SalfError, match=says):
        method(name, **options)


def test_defaults_are_the_publications():
    assert method("heterofl").width == 0.5
    assert (method("fedbuff").buffer, method("fedbuff").discount) == (10, 0.5)
