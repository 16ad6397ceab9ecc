"""Files of a run, and folders that do not stay."""

import os

import pytest

from salf.common.files import csv_of, only_ours, temporary_folder, write_whole

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows has other permissions")


@pytest.fixture(params=[0o022, 0o077, 0o002], ids=oct)
def umask(request):
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode(path):
    return path.stat().st_mode & 0o777


def test_who_may_read_a_result_is_up_to_the_umask_and_a_private_file_is_its_owners(tmp_path, umask):
    write_whole(tmp_path / "shared", "text")
    write_whole(tmp_path / "private", b"bytes", private=True)
    assert mode(tmp_path / "shared") == 0o666 & ~umask
    assert mode(tmp_path / "private") == 0o600
    write_whole(tmp_path / "shared", "again")
    assert mode(tmp_path / "shared") == 0o666 & ~umask
    (tmp_path / "old").touch(0o644)
    with open(tmp_path / "old", "a", opener=only_ours) as stream:
        stream.write("more")
    assert mode(tmp_path / "old") == 0o600
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_a_temporary_folder_is_private_and_gone_afterwards(tmp_path):
    with temporary_folder("some", tmp_path) as folder:
        assert folder.stat().st_mode & 0o077 == 0
        (folder / "file").touch()
    assert [*tmp_path.iterdir()] == []


def test_records_have_the_columns_of_the_first():
    assert csv_of([{"a": 1, "b": None}, {"a": "x,y", "b": 2}]) == 'a,b\n1,\n"x,y",2\n'
    assert csv_of([]) == ""
