"""The reproduction as one page: every claim with its verdict, and what it rests on."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from shlex import join

from reproduction.brief import topics
from reproduction.item import Outcome
from reproduction.markdown import Mood, Statement
from reproduction.sizes import ItemSettings
from reproduction.texts import TEXTS, text
from reproduction.verdicts import LEVEL, Finding, Verdict
from salf.report import names
from salf.report.page import Chart, Code, Page, PageBlock, Section
from salf.report.tables import Table
from salf.runs.folder import versions

FIGURES = "figures"

# Of each verdict: the colour of a claim, and what is said of any number of claims.
_VERDICTS: Mapping[Verdict, tuple[Mood, str]] = {
    Verdict.HOLDS: ("good", "hold"),
    Verdict.IN_PART: ("mixed", "hold in part"),
    Verdict.FAILS: ("bad", "do not hold"),
    Verdict.UNDECIDED: ("none", "are inconclusive"),
    Verdict.NOT_TESTED: ("none", "were not tested at this size"),
}


@dataclass(frozen=True)
class Made:
    """An item that was made, and what it was made with."""

    title: str
    outcome: Outcome
    settings: ItemSettings
    diverged: Mapping[str, str] = field(default_factory=dict)  # why, by run
    # What each of its runs and measurements was made with, as far as it was noted.
    versions: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def counts(self) -> Counter[Verdict]:
        """How many of the paper's claims came to which verdict."""
        return Counter(finding.verdict for finding in self.outcome.findings if not finding.ours)


def page(made: Mapping[str, Made], skipped: Collection[str]) -> Page:
    """All items, in the order given."""
    named = [*dict.fromkeys(f"“{item.settings.size}”" for item in made.values())]
    sizes = f"size{'s' * (len(named) > 1)} {names.listed(named)}"
    all_counts = sum((item.counts() for item in made.values()), Counter[Verdict]())
    counted = names.listed(
        [f"{all_counts[each]} {_VERDICTS[each][1]}" for each in Verdict if all_counts[each]]
    )
    told = {"total": all_counts.total(), "counted": counted, "sizes": sizes}
    level = names.percent(LEVEL)
    return Page(
        title=text("page", "title"),
        intro=[part.format(**told) for part in TEXTS["page"]["intro"]],
        sections=[
            Section(text("page", "in_brief"), [*summary(made)]),
            Section(
                text("page", "how_to_read"),
                [part.format(level=level) for part in TEXTS["page"]["reading"]],
            ),
            _overview(made),
            *(_section(name, item) for name, item in made.items()),
            *(
                Section(name, [Statement("not run", "none", "Its data were not available.")])
                for name in skipped
                if name not in made
            ),
            *_divergences(made),
            _again(made),
        ],
    )


def summary(made: Mapping[str, Made]) -> list[Statement]:
    """The opening of the page: what of the paper holds, what does not, and why."""
    findings = [finding for item in made.values() for finding in item.outcome.findings]
    return [
        Statement(topic.verdict.value, _VERDICTS[topic.verdict][0], topic.says, topic.reason)
        for topic in topics(findings)
    ]


def statement(finding: Finding) -> Statement:
    """A finding as people read it."""
    claim = f"{finding.claim} (Not a claim of the paper.)" if finding.ours else finding.claim
    return Statement(finding.verdict.value, _VERDICTS[finding.verdict][0], claim, finding.reason)


def _overview(made: Mapping[str, Made]) -> Section:
    columns = ["Item", "Size", *(verdict.value.capitalize() for verdict in Verdict)]
    rows = []
    for name, item in made.items():
        counts = [str(item.counts()[verdict] or "–") for verdict in Verdict]
        rows.append([f"{item.title} ({name})", item.settings.size, *counts])
    return Section("All claims, counted", [Table(columns, rows)])


def _section(name: str, item: Made) -> Section:
    outcome = item.outcome
    chart = Chart(
        outcome.figure,
        f"{outcome.caption} The command leaves the numbers in {name}.csv.",
        outcome.description,
        picture=f"{FIGURES}/{name}.svg",
    )
    blocks: list[PageBlock] = [f"Size {item.settings.size}. {outcome.intro}".rstrip()]
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
    ways = dict.fromkeys(item.settings for item in made.values())
    commands = [
        _command([name for name, item in made.items() if item.settings == way], way) for way in ways
    ]
    return Section("Reproduce this page", [Code("\n".join(commands)), _made_with(made)])


def _made_with(made: Mapping[str, Made]) -> str:
    """Versions of every run, not of whoever puts the page together from them."""
    by_run = {run: noted for item in made.values() for run, noted in item.versions.items()}
    counts = Counter(_listed(noted) for noted in by_run.values())
    here = _listed({**versions(), "scipy": version("scipy")})
    if counts.keys() <= {_listed(versions())}:
        return f"Made with {here}."
    runs = names.listed([f"{count} with {noted}" for noted, count in counts.most_common()])
    return f"Runs and measurements: {runs}. The page was made with {here}."


def _listed(noted: Mapping[str, str]) -> str:
    return names.listed([f"{package} {number}" for package, number in noted.items()])


def _command(items: Sequence[str], settings: ItemSettings) -> str:
    # The folder is the reader's own.
    place = ["--data-dir", "FOLDER-WITH-CIFAR-10"] if settings.data_dir else []
    chosen = [] if settings.seeds is None else ["--seeds", str(settings.seeds)]
    return join(["python", "-m", "reproduction", *items, "--size", settings.size, *chosen, *place])
