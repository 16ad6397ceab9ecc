"""Table I: test accuracy on MNIST by method and ratio of stragglers, averaged both ways."""

from collections.abc import Sequence
from typing import Any, ClassVar

from salf.experiments.config import Config
from salf.report import names
from salf.report.extra import optional
from salf.report.page import Block
from salf.report.style import Spec, legend, spec
from salf.report.tables import Cell, Table
from salf.reproduction.comparisons import CONVENTIONS, HEADINGS, far_apart
from salf.reproduction.item import Found, Item, Outcome, Remember
from salf.reproduction.paper import published
from salf.reproduction.presets import AVERAGES, METHODS, RATIOS, Preset
from salf.reproduction.statistics import interval, over_seeds
from salf.reproduction.table1_claims import CLOSE, MODELS, Cells, beside, findings, place

# Why a number of ours is not the paper's, as far as it can be known. What the authors' script
# does was read from github.com/langnatalie/SALF, which the paper links.
REASONS = {
    "salf": "The authors' script (github.com/langnatalie/SALF) differs from the paper's text in "
    "ways that bear on this: it counts weights and biases as layers of their own, so that a "
    "straggler reaches the first layer's weights with a chance of 1/6 (MLP) or 1/8 (CNN), where "
    "the text has 1/4 or 1/5; its stragglers are the same users in all rounds; and momentum is "
    "each user's own.",
    "drop": "Averaged over all users, Drop's steps shrink with the share of stragglers, so that at "
    "many stragglers the training has only just begun at the end, and small differences show: "
    "the authors' script (github.com/langnatalie/SALF) drops the same users in all rounds, and "
    "keeps momentum at the users.",
    "heterofl": "HeteroFL is not in the authors' script, and the paper says only that stragglers "
    "shrink their models by one half, not how the narrow models are combined or scaled. Here "
    "every user's part is averaged in, and the half of the network that everybody holds gets the "
    "average of all users in every round, however many straggle.",
    "asyncfl": "AsyncFL is not in the authors' script, and the paper leaves open what “participate "
    "every 2l global iterations” means and what a late user sends. Here a straggler of depth d "
    "delivers, 2d rounds later, the difference it computed on the model it was given; divided by "
    "all users, the rounds in between have small steps.",
}


class Table1(Item):
    """Table I of the paper [tbl:summerizing_architectures]."""

    name: ClassVar[str] = "table1"
    title: ClassVar[str] = "Table I: test accuracy on MNIST"

    def tasks(self, preset: Preset, remember: Remember) -> Sequence[Config]:
        """Every cell with every seed."""
        return [config for configs in _configs(preset).values() for config in configs]

    def outcome(self, preset: Preset, found: Found, remember: Remember) -> Outcome:
        """The table beside the paper's, and what the paper says about it."""
        measured = {key: found.accuracies(configs) for key, configs in _configs(preset).items()}
        cells = Cells({key: values for key, values in measured.items() if values is not None})
        return Outcome(
            rows=_rows(cells),
            figure=_figure(cells, preset),
            description="Test accuracy of each method over the ratio of stragglers, by model and "
            "way of averaging, with the paper's numbers.",
            caption=f"Test accuracy at the end. Lines: ours, {over_seeds(preset.seeds)}; open "
            "diamonds: the paper's table. FedAvg has no deadline.",
            findings=findings(cells),
            intro=f"Test accuracy after {preset.configs['mlp'].rounds} rounds (MLP) and "
            f"{preset.configs['cnn'].rounds} (CNN), batches of "
            f"{preset.configs['mlp'].batch_size}, momentum {preset.configs['mlp'].momentum} at the "
            f"server, data spread evenly, {over_seeds(preset.seeds)}, beside "
            "the paper's. “As the equations say” averages a layer over the users that "
            "reached it; “as published” averages over all users, as the authors' script does.",
            blocks=[*_tables(cells), *_far_apart(cells), *_far_off(cells)],
        )


def _configs(preset: Preset) -> dict[tuple[str, str, str, float], list[Config]]:
    return {
        (model, method, average, ratio): [
            preset.config(model, method, average, ratio, seed) for seed in range(preset.seeds)
        ]
        for model in MODELS
        for ratio in RATIOS
        for average in AVERAGES
        for method in METHODS
    }


def _rows(cells: Cells) -> list[dict[str, Any]]:
    return [
        {
            "model": model,
            "method": method,
            "average": "" if names.waits(method) else average,
            "stragglers": 0.0 if names.waits(method) else ratio,
            "seed": seed,
            "test_accuracy": value,
            "paper": published(model, method, ratio),
        }
        for (model, method, average, ratio), values in cells.values.items()
        # FedAvg has one run whatever the others are up against.
        if not names.waits(method) or (average, ratio) == (AVERAGES[0], RATIOS[0])
        for seed, value in enumerate(values)
    ]


def _tables(cells: Cells) -> list[Block]:
    """One per model: for every method and ratio the paper's number and ours, both ways."""
    tables: list[Block] = []
    for model in MODELS:
        rows = []
        for method in METHODS:
            for ratio in RATIOS[:1] if method == "fedavg" else RATIOS:
                theirs = published(model, method, ratio)
                ours = [cells.get(model, method, average, ratio) for average in AVERAGES]
                texts = ["–" if values is None else str(interval(values)) for values in ours]
                far = _is_far(cells, model, method, ratio)
                share = "none" if method == "fedavg" else names.percent(ratio)
                rows.append(
                    [
                        Cell(names.method(method)),
                        Cell(share),
                        Cell("–" if theirs is None else f"{theirs:.2f}"),
                        Cell(texts[1], bold=far),
                        Cell(texts[0]),
                    ]
                )
        columns = ["Method", "Stragglers", "Paper", "As published", "As the equations say"]
        tables.append(Table(columns, rows, f"{model.upper()}"))
    return tables


