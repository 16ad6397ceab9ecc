"""Values as people write them become what a field holds, or are refused in one sentence."""

import re
from typing import Literal

import pytest

from salf.common.errors import SalfError
from salf.common.registry import converted, duration


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        (True, bool, True),
        ("yes", bool, True),
        ("False", bool, False),
        ("3", int, 3),
        (3, float, 3),
        ("0.5", float, 0.5),
        ("none", float | None, None),
        (None, float | None, None),
        ("2", int | None, 2),
        ("2", float | str, 2.0),
        ("cosine:1", float | str, "cosine:1"),
        ("true", bool | str, True),
        ("b", Literal["a", "b"], "b"),
        ("2", Literal[1, 2], 2),
        ("text", str, "text"),
    ],
)
def test_text_and_values_become_the_wanted_type(value, kind, expected):
    found = converted(value, kind, "it")
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("value", "kind", "said"),
    [
        ("perhaps", bool, "it must be of type bool, not 'perhaps'"),
        (1, bool, "it must be of type bool, not 1"),
        (True, int, "it must be of type int, not True"),
        (True, float, "it must be of type float, not True"),
        (1.5, int, "it must be of type int, not 1.5"),
        ("1.5", int | None, "it must be of type int | None, not '1.5'"),
        (float("nan"), float, "it must be of type float, not nan"),
        ("inf", float, "it must be of type float, not 'inf'"),
        (3, str, "it must be of type str, not 3"),
        ("c", Literal["a", "b"], "unknown value of it 'c'. Allowed: a, b"),
    ],
)
def test_what_is_of_another_type_is_refused(value, kind, said):
    with pytest.raises(SalfError, match=re.escape(said)):
        converted(value, kind, "it")


@pytest.mark.parametrize(
    ("text", "seconds"), [("50ms", 0.05), ("2s", 2.0), ("1.5min", 90.0), ("300 us", 3e-4)]
)
def test_durations_have_units(text, seconds):
    assert duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["50", "ms", "-1s", "5 hours", ""])
def test_a_duration_without_a_known_unit_is_refused(text):
    with pytest.raises(SalfError, match="a time needs a unit"):
        duration(text)
