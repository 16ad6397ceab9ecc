"""What a live run writes down is what is read again."""

import math

import pytest

from salf.errors import SalfError
from salf.live.record import Record, append, read, resume, rewrite

FIRST = Record(
    1,
    {"user-1": 1, "user-2": 4},
    (1, 1, 1),
    float("nan"),
    2,
    (("user-2", "with 'w' not finite"),),
    ("user-3",),
    (0.25, 0.0, 0.0),
    0.051,
    0.06,
)
SECOND = Record(2, {"user-1": 2}, (0, 1, 1), 0.5, 0, accuracy=0.9)


def test_rounds_are_read_as_they_were(tmp_path):
    path = tmp_path / "rounds.jsonl"
    assert read(path) == []
    append(path, FIRST)
    append(path, SECOND)
    first, second = read(path)
    assert second == SECOND
    assert math.isnan(first.loss)
    assert vars(first) | {"loss": 0} == vars(FIRST) | {"loss": 0}


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
    with pytest.raises(SalfError, match="Choose another place to start anew"):
        resume(path, t, saved=saved)
    assert path.read_bytes() == before


@pytest.mark.parametrize("line", ["not JSON", "[]", '{"round": 1}', '{"rounds": 1}', "3"])
def test_another_file_is_refused_in_a_sentence(tmp_path, line):
    path = tmp_path / "rounds.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(SalfError, match="is not the record of a live run"):
        read(path)
