"""Voice as a picture: the weight of each class and user, beside its share of the data."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from salf.report import names
from salf.report.charts import _lines, of_first_panel
from salf.report.extra import optional
from salf.report.page import Chart, Section
from salf.report.style import INK, Records, Spec, legend, spec
from salf.runs.compare import Case, Comparison
from salf.runs.run import Result

_WIDTH, _HEIGHT = 380, 260


def heard(comparison: Comparison) -> list[Case]:
    """The cases with a record of the users' voice."""
    return [
        case
        for case in of_first_panel(comparison)
        if all(run.summary.get("voice") for run in comparison.results[case])
    ]


def figure(comparison: Comparison, titled: bool = False) -> Spec:
    """Classes on the left, users on the right."""
    alt = optional("altair")
    cases = heard(comparison)
    named = {case: names.variant(case.method, case.batches) for case in cases}
    of_name = {line.name: line.colour for line in _lines(comparison)}
    shown = list(dict.fromkeys(named.values()))
    colour = alt.Color(
        "method:N",
        sort=shown,
        scale=alt.Scale(domain=shown, range=[of_name.get(name, INK) for name in shown]),
        legend=legend(),
    )
    by_class = _class_records(comparison, named)
    sides = [_user_chart(alt, _user_records(comparison, named), colour)]
    if by_class:
        sides.insert(0, _class_chart(alt, by_class, colour))
    title = {"title": "Voice: whose gradients the model is made of"} if titled else {}
    return spec(alt.hconcat(*sides, spacing=40, **title))


def section(comparison: Comparison) -> Section:
    """The picture and its explanation."""
    return Section(
        "Voice: whose gradients the model is made of",
        [
            "A user's voice is its share of the weight applied in all steps, averaged over the "
            "layers. An unbiased method gives every user the voice it has with FedAvg, which waits "
            "for all users. A method that averages only over fast users leaves out classes that "
            "only slow users hold, and the model does not learn them.",
            Chart(
                figure(comparison),
                "Voice by class and by user, for each method.",
                "Left: each class's share of the voice; black marks show its share of the data. "
                "Right: users sorted by their voice; the line marks an equal share. Mean over the "
                "seeds.",
            ),
        ],
    )


def _class_chart(alt: Any, records: Records, colour: Any) -> Any:
    base = alt.Chart(alt.Data(values=records))
    bars = base.mark_bar().encode(
        x=alt.X("class:O", title="Class", axis=alt.Axis(labelAngle=0)),
        xOffset=alt.XOffset("method:N", sort=None),
        y=alt.Y("voice:Q", title="Share of the voice", axis=alt.Axis(format="%")),
        color=colour,
        tooltip=["method:N", "class:O", alt.Tooltip("voice:Q", format=".1%")],
    )
    marks = base.mark_tick(color=INK, thickness=2, width=_WIDTH / 12).encode(
        x="class:O", y=alt.Y("data:Q")
    )
    return (bars + marks).properties(width=_WIDTH, height=_HEIGHT)


def _user_chart(alt: Any, records: Records, colour: Any) -> Any:
    base = alt.Chart(alt.Data(values=records))
    lines = base.mark_line(strokeWidth=2.5).encode(
        x=alt.X("place:Q", title="Users, the least heard first"),
        y=alt.Y("voice:Q", title="Voice, in equal shares"),
        color=colour,
        tooltip=["method:N", "place:Q", alt.Tooltip("voice:Q", format=".2f")],
    )
    equal = alt.Chart(alt.Data(values=[{"voice": 1}])).mark_rule(strokeDash=[4, 4], color=INK)
    return (lines + equal.encode(y="voice:Q")).properties(width=_WIDTH, height=_HEIGHT)


def _class_records(comparison: Comparison, named: dict[Case, str]) -> Records:
    found: Records = []
    for case, name in named.items():
        runs = comparison.results[case]
        if not all(run.summary["voice"]["classes"] for run in runs):
            return []
        voice, data = _mean(runs, "classes"), _mean(runs, "data")
        found += [
            {"method": name, "class": label, "voice": round(v, 5), "data": round(d, 5)}
            for label, (v, d) in enumerate(zip(voice, data, strict=True))
        ]
    return found


def _user_records(comparison: Comparison, named: dict[Case, str]) -> Records:
    found: Records = []
    for case, name in named.items():
        runs = comparison.results[case]
        ranked = np.mean([sorted(run.summary["voice"]["users"]) for run in runs], axis=0)
        found += [
            {"method": name, "place": place, "voice": round(float(v) * len(ranked), 4)}
            for place, v in enumerate(ranked, 1)
        ]
    return found


def _mean(runs: Sequence[Result], part: str) -> list[float]:
    return [float(v) for v in np.mean([run.summary["voice"][part] for run in runs], axis=0)]
