"""Options of the command line: those that are a config's settings, made from it, and the rest."""

import inspect
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from functools import wraps
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand, TyperOption

from salf.cli.terminal import results, say
from salf.common.errors import SalfError
from salf.runs.presets import PRESETS
from salf.runs.settings import (
    Settings,
    helps,
    key,
    refuse_deadline,
)


def option(*names: str, help: str, **more: Any) -> Any:
    """An option with its help; the default shown is the preset's."""
    return typer.Option(*names, help=help, show_default=False, **more)


# Of a command with many options, --help shows these, and --help-all the others too.
MANY = 12
USUAL = {
    "backend", "batch_size", "data", "deadline", "fleet", "local_steps", "lr", "method", "methods",
    "model", "options", "out", "resume", "rounds", "scenario", "seconds", "seed", "seeds", "share",
    "slow", "split", "stragglers", "suite", "target", "users",
}  # fmt: skip


ConfigSource = Annotated[
    str,
    typer.Argument(
        metavar="[PRESET|CONFIG.toml]",
        help="mnist-mlp, mnist-cnn, cifar-vgg11, cifar-vgg13, cifar-vgg16, cifar-vgg19 (the "
        "paper's settings), digits-mlp (no download), slow-classes (a fleet), or a TOML "
        "file, such as a run's config.toml.",
        autocompletion=lambda: [*PRESETS],
    ),
]


Workers = Annotated[
    int | None, option("--workers", help="Parallel runs; by default, one per core.", min=1)
]
Nodes = Annotated[
    str | None,
    option(
        "--cluster",
        help="In place of --workers, all cores of a Ray cluster: auto (the one on this machine) | "
        "ADDRESS:PORT of its head.",
    ),
]
Events = Annotated[
    Path | None, option("--tensorboard", help="Folder for TensorBoard (salf[tensorboard]).")
]
Options = Annotated[
    list[str] | None,
    option(
        "--option",
        metavar="NAME=VALUE",
        help="An option of the method, such as width=0.25 of heterofl or delay=3 of asyncfl; your "
        "own has its fields. May be repeated.",
    ),
]

_HELP = helps()
DataDir = Annotated[str | None, option("--data-dir", help=_HELP["data_dir"])]


def show_all(context: typer.Context, asked: bool) -> None:
    """Print the help with what --help leaves out, and end."""
    if asked:
        command: Any = context.command
        for each in [*command.params, *getattr(command, "commands", {}).values()]:
            each.hidden = False
        typer.echo(context.get_help())
        raise typer.Exit


def _quieten(_: object, asked: bool) -> None:
    results.quiet = asked


class Answering(TyperCommand):
    """A command with --json, and with --help-all if it has many options."""

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        rare = [each for each in self.params if each.name not in USUAL and each.opts[0][:2] == "--"]
        rare = rare if len(self.params) > MANY else []
        for each in rare:
            vars(each)["hidden"] = True
        self._flag("--json", "Print the result as JSON, and nothing else.", _quieten)
        if rare:
            self._flag("--help-all", f"Show {len(rare)} more options.", show_all)

    def _flag(self, name: str, help: str, do: Callable[[typer.Context, bool], None]) -> None:
        def called(context: Any, option: object, value: bool) -> None:
            do(context, value)

        flag: Any = {"is_flag": True, "default": False, "expose_value": False, "is_eager": True}
        self.params.append(TyperOption(param_decls=[name], help=help, callback=called, **flag))


Command = Callable[..., None]
Made = TypeVar("Made", bound=Settings)
GivenSettings = dict[str, Any]  # those that were given, by name


