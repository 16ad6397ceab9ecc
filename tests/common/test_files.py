"""Files of a run, and folders that do not stay."""

from salf.common.files import csv_of, temporary_folder


def test_a_temporary_folder_is_private_and_gone_afterwards(tmp_path):
    with temporary_folder("some", tmp_path) as folder:
        assert folder.stat().st_mode & 0o077 == 0
        (folder / "file").touch()
    assert [*tmp_path.iterdir()] == []


def test_records_have_the_columns_of_the_first():
    assert csv_of([{"a": 1, "b": None}, {"a": "x,y", "b": 2}]) == 'a,b\n1,\n"x,y",2\n'
    assert csv_of([]) == ""
