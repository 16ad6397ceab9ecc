"""Errors a person can act on: one sentence saying what was wrong and what is allowed."""

import pickle
import re
from collections.abc import Iterable
from difflib import SequenceMatcher


class SalfError(ValueError):
    """An error that the caller can fix. The command line prints it as one line and exits with 2."""


class TrainingDiverged(SalfError):
    """A round produced a number that is not finite, so training stopped before applying it."""


class NoRoundInTime(SalfError):
    """The simulated time was over before the first round was."""


class DataUnavailable(SalfError):
    """A data set is neither on this machine nor could it be fetched."""


class ClusterLost(SalfError):
    """The Ray cluster of a live federation ended; the rounds closed so far are saved."""


def unknown(kind: str, name: str, allowed: Iterable[str]) -> SalfError:
    """Say that `name` is no known `kind`, with all that is allowed and, if one is, the nearest."""
    names = sorted(allowed)
    alike = {known: SequenceMatcher(None, known, name).ratio() for known in names}
    best = max(alike.values(), default=0.0)
    near = [known for known in names if alike[known] == best >= 0.6]
    hint = f" Did you mean {near[0]!r}?" if len(near) == 1 else ""  # of several it is a guess
    return SalfError(f"unknown {kind} {name!r}.{hint} Allowed: {', '.join(names) or 'none'}.")


def portable(error: BaseException) -> BaseException:
    """The error as another process can raise it."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # an exception with arguments of its own
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def is_user_name(name: str) -> bool:
    """Whether a user may be called so: ASCII letters, digits, dots, dashes and underscores."""
    return _NAME.fullmatch(name) is not None


def in_one_line(text: object, last: bool = False) -> str:
    """The first (or last) line of anybody's text, without its full stop: short, safe to print."""
    lines = str(text).strip().splitlines() or [type(text).__name__]
    line = lines[-1 if last else 0]
    return "".join(char if char.isprintable() else "?" for char in line.rstrip("."))[:200]
