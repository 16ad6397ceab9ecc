"""What a live run writes down is what is read again."""

import math

import pytest

from salf.common.errors import SalfError
from salf.core.rows import Row, append, read, read_csv, resume, rewrite, write_csv

FIRST = Row(
    1,
    float("nan"),
    (1, 1, 1),
    seconds=0.051,
    limit=0.06,
    depths={"user-1": 1, "user-2": 4},
    unreached=(0.25, 0.0, 0.0),
    late=2,
    rejected=(("user-2", "with 'w' not finite"),),
    silent=("user-3",),
)
SECOND = Row(2, 0.5, (0, 1, 1), accuracy=0.9, depths={"user-1": 2})


def test_rounds_are_read_as_they_were(tmp_path):
    path = tmp_path / "rounds.jsonl"
    assert read(path) == []
    append(path, FIRST)
    append(path, SECOND)
    first, second = read(path)
    assert second == SECOND
    assert math.isnan(first.train_loss)
    assert vars(first) | {"train_loss": 0} == vars(FIRST) | {"train_loss": 0}


def test_a_line_that_was_not_finished_is_left_out(tmp_path):
    path = tmp_path / "rounds.jsonl"
    append(path, SECOND)
    with path.open("a") as stream:
        stream.write('{"round": 3, "dep')
    assert read(path) == [SECOND]
    rewrite(path, read(path))
    append(path, SECOND)
    assert read(path) == [SECOND, SECOND]


def test_a_round_that_was_not_saved_is_run_again(tmp_path):
    path = tmp_path / "rounds.jsonl"
    append(path, FIRST)
    append(path, SECOND)
    assert [done.round for done in resume(path, 1)] == [1]
    assert [done.round for done in read(path)] == [1]


@pytest.mark.parametrize(("t", "saved"), [(0, True), (1, False), (3, True)])
def test_a_record_of_other_rounds_is_kept_and_refused(tmp_path, t, saved):
    path = tmp_path / "rounds.jsonl"
    append(path, FIRST)
    append(path, SECOND)
    before = path.read_bytes()
    with pytest.raises(SalfError, match="Choose another folder to start over"):
        resume(path, t, saved=saved)
    assert path.read_bytes() == before


@pytest.mark.parametrize("line", ["not JSON", "[]", '{"round": 1}', '{"rounds": 1}', "3"])
def test_another_file_is_refused_in_a_sentence(tmp_path, line):
    path = tmp_path / "rounds.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(SalfError, match="is not the record of a live run"):
        read(path)


@pytest.mark.parametrize("sent", [0, 10])  # bytes, in a live run
def test_a_table_has_what_every_run_knows(tmp_path, sent):
    rows = [
        Row(1, 0.1 + 0.2, (0, 2), seconds=0.25, bytes=sent),
        Row(2, 0.5, (1, 2), accuracy=1 / 3, metrics={"f1": 0.5}, bytes=3 * sent),
    ]
    write_csv(tmp_path / "metrics.csv", rows)
    assert read_csv(tmp_path / "metrics.csv") == rows
