"""The options that several commands share, and how their texts are read."""

import re
from typing import Annotated, Any

import typer

from salf.errors import SalfError


def option(*names: str, help: str, **more: Any) -> Any:
    """An option with its help; the default shown is the preset's."""
    return typer.Option(*names, help=help, show_default=False, **more)


Source = Annotated[
    str,
    typer.Argument(
        metavar="[PRESET|CONFIG.toml]",
        help="mnist-mlp, mnist-cnn, cifar-vgg11, cifar-vgg13, cifar-vgg16, cifar-vgg19 (the "
        "paper's settings), or a TOML file, such as a run's config.toml.",
    ),
]
Data = Annotated[
    str | None,
    option(
        "--data",
        help="mnist | fashion-mnist | cifar10 | synthetic | idx:PATH | folder:PATH",
    ),
]
DataDir = Annotated[
    str | None, option("--data-dir", help="A folder to look for the data set's files in.")
]
Model = Annotated[
    str | None,
    option("--model", help="mlp | cnn | vgg11 | vgg13 | vgg16 | vgg19 | package.module:Name"),
]
Depth = Annotated[
    str | None,
    option(
        "--depth",
        help="How deep users get: mixture (a ratio of stragglers, of any depth alike, the rest "
        "finish) | mixture:P1,... (with the chances of a straggler's depth 1..L+1) | uniform "
        "(assumption AS4) | fixed:D1,D2,... | probabilities:P1,...",
    ),
]
Users = Annotated[int | None, option("--users", help="Number of users.")]
Rounds = Annotated[int | None, option("--rounds", help="Number of rounds.")]
Lr = Annotated[
    str | None,
    option(
        "--lr",
        help="Learning rate: 0.05 | cosine:RATE | step:RATE,EVERY,FACTOR | theorem:RHO_C,RHO_S",
    ),
]
Momentum = Annotated[float | None, option("--momentum", help="The server's momentum.")]
BatchSize = Annotated[int | None, option("--batch-size", help="Samples per user and round.")]
EvalEvery = Annotated[
    int | None,
    option("--eval-every", help="Rounds between evaluations; 0 keeps them a small part."),
]
Device = Annotated[str | None, option("--device", help="cpu, cuda, ...")]
Engine = Annotated[
    str | None,
    option("--engine", help="auto | fused (fast) | loop (any module, one user at a time)"),
]
Options = Annotated[
    list[str] | None,
    option(
        "--option",
        metavar="NAME=VALUE",
        help="An option of the method: drop has lucky (dropped | kept); heterofl has width; "
        "asyncfl has delay, stale, discount. May be repeated.",
    ),
]


def parse_list(text: str | None) -> list[str]:
    """The parts of a comma-separated list."""
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def parse_number(text: str | None) -> float | str | None:
    """A number if it is one, else the text."""
    try:
        return None if text is None else float(text)
    except ValueError:
        return text


def parse_ratio(text: str) -> float:
    """A ratio of stragglers."""
    number = parse_number(text)
    if not isinstance(number, float) or not 0 <= number <= 1:
        raise SalfError(f"stragglers must be ratios in [0, 1], such as 0.3,0.9, not {text!r}.")
    return number


_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0}


def parse_duration(text: str) -> float:
    """Seconds from 50ms, 2s, 1.5min, ..."""
    match = re.fullmatch(r"(\d+\.?\d*|\.\d+)\s*(us|ms|s|min)", text.strip())
    if match is None:
        raise SalfError(f"a time is written with its unit, as 50ms, 2s or 1.5min, not {text!r}.")
    return float(match[1]) * _SECONDS[match[2]]


def parse_options(given: list[str] | None) -> dict[str, Any] | None:
    """A method's options from NAME=VALUE."""
    if not given:
        return None
    options: dict[str, Any] = {}
    for entry in given:
        name, equals, value = entry.partition("=")
        if not equals:
            raise SalfError(f"an option is written NAME=VALUE, not {entry!r}.")
        number = parse_number(value)
        whole = isinstance(number, float) and number.is_integer() and "." not in value
        options[name] = int(number) if whole and isinstance(number, float) else number
    return options
