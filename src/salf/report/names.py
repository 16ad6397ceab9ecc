"""Display names, and the lines of methods in charts."""

import re
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path

from salf.common.figures import Line
from salf.common.registry import is_path
from salf.methods import METHODS, asks
from salf.report.texts import texts
from salf.runs.config import Config
from salf.runs.settings import key as setting_name
from salf.worlds.depth import has_ratio
from salf.worlds.fleet.named import GIVEN

# A method's name and colour, the same in every chart.
_METHODS: dict[str, tuple[str, str]] = {key: tuple(v) for key, v in texts()["methods"].items()}


def waits(method: str) -> bool:
    """Whether a method has no deadline, so that it is an upper bound for the others."""
    return asks(method).waits


def method(key: str) -> str:
    """A method as people write it; of your own, the class, or the path if that name is taken."""
    if key in _METHODS or key in METHODS:
        return _METHODS[key][0] if key in _METHODS else METHODS[key].__name__
    name = key.rpartition(":")[2].rpartition(".")[2] if is_path(key) else key
    return key if name in {known for known, _ in _METHODS.values()} else name


def average(key: str) -> str:
    """How layers are averaged."""
    return str(texts()["averages"].get(key, key))


def users(config: Config) -> str:
    """How many users a run has, and how many of them take part in a round."""
    some = "" if config.cohort == "all" else f" ({config.cohort_size()} a round)"
    return f"{config.users} users{some}"


def data(spec: str) -> str:
    """A data set as people write it."""
    return str(texts()["data"].get(spec, spec))


def percent(ratio: float) -> str:
    """A ratio in percent: 0.3 is `30 %`."""
    return f"{100 * ratio:g} %"


def condition(depth: str, ratio: float) -> str:
    """The stragglers of a run. Only a mixture has a ratio of stragglers."""
    return (
        f"{percent(ratio)} stragglers" if has_ratio(depth) else f"{depth.partition(':')[0]} depths"
    )


def fleet(config: Config) -> str:
    """A fleet and its deadline: `phones, deadline 800 ms`."""
    return f"{fleet_name(config)}, deadline {deadline(config.deadline)}"


def deadline(value: float | str | None) -> str:
    """A deadline as people write it."""
    return duration(value) if isinstance(value, int | float) else value or "none"


def fleet_name(config: Config) -> str:
    """A fleet as people write it."""
    if config.fleet == GIVEN:
        name = str(config.given["fleet"]).rpartition(" ")[0]
        return "own devices" if name == "by hand" else name
    return Path(config.fleet).stem if config.fleet.endswith(".csv") else config.fleet


def who_is_slow(config: Config) -> str:
    """The reason why users of a run do not finish."""
    if waits(config.method):
        return f"waiting for all users{f' of {config.fleet}' if config.fleet else ''}"
    if not config.fleet:
        return condition(config.depth, config.stragglers)
    if not config.make_method().asks.deadline:
        return f"{fleet_name(config)}, no deadline"
    return fleet(config)


def variant(key: str, batches: str = "equal") -> str:
    """A method, and how its batches are sized if that is not the same for all users."""
    return method(key) + ("" if batches == "equal" else f", {batches}")


def values(settings: Sequence[tuple[str, object]]) -> str:
    """Settings with their values: `lr 0.1, momentum 0.5`."""
    return ", ".join(f"{setting_name(name)} {value}" for name, value in settings)


def split(key: str) -> str:
    """A split of the data as people write it: `dirichlet:0.1` is `Dirichlet(0.1)`."""
    kind, _, value = key.partition(":")
    if kind == "dirichlet" and value:
        return f"Dirichlet({value})"
    return {"iid": "i.i.d.", "own": "users' own data", "given": "split by indices"}.get(key, key)


def layers(found: Sequence[str]) -> list[str]:
    """Layers by number, and by name where that is one and not a place in a sequence."""
    return [f"{i}" if name.isdigit() else f"{i} {name}".rstrip() for i, name in enumerate(found, 1)]


def user(name: str, slower: float) -> str:
    """A user, and how much slower it was made."""
    return name if slower == 1 else f"{name}, {slower:g}x slower"


def in_order(name: str) -> str:
    """A sort key that puts user-2 before user-10."""
    return re.sub(r"\d+", lambda digits: digits[0].zfill(20), name)


def duration(seconds: float) -> str:
    """A time as people say it: `20 ms`, `2.51 s`, `12 minutes`."""
    if seconds < 0.9995:
        return f"{1000 * seconds:.3g} ms"
    return f"{seconds:.3g} s" if seconds < 600 else f"{seconds / 60:,.0f} minutes"


def lines(methods: Sequence[str]) -> list[Line]:
    """A line per method in its colour: FedAvg, which waits, dashed, and SALF bold."""
    others = [key for key in methods if key not in _METHODS]
    colours = dict(zip(others, cycle(texts()["colours"]["more"]), strict=False))
    colours |= {key: colour for key, (_, colour) in _METHODS.items()}
    return [Line(method(key), colours[key], waits(key), key == "salf") for key in methods]


def listed(words: Sequence[str]) -> str:
    """Words as a sentence lists them: `a, b and c`."""
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))
