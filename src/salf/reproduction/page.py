"""The reproduction as one page: every claim with its verdict, and what it rests on."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from shlex import join
from typing import Literal

from salf.report import names
from salf.report.page import Block, Chart, Code, Page, Section, Statement
from salf.report.tables import Cell, Table
from salf.reproduction.item import Outcome
from salf.reproduction.verdicts import Finding, Verdict

FIGURES = "figures"

_MOODS: Mapping[Verdict, Literal["good", "mixed", "bad", "none"]] = {
    Verdict.HOLDS: "good",
    Verdict.IN_PART: "mixed",
    Verdict.FAILS: "bad",
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

    def counts(self) -> Counter[Verdict]:
        """How many of the paper's claims came to which verdict."""
        return Counter(finding.verdict for finding in self.outcome.findings if not finding.ours)


def page(made: Mapping[str, Made], skipped: Mapping[str, str], diverged: Mapping[str, str]) -> Page:
    """All items, in the order given."""
    presets = names.listed([*dict.fromkeys(f"“{item.preset}”" for item in made.values())])
    all_counts = sum((item.counts() for item in made.values()), Counter[Verdict]())
    counted = names.listed([f"{all_counts[verdict]} {_said(verdict)}" for verdict in Verdict])
    intro = [
        "What the paper “Stragglers-Aware Low-Latency Synchronous Federated Learning via "
        "Layer-Wise Model Updates” (SALF) says, beside what its system gives when it is built "
        "anew from the equations, each claim with a plain verdict and the reason.",
        f"Of {all_counts.total()} claims of the paper, one that is judged for both ways of "
        f"averaging counted twice, {counted}. Made by the commands at the end, with the "
        f"preset {presets}; each section says which.",
        "Two ways of averaging are kept apart throughout. “As the equations say” divides a "
        "layer's sum by the number of users that reached the layer; “as published” divides by "
        "the number of all users, as the authors' script does, which is what makes Drop collapse "
        "in the paper's table.",
        "± is half a 95 % interval of the mean (Student's t over the seeds). Methods are compared "
        "seed by seed: all of them see the same data, batches and depths.",
    ]
    return Page(
        title="The SALF paper, reproduced",
        intro=intro,
        sections=[
            _overview(made),
            *(_section(name, item) for name, item in made.items()),
            *(
                Section(name, [Statement("not run", "none", reason)])
                for name, reason in skipped.items()
                if name not in made
            ),
            *_divergences(diverged),
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
        Verdict.NOT_TESTED: "could not be tested at this size",
    }[verdict]


def _overview(made: Mapping[str, Made]) -> Section:
    columns = ["Item", "What", "Preset", *(_heading(verdict) for verdict in Verdict)]
    rows = []
    for name, item in made.items():
        counts = item.counts()
        rows.append(
            [
                Cell(name),
                Cell(item.title),
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


def _divergences(diverged: Mapping[str, str]) -> list[Section]:
    """Runs without a result; what rests on them says so itself."""
    told = [f"{name}: {reason}" for name, reason in diverged.items()]
    return [Section("Runs that diverged", told)] if told else []


def _again(made: Mapping[str, Made]) -> Section:
    """One command per way the items were made."""
    ways = dict.fromkeys((item.preset, item.seeds, item.data_dir) for item in made.values())
    commands = [
        _command([n for n, i in made.items() if (i.preset, i.seeds, i.data_dir) == way], *way)
        for way in ways
    ]
    packages = ("salf", "torch", "numpy", "scipy")
    made_with = names.listed([f"{package} {version(package)}" for package in packages])
    return Section("Make it again", [Code("\n".join(commands)), f"Made with {made_with}."])


def _command(items: Sequence[str], preset: str, seeds: int | None, data_dir: str) -> str:
    # The folder is the reader's own, and nobody else's business.
    place = ["--data-dir", "FOLDER-WITH-CIFAR-10"] if data_dir else []
    chosen = [] if seeds is None else ["--seeds", str(seeds)]
    return join(["salf", "reproduce", *items, "--preset", preset, *chosen, *place])
