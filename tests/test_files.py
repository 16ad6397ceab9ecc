"""Folders that do not stay, whatever becomes of their process."""

import os
import subprocess
import sys

from salf.files import temporary_folder


def test_a_temporary_folder_is_private_and_gone_afterwards(tmp_path):
    with temporary_folder("some", tmp_path) as folder:
        assert folder.stat().st_mode & 0o077 == 0
        (folder / "file").touch()
    assert [*tmp_path.iterdir()] == []


def test_what_a_killed_process_left_is_deleted_by_the_next_and_what_is_in_use_is_not(
    tmp_path, monkeypatch
):
    code = (
        "import sys\nfrom pathlib import Path\nfrom salf.files import temporary_folder\n"
        f"with temporary_folder('some', Path({str(tmp_path)!r})) as folder:\n"
        "    (folder / 'file').touch()\n    print(folder, flush=True)\n    sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        theirs = tmp_path / os.path.basename(process.stdout.readline().strip())
        assert theirs.exists()
        monkeypatch.setattr("salf.files.time.time", lambda: theirs.stat().st_ctime + 100)
        with temporary_folder("some", tmp_path):
            assert theirs.exists()  # at work
        process.kill()
    with temporary_folder("some", tmp_path) as ours:
        assert [*tmp_path.iterdir()] == [ours]


def test_a_folder_that_was_just_made_is_left_alone(tmp_path):
    fresh = tmp_path / "some-1-x"
    fresh.mkdir()
    with temporary_folder("some", tmp_path):
        assert fresh.exists()
