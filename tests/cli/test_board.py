"""What a person sees of a live run, whatever users send."""

import io
import re

import pytest
from rich.console import Console

from salf.cli import board
from salf.core.rows import Row
from salf.runs.live_config import LiveConfig

ROW = Row(
    3,
    0.5,
    (1, 2, 2),
    accuracy=0.875,
    seconds=0.05,
    limit=0.06,
    depths={"user-1": 1, "user-2": 2, "user-3": 4, "user-4": 4},
    unreached=(0.0, 0.0, 0.0),
    rejected=(("user-3", "it has '[/x]', which is not in the model"),),
    silent=("user-4",),
)


@pytest.fixture
def screen(monkeypatch):
    console = Console(file=io.StringIO(), force_terminal=True, width=80, color_system=None)
    monkeypatch.setattr(board, "console", console)
    return console


def show(row, rounds, slow=""):
    config = LiveConfig(data="synthetic", users=4, rounds=rounds, deadline=1.0, slow=slow)
    with board.Board() as shows:
        shows.begin(config, ["conv", "hidden", "out"])
        shows.round(row)


def shown(screen, row):
    show(row, row.round, "0.25x1,0.25x8")
    return screen.file.getvalue()


def test_who_reached_which_layer_and_who_was_late(screen):
    text = shown(screen, ROW)
    assert max(map(len, re.sub(r"\x1b\[[?\w]*", "", text).splitlines())) <= 80
    assert "user-2, 8x slower" in text
    assert "■■□" in text
    for how in ("finished", "reached layer 2 hidden", "late"):
        assert how in text


def test_what_users_send_is_shown_as_it_is(screen):
    assert "it has '[/x]', which is not in the model" in shown(screen, ROW)


def test_without_a_terminal_it_is_a_line_and_the_last_round_is_always_said(monkeypatch):
    console = Console(file=io.StringIO(), force_terminal=False, width=200)
    monkeypatch.setattr(board, "console", console)
    said = []
    monkeypatch.setattr(board, "say", said.append)
    show(ROW, 3)
    assert said == ["round 3 of 3: 2 of 4 users in 50 ms, layers reached by 1/2/2, accuracy 0.8750"]
    assert console.file.getvalue() == ""
