"""Every code block of the README and the docs runs as printed, or says in a marker why not.

Blocks of Python run alone, with what they import; those of a page with the marker `one program` in
its order. Commands run in their page's order with few rounds and small data. Every command, also of
blocks that are not run, is parsed by the program it is for.
"""

import re
import shlex
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from salf.cli import app

ROOT = Path(__file__).parent.parent
PAGES = [
    *("README.md", "CONTRIBUTING.md", "SECURITY.md", "examples/flower-mnist/README.md"),
    *sorted(page.relative_to(ROOT).as_posix() for page in (ROOT / "docs").rglob("*.md")),
]
# What is in blocks of these languages is no code of ours to run.
OTHERS = {"text", "toml", "bibtex", "diff", "console"}
BLOCK = re.compile(
    r"(?:^<!-- (?P<mark>[^>]+) -->\n+)?"
    r"(?:^```(?P<language>\w*)\n(?P<fenced>.*?)^```$"
    r"|(?<=\n\n)(?P<indented>(?:^    [^\n]*\n(?:^\n(?=    ))*)+))",
    re.DOTALL | re.MULTILINE,
)
QUICK = {"run", "compare", "layers", "methods", "preview", "list", "data", "bound"}
# The others start processes, need a cluster or take minutes: there they are run.
ELSEWHERE = {
    "live": "live/test_live_runs.py",
    "join": "live/test_joining.py",
    "replay": "live/test_ray.py",
    "page": "report/test_live_page.py",
    "calibrate": "live/test_calibrate.py",
    "bench": "cli/test_bench_command.py",
    "plan": "cli/test_plan_command.py",
    "doctor": "cli/test_answers.py",
    "demo": "cli/test_demo.py",
    "watch": "report/test_browser.py",
}
NET = """
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.body = nn.Linear(784, 16), nn.Linear(16, 16)
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 10)

    def forward(self, x):
        h = self.stem(x.flatten(1)).relu()
        return self.head(h + self.norm(self.body(h)).relu())
"""


@dataclass(frozen=True)
class Block:
    """A block of code, where it is, and its marker."""

    page: str
    line: int
    language: str  # "" for an indented block
    code: str
    mark: str

    @property
    def skipped(self):
        return self.mark.startswith("not run: ")

    @property
    def commands(self):
        """Its commands, without comments and prompts."""
        if self.language not in ("", "sh", "console"):
            return []
        lines = self.code.replace("\\\n", " ").splitlines()
        lines = [line.strip().removeprefix("$ ") for line in lines]
        lines = [re.split(r" > | \| ", line)[0] for line in lines if re.match(STARTS, line)]
        return [shlex.split(line, comments=True) for line in lines]


STARTS = r"(salf|make|python|\.venv/bin/\S+) [\w./-]+"


