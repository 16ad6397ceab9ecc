"""What results are in Python and in a notebook: data frames and charts."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from salf.common.errors import SalfError

REPORT = "'salf[report]'"


def frame(records: Sequence[Mapping[str, Any]]) -> Any:
    """A pandas data frame with a row per record."""
    return package("pandas", "pandas").DataFrame(list(records))


def line_chart(points: Sequence[tuple[float, float]], x: str, y: str) -> Any:
    """An Altair chart of (x, y) with these titles."""
    alt = package("altair", REPORT)
    data = alt.InlineData([{"x": at, "y": value} for at, value in points])
    tips = [alt.Tooltip("x:Q", title=x), alt.Tooltip("y:Q", title=y, format=".4f")]
    chart = alt.Chart(data, width=420, height=240).mark_line()
    return chart.encode(
        x=alt.X("x:Q", title=x),
        y=alt.Y("y:Q", title=y, scale=alt.Scale(zero=False)),
        tooltip=tips,
    )


def package(name: str, installed_by: str) -> Any:
    """A package that is not always installed, or an error that says how to install it."""
    try:
        return import_module(name)
    except ImportError:
        raise SalfError(f"this needs {name!r}: run pip install {installed_by}.") from None
