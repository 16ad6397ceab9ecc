"""Errors a person can act on: one sentence saying what was wrong and what is allowed."""

from collections.abc import Iterable
from difflib import get_close_matches


class SalfError(ValueError):
    """Something the caller can mend. The command line prints it as one line and exits with 2."""


class TrainingDiverged(SalfError):
    """A round produced a number that is not finite, so training stopped before applying it."""


def unknown(kind: str, name: str, allowed: Iterable[str]) -> SalfError:
    """Say that `name` is no known `kind`, with the nearest match and all that is allowed."""
    names = sorted(allowed)
    near = get_close_matches(name, names, n=1, cutoff=0.6)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return SalfError(f"unknown {kind} {name!r}.{hint} Allowed: {', '.join(names)}.")


def in_one_line(text: object, last: bool = False) -> str:
    """The first (or last) line of what may be anybody's text: short, and safe to print."""
    lines = str(text).strip().splitlines() or [type(text).__name__]
    line = lines[-1 if last else 0]
    return "".join(char if char.isprintable() else "?" for char in line)[:200]
