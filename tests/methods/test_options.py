"""Options of methods: defaults are the publications', and what cannot be is one sentence."""

import pytest

from salf.common.errors import SalfError
from salf.methods import method


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("asyncfl", {"delay": 0}, "option delay of asyncfl must be at least 1, not 0"),
        ("asyncfl", {"delay": 2, "buffer": 3}, "leave out delay"),
        ("asyncfl", {"stale": "weights"}, "option stale of asyncfl 'weights'.*difference, model"),
        ("asyncfl", {"average": "none"}, "value of average 'none'"),
        ("ca2fl", {"fade": -2}, "fade of ca2fl must be at least 0"),
        ("fedasync", {"alpha": 0}, "alpha of fedasync must be above 0, not 0"),
        ("fedasync", {"average": "all"}, "average must be 'reached'"),
        ("fedasync", {"staleness": "exponential"}, "constant, hinge, polynomial"),
        ("fedstale", {"recall": 1.5}, "recall of fedstale must be at most 1, not 1.5"),
        *(("heterofl", {"width": width}, "width of") for width in (0, 1.5, float("nan"))),
    ],
)
def test_options_out_of_range_are_refused(name, options, says):
    with pytest.raises(SalfError, match=says):
        method(name, **options)


def test_defaults_are_the_publications():
    assert method("heterofl").width == 0.5
    assert (method("fedbuff").buffer, method("fedbuff").discount) == (10, 0.5)
