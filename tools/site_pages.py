"""What MkDocs adds to the pages in docs/: the README and other texts of the repository, a page for
each method, and tables of settings and commands.

The pages of methods are made of their docstrings, fields and files, of docs/methods.toml, and of
the figures that tools/method_figures.py computes.
"""

import inspect
import json
import re
import tomllib
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

ROOT = Path(__file__).parent.parent
BENEATH = {"README.md": "index.md"} | {
    f"{name}.md": f"{name.lower()}.md" for name in ("CHANGELOG", "CONTRIBUTING", "SECURITY")
}  # texts of the repository, and their pages
FIGURES = "figures/methods"


def pages() -> dict[str, str]:
    """Every page that is made, by its path in docs/."""
    texts = {page: of_repository(ROOT / name) for name, page in BENEATH.items()}
    methods = {f"methods/{name}.md": of_method(name) for name in _table()}
    return texts | methods | {"api/settings.md": settings(), "api/commands.md": commands()}


def on_config(config: Any) -> Any:
    """Pages without a place in the navigation are its last section. MkDocs calls this."""
    docs = Path(config["docs_dir"])
    pages = {page.relative_to(docs).as_posix() for page in docs.rglob("*.md")}
    if rest := sorted(pages - set(in_navigation(config["nav"]))):
        config["nav"].append({"More": rest})
    return config


def in_navigation(entry: Any) -> list[str]:
    """The pages of a part of the navigation."""
    if isinstance(entry, str):
        return [entry]
    parts = entry.values() if isinstance(entry, dict) else entry
    return [page for part in parts for page in in_navigation(part)]


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are made. MkDocs calls this."""
    from mkdocs.structure.files import File

    for path, text in pages().items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(text: str, page: Any, config: Any, files: Any) -> str:
    """Link what is another page of the site, and nothing that is not. MkDocs calls this."""
    if page.file.src_uri == "methods.md":
        text = text.replace("<!-- methods -->", all_methods())
    return _outside(text)


def of_repository(path: Path) -> str:
    """A text beside docs/, with its links as seen from docs/."""
    text = path.read_text("utf-8")
    text = re.sub(r"\]\(docs/", "](", text)
    return re.sub(r"\]\((?!https?:|#)([^)]+)\)", lambda m: f"]({_beneath(m[1])})", text)


def of_method(name: str) -> str:
    """A method's page: its rule, when to use it, its options, its figure and its source."""
    from salf.methods import METHODS

    cls, about = METHODS[name], _table()[name]
    file = Path(inspect.getfile(cls))
    label = cls.__name__ if name != "inverse" else "Inverse probability"
    label = {"SALFRecall": "SALF-Recall"}.get(label, label)
    parts = [f"# {label}", _sentence(cls), "## Rule"]
    parts += [f"    {about['rule']}", inspect.cleandoc(cls.__doc__ or "")]
    parts += ["The symbols are those of [concepts](../concepts.md).", "## When", about["when"]]
    parts += ["## Use it", f"    salf run digits-mlp --method {name} {_needed(name)}".rstrip()]
    if options := fields(cls):
        rows = [f"| `{o.name}` | `{_default(o)}` | `{_type(o.type)}` |" for o in options]
        parts += ["\n".join(["| option | default | type |", "|---|---|---|", *rows])]
        parts += [
            "On the command line `--option NAME=VALUE`; in Python "
            f"`salf.method({name!r}, {options[-1].name}={_default(options[-1])!r})`. "
            "[Where the defaults come from](../methods.md#where-the-defaults-come-from)."
        ]
    code = "\n".join(f"    {line}".rstrip() for line in file.read_text("utf-8").splitlines())
    parts += ["## Figure", *_figure(name, about), "## Source", about["source"]]
    parts += [f'??? example "The method: {file.name}"\n\n    ```python\n{code}\n    ```']
    return "\n\n".join(parts) + "\n"


def all_methods() -> str:
    """A table of the methods, with links to their pages."""
    from salf.methods import METHODS

    rows = [f"| [`{name}`](methods/{name}.md) | {_sentence(METHODS[name])} |" for name in _table()]
    return "\n".join(["| method | |", "|---|---|", *rows])