def _far_apart(cells: Cells) -> list[Block]:
    """One sentence for each cell whose mean says little."""
    told = []
    for (model, method, average, ratio), seeds in cells.values.items():
        if names.waits(method) and (average, ratio) != (AVERAGES[0], RATIOS[0]):
            continue  # the same run again
        convention = "" if names.waits(method) else f", {CONVENTIONS[average].lower()}"
        told.append(far_apart(f"{place(model, ratio, method)}{convention}", seeds))
    return [sentence for sentence in told if sentence]


def _is_far(cells: Cells, model: str, method: str, ratio: float) -> bool:
    values, theirs = cells.get(model, method, "all", ratio), published(model, method, ratio)
    return values is not None and theirs is not None and abs(interval(values).mean - theirs) > CLOSE


def _far_off(cells: Cells) -> list[Block]:
    """Say which numbers are far from the paper's, and why."""
    far = [
        (method, f"{place(model, ratio)} {ours:.3f} ({theirs:.2f})")
        for model in MODELS
        for method, ratio, ours, theirs in beside(cells, model)
        if ours is not None and abs(ours - theirs) > CLOSE
    ]
    if not far:
        return [f"No number averaged as published is further than {CLOSE} from the paper's."]
    blocks: list[Block] = [
        f"Bold are the numbers that, averaged as published, are further than {CLOSE} from the "
        "paper's. Why, as far as it can be known:"
    ]
    for method in dict.fromkeys(method for method, _ in far):
        listed = "; ".join(told for name, told in far if name == method)
        why = REASONS.get(method, "Nothing is known about why.")
        blocks.append(f"{names.method(method)}, ours and in brackets the paper's: {listed}. {why}")
    return blocks


def _figure(cells: Cells, preset: Preset) -> Spec:
    alt = optional("altair")
    shown = [names.method(method) for method in METHODS]
    records, paper = [], []
    for (model, method, average, ratio), values in cells.values.items():
        place = {
            "model": model.upper(),
            "average": HEADINGS[average],
            "method": names.method(method),
            "ratio": ratio,
        }
        records.append(place | interval(values).drawn())
        if (theirs := published(model, method, ratio)) is not None:
            paper.append(place | {"paper": theirs})
    colour = alt.Color(
        "method:N",
        scale=alt.Scale(domain=shown, range=names.colours(METHODS)),
        legend=legend(),
    )
    x = alt.X(
        "ratio:Q",
        title="Stragglers",
        scale=alt.Scale(domain=[RATIOS[0], RATIOS[-1]], nice=False, padding=12),
        axis=alt.Axis(values=list(RATIOS), labelExpr="format(100 * datum.value, '.3~g') + ' %'"),
    )
    y = {"title": "Test accuracy", "scale": alt.Scale(zero=False)}
    base = alt.Chart().encode(x=x, color=colour)
    ours = base.transform_filter("isValid(datum.mean)")
    line = ours.mark_line().encode(
        y=alt.Y("mean:Q", **y),
        strokeDash=alt.StrokeDash(
            "method:N",
            scale=alt.Scale(
                domain=shown, range=[[5, 3] if names.waits(m) else [1, 0] for m in METHODS]
            ),
            legend=legend(),
        ),
        strokeWidth=alt.when(alt.datum.method == "SALF")
        .then(alt.value(2.8))
        .otherwise(alt.value(1.6)),
    )
    bars = ours.mark_rule(strokeWidth=1.5, opacity=0.6).encode(y=alt.Y("low:Q", **y), y2="high:Q")
    dots = base.transform_filter("isValid(datum.paper)").mark_point(
        shape="diamond", size=70, strokeWidth=1.6, filled=False
    )
    diamonds = dots.encode(
        y=alt.Y("paper:Q", **y),
        tooltip=["method:N", alt.Tooltip("ratio:Q", format=".0%"), "paper:Q"],
    )
    seen = ours.mark_point(filled=True, size=45).encode(
        y=alt.Y("mean:Q", **y),
        tooltip=[
            "method:N",
            alt.Tooltip("ratio:Q", format=".0%"),
            *(alt.Tooltip(f"{name}:Q", format=".3f") for name in ("mean", "low", "high")),
        ],
    )
    header = alt.Header(labelExpr=r"split(datum.value, '\n')", title=None)
    chart = (
        alt.layer(bars, line, seen, diamonds, data=alt.InlineData([*records, *paper]))
        .properties(width=395, height=230)
        .facet(
            column=alt.Column(
                "average:N",
                sort=[HEADINGS[average] for average in AVERAGES],
                header=header,
            ),
            row=alt.Row("model:N", sort=[model.upper() for model in MODELS], header=header),
        )
        .properties(
            title=alt.Title(
                "Test accuracy on MNIST over the ratio of stragglers",
                subtitle=f"preset {preset.name}: lines are ours, {over_seeds(preset.seeds)}; open "
                "diamonds are the paper's table",
                anchor="start",
                offset=12,
            )
        )
    )
    return spec(chart)
