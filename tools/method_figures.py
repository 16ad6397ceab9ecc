"""The figures of the methods' pages: accuracy over simulated seconds beside FedAvg, Drop and SALF.

    python tools/method_figures.py [METHOD ...] [--out docs/figures/methods]

All methods train the digits' MLP on the same 20 phones with skewed labels, for the same simulated
seconds, with five seeds; rounds that have a deadline end when half of the phones are done. Each
method has the learning rate that is best on held-out data with two other seeds. Writes METHOD.svg
and results.json; the site's pages read both. About 15 minutes on two idle cores.
"""

import argparse
import json
import tomllib
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import salf
from salf.common.figures import Axis, Figure, Line, Lines, Point
from salf.common.intervals import interval
from salf.common.pictures import svg

ROOT = Path(__file__).parent.parent
BESIDE = {"fedavg": "#8a939c", "drop": "#E69F00", "salf": "#0072B2"}
OURS = "#D55E00"
RATES = [0.03, 0.1, 0.3, 1.0]
TUNED, SEEDS = [100, 101], [0, 1, 2, 3, 4]
SECONDS, TIMES = 3.0, 60  # simulated seconds, and the points of a curve
COMMON = {"fleet": "phones", "split": "dirichlet:0.1", "users": 20, "seconds": SECONDS}
ONE = COMMON | {"deadline": 0.012}
FOUR = COMMON | {"deadline": 0.0234, "local_steps": 4}


@dataclass(frozen=True)
class Measured:
    """A method in a figure: its rate, its accuracy at the end, and its curve."""

    lr: float
    accuracy: float
    interval: float
    curve: list[tuple[float, float, float]]  # seconds, mean, half of the 95 % interval


def compared(method: str, settings: dict[str, Any], **more: Any) -> salf.Compared:
    """Runs of one method."""
    return salf.compare(config="digits-mlp", methods=[method], **{**settings, **more})


def measure(method: str, settings: dict[str, Any]) -> Measured:
    """Choose the rate with two seeds, and train with five others."""
    found = compared(method, settings, lr=RATES, seeds=TUNED).results
    tuned = {
        dict(case.more)["lr"]: fmean(
            fmean(accuracy for _, accuracy in run.history.curve[-5:]) for run in runs
        )
        for case, runs in found.items()
        if len(runs) == len(TUNED)  # none diverged
    }
    lr = max(tuned, key=tuned.__getitem__)
    (runs,) = compared(method, settings, lr=lr, seeds=SEEDS, eval_every=2).results.values()
    curves = [dict(run.history.timed_curve) for run in runs]
    points = []
    for k in range(1, TIMES + 1):
        seconds = SECONDS * k / TIMES
        now = [[a for s, a in curve.items() if s <= seconds][-1:] for curve in curves]
        if all(now):
            each = interval([a for (a,) in now])
            points.append((round(seconds, 3), round(each.mean, 4), round(each.half or 0, 4)))
    end = interval([run.summary["test_accuracy"] for run in runs])
    return Measured(lr, round(end.mean, 4), round(end.half or 0, 4), points)


def drawn(method: str, found: dict[str, dict[str, Any]], four: bool) -> str:
    """The picture of a method beside the others."""
    lines, points = [], []
    for name in (*(name for name in BESIDE if name != method), method):
        label = name if name != "fedavg" else "fedavg (waits)"
        lines.append(Line(label, OURS if name == method else BESIDE[name], bold=name == method))
        for seconds, mean, half in found[f"{name}, 4 steps" if four else name]["curve"]:
            points.append(Point(label, seconds, mean, max(0.0, mean - half), min(1.0, mean + half)))
    x, y = Axis("simulated seconds"), Axis("accuracy on held-out data", domain=(0, 1))
    return str(svg(Figure([Lines(points, lines, x, y, height=240)])))


def main() -> None:
    """Measure what is asked for, or all, and draw."""
    table = tomllib.loads((ROOT / "docs/methods.toml").read_text("utf-8"))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("methods", nargs="*")
    parser.add_argument("--out", type=Path, default=ROOT / "docs/figures/methods")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    kept = args.out / "results.json"
    found = json.loads(kept.read_text("utf-8")) if kept.exists() else {}
    for name in args.methods or table:
        four = table[name].get("steps", False)
        for each in dict.fromkeys((*BESIDE, name)):
            key = f"{each}, 4 steps" if four else each
            if key not in found or each in args.methods:
                settings = (FOUR if four else ONE) | table[each].get("settings", {})
                found[key] = asdict(measure(each, settings))
                print(key, found[key]["lr"], found[key]["accuracy"], flush=True)
                kept.write_text(json.dumps(found, separators=(",", ":")) + "\n", "utf-8")
        (args.out / f"{name}.svg").write_text(drawn(name, found, four), "utf-8")


if __name__ == "__main__":
    main()