def settings() -> str:
    """The settings of runs, from their fields."""
    from salf.runs.config import Config
    from salf.runs.live_config import LiveConfig
    from salf.runs.settings import Settings, helps

    said = helps()
    common = {field.name for field in fields(Settings)}
    parts = [
        "# Settings",
        "Each setting has one name: `salf.train(local_steps=4)`, `--local-steps 4`, and "
        "`local_steps = 4` in a TOML file.",
    ]
    for title, cls, chosen in (
        ("Of every run", Config, lambda name: name in common),
        ("Of simulated runs", Config, lambda name: name not in common),
        ("Of live runs", LiveConfig, lambda name: name not in common),
    ):
        rows = [
            f"| `{f.name}` | `{_default(f)}` | {_cell(said[f.name])} |"
            for f in fields(cls)
            if chosen(f.name) and f.name in said
        ]
        parts += [f"## {title}", "\n".join(["| setting | default | |", "|---|---|---|", *rows])]
    return "\n\n".join(parts) + "\n"


def commands() -> str:
    """The commands, from their help."""
    from typer.main import get_command

    from salf.cli import app

    parts = ["# Command line", "`salf COMMAND --help` explains every option."]
    parts += _commands(get_command(app), ["salf"])
    return "\n\n".join(parts) + "\n"


def _commands(command: Any, names: list[str]) -> list[str]:
    parts = []
    for name, each in sorted(command.commands.items()):
        if each.hidden:
            continue
        if hasattr(each, "commands"):
            parts += _commands(each, [*names, name])
            continue
        parts += [f"## {' '.join([*names, name])}", inspect.cleandoc(each.help or "")]
    return parts


def _figure(name: str, about: dict[str, Any]) -> list[str]:
    """The picture, its command, and its figures."""
    found = json.loads((ROOT / "docs" / FIGURES / "results.json").read_text("utf-8"))
    four = ", 4 steps" if about.get("steps") else ""
    names = dict.fromkeys(("fedavg", "drop", "salf", name))
    rows = [
        f"| {each}{four} | {end['lr']:g} | {end['accuracy']:.3f} ± {end['interval']:.3f} |"
        for each in names
        for end in [found[each + four]]
    ]
    return [
        f"![Accuracy over simulated seconds of {name}, FedAvg, Drop and SALF]"
        f"(../{FIGURES}/{name}.svg)",
        "Digits, 20 phones with skewed labels (Dirichlet(0.1)), each method with its best learning "
        f"rate{', four local steps' if four else ''}; mean and 95 % interval of five seeds "
        f"(`python tools/method_figures.py {name}`). One small job: [the map](../plan.md#the-map) "
        "and [the benchmark](../bench.md) compare methods.",
        "\n".join(
            ["| method | learning rate | test accuracy at the end |", "|---|---:|---:|", *rows]
        ),
    ]


def _sentence(cls: type) -> str:
    """What the file of a method says first of it."""
    text = (inspect.getmodule(cls).__doc__ or "").split("\n\n")[0].split(": ", 1)[1]
    text = " ".join(text.split())
    return text[0].upper() + text[1:]


def _table() -> dict[str, dict[str, Any]]:
    return tomllib.loads((ROOT / "docs/methods.toml").read_text("utf-8"))


def _needed(name: str) -> str:
    """The options without which a run with this method fails or shows nothing."""
    from salf.methods import asks

    about = _table()[name]
    more = ["--local-steps 4"] if about.get("steps") else []
    more += [f"--{key} {value:g}" for key, value in about.get("settings", {}).items()]
    more += ["--fleet phones --seconds 3"] if asks(name).clock else ["--stragglers 0.5"]
    return " ".join(more)


def _default(field: Any) -> Any:
    default = field.default if field.default is not MISSING else field.default_factory()
    return int(default) if type(default).__name__ == "Unset" else default


def _type(found: Any) -> str:
    if isinstance(found, str):
        return found.replace("|", "or")
    choices = " or ".join(map(repr, get_args(found))) if get_origin(found) is Literal else ""
    return choices or getattr(found, "__name__", str(found).replace(" | ", " or "))


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def _beneath(link: str) -> str:
    """A link of a text beside docs/, as seen from docs/."""
    path, mark, anchor = link.partition("#")
    if path in BENEATH:
        return BENEATH[path] + mark + anchor
    return link if (ROOT / "docs" / path).exists() else f"../{link}"


def _outside(text: str) -> str:
    """Text without links to files that are not on the site; they keep their names."""
    for name, page in BENEATH.items():
        link = re.compile(rf"\]\(\.\./((?:\.\./)*){re.escape(name)}")
        text = link.sub(lambda up, page=page: f"]({up[1]}{page}", text)
    return re.sub(
        r"\[([^\]]+)\]\((?:\.\./)+(?:src|examples|benchmarks|LICENSE)[^)]*\)", r"\1", text
    )
