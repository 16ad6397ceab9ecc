"""What results are in Python and in a notebook: data frames and charts."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from salf.common.errors import SalfError


def frame(records: Sequence[Mapping[str, Any]]) -> Any:
    """A pandas data frame with a row per record."""
    try:
        import pandas
    except ImportError:
        raise SalfError("a data frame needs pandas: run pip install pandas.") from None
    return pandas.DataFrame(list(records))


def optional(module: str, extra: str = "report") -> Any:
    """Import a module of an extra, or raise an error that says how to install it."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise SalfError(
            f"this needs the package {error.name!r}, which is not installed: run "
            f"pip install 'salf[{extra}]'"
        ) from None


def line_chart(points: Sequence[tuple[float, float]], x: str, y: str) -> Any:
    """An Altair chart of (x, y) with these titles."""
    alt = optional("altair")
    records = [{"x": at, "y": value} for at, value in points]
    return (
        alt.Chart(alt.InlineData(records), width=420, height=240)
        .mark_line()
        .encode(
            x=alt.X("x:Q", title=x, scale=alt.Scale(nice=False)),
            y=alt.Y("y:Q", title=y, scale=alt.Scale(zero=False)),
            tooltip=[alt.Tooltip("x:Q", title=x), alt.Tooltip("y:Q", title=y, format=".4f")],
        )
    )