def settings_of(
    kind: type[Any],
    *,
    only: Collection[str] = (),
    without: Collection[str] = (),
    several: bool = False,
) -> Callable[[Command], Command]:
    """Give a command an option for each setting of a config, with the setting's own help.

    The command gets those that were given as its keyword `settings`, by name; with `several`, each
    as the list of texts that it was given. `options` are those of the method, from NAME=VALUE.
    """

    def decorate(command: Command) -> Command:
        by_name = inspect.Parameter.KEYWORD_ONLY
        hints = get_type_hints(kind)
        options = {
            each.name: inspect.Parameter(
                each.name,
                by_name,
                default=None,
                annotation=Annotated[
                    (list[str] if several else _typed(hints[each.name], each.metadata)) | None,
                    option(
                        f"--{key(each.name)}",
                        help=_HELP[each.name],
                        rich_help_panel=_panel(kind, each.name),
                    ),
                ],
            )
            for each in fields(kind)
            if each.name in _HELP and (not only or each.name in only)
            if each.name not in without
        }
        if not only or "options" in only:
            options["options"] = inspect.Parameter(
                "options", by_name, default=None, annotation=Options
            )

        @wraps(command)
        def called(**given: Any) -> None:
            named = {name: given.pop(name) for name in options}
            settings = {name: value for name, value in named.items() if value is not None}
            if "options" in settings:
                settings["options"] = parse_options(settings["options"])
            command(**given, settings=settings)

        own = [
            parameter.replace(kind=by_name)
            for parameter in inspect.signature(command, eval_str=True).parameters.values()
            if parameter.name != "settings"
        ]
        parameters = [*own, *options.values()]
        called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        called.__annotations__ = {each.name: each.annotation for each in parameters}
        return called

    return decorate


def _panel(kind: type[Any], name: str) -> str | None:
    if name in _HELP:
        return "Settings"
    return "Live settings" if issubclass(kind, Settings) else None


def _typed(hint: Any, about: Mapping[str, Any]) -> Any:
    """What the command line reads a setting as: numbers and choices, and all else as text."""
    parts = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    parts = tuple(part for part in parts if part is not NoneType)
    simple = parts[0] in (int, float) or get_origin(parts[0]) is Literal
    return parts[0] if simple and len(parts) == 1 and about["read"] is None else str


# What goes on with the value before a comma: numbers and settings of what has a colon.
_REST = re.compile(r"[+-]?[\d.]+(e[+-]?\d+)?|\w+=.*")


def lists_of(given: Mapping[str, list[str]]) -> GivenSettings:
    """Settings with the values that they were given, one after the other or between commas.

    step:0.1,50,0.5 is one value, iid,dirichlet:0.1 are two. Paths and layers are taken as they are.
    """
    found: GivenSettings = {}
    for name, texts in given.items():
        whole = name == "layers" or any("/" in text for text in texts)
        values = texts if whole else [value for text in texts for value in _values(text)]
        found[name] = values if len(values) > 1 else values[0]
    return found


def _values(text: str) -> list[str]:
    values: list[str] = []
    for part in parse_list(text) or [text]:
        if values and ":" in values[-1] and _REST.fullmatch(part):
            values[-1] += f",{part}"
        else:
            values.append(part)
    return values


def parse_list(text: str | None) -> list[str]:
    """The parts of a comma-separated list."""
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def parse_options(given: list[str] | None) -> dict[str, Any]:
    """A method's options from NAME=VALUE."""
    options: dict[str, Any] = {}
    for entry in given or ():
        name, equals, value = entry.partition("=")
        if not equals:
            raise SalfError(f"an option must be NAME=VALUE, not {entry!r}.")
        options[name] = value
    return options


def with_settings(config: Settings, settings: GivenSettings, made: Callable[..., Made]) -> Made:
    """The config, `made` of an other one, with settings; options are added to the method's."""
    if "options" in settings and settings.get("method", config.method) == config.method:
        settings = {**settings, "options": {**config.options, **settings["options"]}}
    found = made(config, **settings)
    if "deadline" in settings:
        refuse_deadline(found.make_method())
    return found


@contextmanager
def workers_of(workers: int | None, cluster: str | None) -> Iterator[Any]:
    """What does jobs: so many processes of this machine, or the nodes of a cluster."""
    if cluster is None:
        yield workers
        return
    if workers:
        raise SalfError("--workers and --cluster cannot be combined: a cluster uses all its cores.")
    from salf.cluster import Cluster

    with Cluster(cluster) as nodes:
        say(nodes.told)
        yield nodes