def blocks(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    return [
        Block(
            page,
            text[: found.start()].count("\n") + 1,
            found["language"] or "",
            found["fenced"] or re.sub("^    ", "", found["indented"] or "", flags=re.MULTILINE),
            found["mark"] or "",
        )
        for found in BLOCK.finditer(text)
    ]


ALL = {page: blocks(page) for page in PAGES}
PROGRAMS = {
    page for page in PAGES if "<!-- one program -->" in (ROOT / page).read_text(encoding="utf-8")
}
PYTHON = [
    pytest.param(block, id=f"{block.page}:{block.line}")
    for page, found in ALL.items()
    for block in found
    if block.language == "python" and not block.skipped and page not in PROGRAMS
]
LIVE = [param for param in PYTHON if param.values[0].page == "docs/live.md"]
SIMULATED = [param for param in PYTHON if param not in LIVE]
COMMANDS = [
    pytest.param(command, id=f"{block.page}:{block.line}-{number}")
    for found in ALL.values()
    for block in found
    for number, command in enumerate(block.commands)
]


def run(code, where):
    exec(compile(code, where, "exec"), {"__name__": "sample"})


def test_there_is_code_on_the_pages():
    assert len(SIMULATED) >= 15
    assert len(LIVE) >= 2
    assert len(COMMANDS) >= 50
    assert "docs/tutorial.md" in PROGRAMS


def test_every_block_is_code_that_runs_or_says_what_it_is():
    unknown = [
        f"{b.page}:{b.line}: {b.language}"
        for found in ALL.values()
        for b in found
        if b.language not in {"", "python", "sh", *OTHERS}
    ]
    assert not unknown
    empty = [b for found in ALL.values() for b in found if b.skipped and len(b.mark) < 20]
    assert not empty, "a marker says why a block is not run"


def test_every_command_is_run_here_or_elsewhere():
    for block in (b for found in ALL.values() for b in found if not b.skipped):
        for program, *arguments in block.commands:
            named = [each for each in arguments[:2] if not each.startswith("-")]
            if program == "salf" and named and not QUICK & set(named):
                where = [ELSEWHERE[each] for each in named if each in ELSEWHERE]
                assert where, f"{block.page}:{block.line}: {shlex.join(arguments)}"
                assert (ROOT / "tests" / where[0]).exists()


@pytest.mark.parametrize("block", SIMULATED)
def test_a_sample_runs_as_printed(block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run(block.code, f"{block.page}:{block.line}")


@pytest.mark.parametrize("page", sorted(PROGRAMS))
def test_the_blocks_of_a_program_run_in_their_order(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run("".join(b.code for b in ALL[page] if b.language == "python" and not b.skipped), page)


@pytest.mark.slow
@pytest.mark.parametrize("block", LIVE)
def test_a_live_sample_runs_as_printed(block, tmp_path):
    (tmp_path / "sample.py").write_text(block.code)
    done = subprocess.run(
        [sys.executable, "sample.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_exists_with_its_options(command):
    program, *arguments = command
    if program == "make":
        targets = re.findall(r"^(\S+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert arguments[0] in targets
    elif program == "salf":
        _parsed(arguments)
    elif arguments[:2] == ["-m", "reproduction"]:
        from reproduction.__main__ import main

        assert main
    elif arguments[0].endswith(".py"):
        assert (ROOT / arguments[0]).exists()


@pytest.mark.parametrize("page", [p for p in PAGES if any(b.commands for b in ALL[p])])
def test_the_commands_of_a_page_run_in_their_order(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("salf.cli.runs.workers_of", lambda *_: nullcontext(0))  # in this process
    (tmp_path / "mynets.py").write_text(NET)
    (tmp_path / "pi.csv").write_text("name,speed\npi,1e9\n")  # what calibrating it would leave
    for block in ALL["docs/own-methods.md"]:
        if block.language == "python" and "class Halves" in block.code:
            (tmp_path / "mymethods.py").write_text(block.code)
    for block in ALL[page]:
        if block.language == "python" and "devices.csv" in block.code:
            run(block.code.split("fleet =")[0], page)
        for command in [] if block.skipped else block.commands:
            if command[0] == "salf" and QUICK & set(command[1:3]):
                done = CliRunner().invoke(app, smaller(command[1:]))
                assert done.exit_code == 0, f"{shlex.join(command)}\n{done.output}"


def smaller(arguments):
    """The command with one seed, few rounds and users, and data that need no download."""
    few = {"--seconds": "0.3", "--users": "6", "--data": "synthetic", "--seeds": "1"}
    few["--rounds"] = "4" if "--resume" in arguments else "2"
    found = list(arguments)
    for name, value in few.items():
        if name in found:
            found[found.index(name) + 1] = value
    if found[0] in ("run", "compare"):
        found += [] if {"--rounds", "--seconds"} & set(found) else ["--rounds", "2"]
        found += ["--data", "synthetic"] if found[1].startswith("mnist") else []
        found += ["--seeds", "1"] if found[0] == "compare" and "--seeds" not in found else []
    return found


def _parsed(arguments):
    """Refuse options and commands that do not exist; files and folders need not be there."""
    command, name = get_command(app), "salf"
    context = command.make_context(name, [], resilient_parsing=True)
    while hasattr(command, "commands"):
        if arguments[0].startswith("-"):
            command.make_parser(context).parse_args(list(arguments))
            return
        name, *arguments = arguments
        command = command.commands[name]
        context = command.make_context(name, [], resilient_parsing=True, parent=context)
    command.make_parser(context).parse_args(list(arguments))
