"""Files of a run, and folders that do not stay, whatever becomes of their process."""

import os
import subprocess
import sys

import pytest

from salf.common.files import csv_of, delete_left_over, temporary_folder


def test_a_temporary_folder_is_private_and_gone_afterwards(tmp_path):
    with temporary_folder("some", tmp_path) as folder:
        assert folder.stat().st_mode & 0o077 == 0
        (folder / "file").touch()
    assert [*tmp_path.iterdir()] == []


def test_what_a_killed_process_left_is_deleted_by_the_next_and_what_is_in_use_is_not(tmp_path):
    code = (
        "import sys\nfrom pathlib import Path\nfrom salf.common.files import temporary_folder\n"
        f"with temporary_folder('some', Path({str(tmp_path)!r})) as folder:\n"
        "    (folder / 'file').touch()\n    print(folder, flush=True)\n    sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        theirs = tmp_path / os.path.basename(process.stdout.readline().strip())
        assert theirs.exists()
        with temporary_folder("some", tmp_path):
            assert theirs.exists()  # at work
        process.kill()
    with temporary_folder("some", tmp_path) as ours:
        assert [*tmp_path.iterdir()] == [ours]


@pytest.mark.parametrize("name", ["some-run-1", "some-my-results", "some-12-abcdefgh"])
def test_folders_that_only_have_such_a_name_are_left_alone(tmp_path, name):
    (tmp_path / name).mkdir()
    with temporary_folder("some", tmp_path):
        assert (tmp_path / name).exists()


def test_only_what_was_left_over_of_these_files_is_deleted(tmp_path):
    left, others = ".state.safetensors-abc.safetensors", [".env.my-machine", ".other.toml-x"]
    for name in (left, *others, "state.safetensors"):
        (tmp_path / name).touch()
    delete_left_over(tmp_path, ["state.safetensors"])
    assert sorted(path.name for path in tmp_path.iterdir()) == [*others, "state.safetensors"]


def test_records_have_the_columns_of_the_first():
    assert csv_of([{"a": 1, "b": None}, {"a": "x,y", "b": 2}]) == 'a,b\n1,\n"x,y",2\n'
    assert csv_of([]) == ""
