"""The reproduction as one page: every claim with its verdict, and what it rests on."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from shlex import join
from typing import Literal

import numpy as np
import torch

from salf.report import names
from salf.report.page import Block, Chart, Code, Page, Section, Statement
from salf.report.tables import Cell, Table
from salf.reproduction.item import Outcome
from salf.reproduction.verdicts import LEVEL, Finding, Verdict

FIGURES = "figures"

_MOODS: Mapping[Verdict, Literal["good", "mixed", "bad", "none"]] = {
    Verdict.HOLDS: "good",
    Verdict.IN_PART: "mixed",
    Verdict.FAILS: "bad",
    Verdict.UNDECIDED: "none",
    Verdict.NOT_TESTED: "none",
}


@dataclass(frozen=True)
class Made:
    """An item that was made, and what it was made with."""

    title: str
    outcome: Outcome
    preset: str
    seeds: int | None = None
    data_dir: str = ""
    diverged: Mapping[str, str] = field(default_factory=dict)  # why, by run
    # What each of its runs and measurements was made with, as far as it was noted.
    versions: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def counts(self) -> Counter[Verdict]:
        """How many of the paper's claims came to which verdict."""
        return Counter(finding.verdict for finding in self.outcome.findings if not finding.ours)


def page(made: Mapping[str, Made], skipped: Collection[str]) -> Page:
    """All items, in the order given."""
    named = [*dict.fromkeys(f"“{item.preset}”" for item in made.values())]
    presets = f"preset{'s' * (len(named) > 1)} {names.listed(named)}"
    all_counts = sum((item.counts() for item in made.values()), Counter[Verdict]())
    counted = names.listed([f"{all_counts[verdict]} {_said(verdict)}" for verdict in Verdict])
    intro = [
        "What the paper “Stragglers-Aware Low-Latency Synchronous Federated Learning via "
        "Layer-Wise Model Updates” (SALF) says, beside what its system gives when it is built "
        "anew from the equations, each claim with a plain verdict and the reason.",
        f"Of {all_counts.total()} claims of the paper, one that is judged for both ways of "
        f"averaging counted twice, {counted}. Made by the commands at the end, with the "
        f"{presets}; each section says which.",
        "Two ways of averaging are kept apart throughout. “As the equations say” divides a "
        "layer's sum by the number of users that reached the layer; “as published” divides by "
        "the number of all users, as the authors' script does, which is what makes Drop collapse "
        "in the paper's table.",
        "“As published” names that averaging only. What else the authors' script "
        "(github.com/langnatalie/SALF, as of commit 1a27cf0) does otherwise than the paper's text "
        "is not done here: its stragglers are the same users in all rounds; it counts weights and "
        "biases as layers of their own, and a straggler always reaches one; momentum is each "
        "user's own; and it tests the model of the best validation accuracy.",
        "± is half a 95 % interval of the mean (Student's t over the seeds) unless it is said "
        "otherwise. Methods are compared seed by seed: they see the same data, batches and "
        "depths, but for AsyncFL, whose users may still be busy. Two numbers are followed by "
        "their difference in brackets, with its interval.",
        "A comparison passes if the whole interval agrees with it. A claim holds only if all its "
        "checks pass, so that many checks make it no easier to hold. A comparison fails if the "
        f"data speak against it in a one-sided t-test at {names.percent(LEVEL)}, divided by the "
        "number of the claim's comparisons, because one of many fails by chance. What neither "
        "passes nor fails cannot be told, and one seed never tells. Checks of bare means or of "
        "each run for itself say that they are. A claim holds in part if some checks pass, and "
        "does not hold if some fail and none passes.",
    ]
    return Page(
        title="The SALF paper, reproduced",
        intro=intro,
        sections=[
            _overview(made),
            *(_section(name, item) for name, item in made.items()),
            *(
                Section(name, [Statement("not run", "none", "The data for it were not there.")])
                for name in skipped
                if name not in made
            ),
            *_divergences(made),
            _again(made),
        ],
    )


