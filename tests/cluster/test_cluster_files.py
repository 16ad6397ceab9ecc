"""Files of jobs on nodes that share no file system with the program."""

import pytest

from salf.cluster import files
from salf.cluster.files import Outbox, contents, digest, fetch
from salf.cluster.studies import Desk, in_cache
from salf.common.errors import SalfError
from salf.data.loading import cache_folder


@pytest.fixture
def desk(tmp_path):
    """Where the program keeps a job's files, and what a node calls to change them."""
    place = tmp_path / "desk" / "run"
    place.mkdir(parents=True)
    return place, lambda changed, gone: files.keep(place, changed, gone)


def test_a_job_continues_with_what_was_kept_and_leaves_nothing_on_its_node(desk, tmp_path):
    kept, keep = desk
    (kept / "checkpoint").write_text("round 3")
    (kept / ".lock").touch()
    node = tmp_path / "node" / "run"
    cut_off = Outbox(node, contents(kept), keep)
    (node / "half").write_text("of a try that was cut off")
    cut_off._lock.release()  # as the system does when a process ends
    with Outbox(node, contents(kept), keep):
        assert {path.name for path in node.iterdir()} == {"checkpoint"}
        (node / "checkpoint").write_text("round 5")
        (node / "inner").mkdir()
        (node / "inner" / "model").write_bytes(b"\x00\x01")
    assert not list((tmp_path / "node").iterdir())
    assert contents(kept) == {"checkpoint": b"round 5", "inner/model": b"\x00\x01"}


def test_a_folder_of_the_node_itself_is_neither_used_nor_deleted(desk, tmp_path):
    kept, keep = desk
    files.write(tmp_path / "run", {"model": b"mine"})
    with pytest.raises(SalfError, match=r"has a folder .*run of its own"):
        Outbox(tmp_path / "run", contents(kept), keep)
    assert contents(tmp_path / "run") == {"model": b"mine"}


def test_what_changes_is_sent_while_the_job_goes_on_and_only_that(desk, tmp_path):
    sent = []
    with Outbox(tmp_path / "node", {}, lambda changed, gone: sent.append((changed, gone))) as box:
        (tmp_path / "node").mkdir()
        (tmp_path / "node" / "a").write_text("1")
        (tmp_path / "node" / ".b-half").write_text("being written")
        box.send_after(1000)
        assert sent == []
        box.send_after(0)
        box.send_after(0)
        (tmp_path / "node" / "a").unlink()
    assert sent == [({"a": b"1"}, []), ({}, ["a"])]


def test_what_a_job_that_failed_had_saved_is_kept(desk, tmp_path):
    kept, keep = desk

    def job():
        with Outbox(tmp_path / "node", {}, keep):
            files.write(tmp_path / "node", {"checkpoint": b"saved"})
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        job()
    assert contents(kept) == {"checkpoint": b"saved"}


def test_a_job_may_write_a_single_file(tmp_path):
    there, here = tmp_path / "there.json", tmp_path / "here.json"
    with Outbox(there, contents(here), lambda changed, gone: files.keep(here, changed, gone)):
        there.write_text("{}")
    assert here.read_text() == "{}"
    assert not there.exists()


def test_data_are_fetched_by_the_first_job_of_a_node_only(tmp_path):
    data, asked = {"train": b"x", "inner/test": b"y"}, []

    def content():
        asked.append(1)
        return data

    for _ in range(2):
        fetch(tmp_path / "cache" / "set", digest(data), content)
    assert (tmp_path / "cache" / "set" / "inner" / "test").read_bytes() == b"y"
    assert len(asked) == 1
    other = {**data, "train": b"z"}
    with pytest.raises(SalfError, match="set differs from that of the program"):
        fetch(tmp_path / "cache" / "set", digest(other), lambda: other)
    assert contents(tmp_path / "cache" / "set") == data


def test_data_that_were_fetched_in_part_are_fetched_again(tmp_path):
    files.write(tmp_path / ".set.new", {"train": b"half"})
    fetch(tmp_path / "set", "", lambda: {"test": b"y"})
    assert contents(tmp_path / "set") == {"test": b"y"}


def test_a_folder_that_cannot_be_made_on_a_node_is_a_sentence(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(SalfError, match=r"cannot write .*file/runs.* that they share"):
        fetch(tmp_path / "file" / "runs", "", dict)


def test_jobs_of_two_programs_do_not_write_the_same_folder_of_a_node(tmp_path):
    with Outbox(tmp_path / "run", {}, lambda changed, gone: None):
        files.write(tmp_path / "run", {"checkpoint": b"of the first"})
        with pytest.raises(SalfError, match=r"another program's job writes .*run: use another"):
            Outbox(tmp_path / "run", {}, lambda changed, gone: None)
        assert contents(tmp_path / "run") == {"checkpoint": b"of the first"}


def test_two_programs_do_not_keep_a_run_in_the_same_folder(tmp_path):
    ours, theirs, run = Desk(), Desk(), tmp_path / "run"
    assert ours.begin(run) == {}
    ours.keep(run, {"checkpoint": b"round 3"}, [])
    assert ours.begin(run) == {"checkpoint": b"round 3"}  # the job is done again elsewhere
    assert "another process is working in" in str(theirs.begin(run))
    with pytest.raises(SalfError, match="counts as lost"):
        theirs.keep(run, {"checkpoint": b"round 1"}, [])
    ours.end(run)
    assert theirs.begin(run) == {"checkpoint": b"round 3"}
    with pytest.raises(SalfError, match="counts as lost"):
        ours.keep(run, {"checkpoint": b"round 2"}, [])
    assert contents(run) == {"checkpoint": b"round 3"}


def test_what_is_in_the_cache_goes_to_a_nodes_own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SALF_CACHE", str(tmp_path / "here"))
    sent = in_cache(tmp_path / "here" / "mnist"), in_cache(tmp_path / "elsewhere" / "mnist")
    monkeypatch.setenv("SALF_CACHE", str(tmp_path / "there"))
    found = [cache_folder() / path for path in sent]
    assert found == [tmp_path / "there" / "mnist", tmp_path / "elsewhere" / "mnist"]