def statement(finding: Finding) -> Statement:
    """A finding as people read it."""
    claim = f"{finding.claim} (Not a claim of the paper.)" if finding.ours else finding.claim
    return Statement(finding.verdict.value, _MOODS[finding.verdict], claim, finding.reason)


def _said(verdict: Verdict) -> str:
    """For any number of claims."""
    return {
        Verdict.HOLDS: "hold",
        Verdict.IN_PART: "hold in part",
        Verdict.FAILS: "do not hold",
        Verdict.UNDECIDED: "could not be told",
        Verdict.NOT_TESTED: "were not tested at this size",
    }[verdict]


def _overview(made: Mapping[str, Made]) -> Section:
    columns = ["Item", "Preset", *(_heading(verdict) for verdict in Verdict)]
    rows = []
    for name, item in made.items():
        counts = item.counts()
        rows.append(
            [
                Cell(f"{item.title} ({name})"),
                Cell(item.preset),
                *(Cell(str(counts[verdict] or "–")) for verdict in Verdict),
            ]
        )
    return Section("All claims, counted", [Table(columns, rows)])


def _heading(verdict: Verdict) -> str:
    return verdict.value[:1].upper() + verdict.value[1:]


def _section(name: str, item: Made) -> Section:
    outcome = item.outcome
    chart = Chart(
        outcome.figure,
        outcome.description,
        f"{outcome.caption} The command leaves the numbers in {name}.csv.",
        picture=f"{FIGURES}/{name}.svg",
    )
    blocks: list[Block] = [f"Preset {item.preset}. {outcome.intro}".rstrip()]
    blocks += [statement(finding) for finding in outcome.findings]
    return Section(f"{item.title} ({name})", [*blocks, chart, *outcome.blocks])


def _divergences(made: Mapping[str, Made]) -> list[Section]:
    """Runs without a result; what rests on them says so itself."""
    # Items share runs.
    diverged = {run: why for item in made.values() for run, why in item.diverged.items()}
    told = [f"{run}: {why}" for run, why in diverged.items()]
    return [Section("Runs that diverged", told)] if told else []


def _again(made: Mapping[str, Made]) -> Section:
    """One command per way the items were made."""
    ways = dict.fromkeys((item.preset, item.seeds, item.data_dir) for item in made.values())
    commands = [
        _command([n for n, i in made.items() if (i.preset, i.seeds, i.data_dir) == way], *way)
        for way in ways
    ]
    return Section("Make it again", [Code("\n".join(commands)), _made_with(made)])


def versions() -> dict[str, str]:
    """Of the packages on which numbers depend, as a run's summary has them."""
    return {"salf": version("salf"), "torch": torch.__version__, "numpy": np.__version__}


def _made_with(made: Mapping[str, Made]) -> str:
    """Of every run, not of whoever puts the page together from them."""
    by_run = {run: noted for item in made.values() for run, noted in item.versions.items()}
    counts = Counter(_listed(noted) for noted in by_run.values())
    here = _listed({**versions(), "scipy": version("scipy")})
    if counts.keys() <= {_listed(versions())}:
        return f"Made with {here}."
    runs = names.listed([f"{count} with {noted}" for noted, count in counts.most_common()])
    return f"Runs and measurements were made so: {runs}. The page was made with {here}."


def _listed(noted: Mapping[str, str]) -> str:
    return names.listed([f"{package} {number}" for package, number in noted.items()])


def _command(items: Sequence[str], preset: str, seeds: int | None, data_dir: str) -> str:
    # The folder is the reader's own, and nobody else's business.
    place = ["--data-dir", "FOLDER-WITH-CIFAR-10"] if data_dir else []
    chosen = [] if seeds is None else ["--seeds", str(seeds)]
    return join(["salf", "reproduce", *items, "--preset", preset, *chosen, *place])
