"""The page of `salf fleet measure`: a made-up live run beside the fleet measured on it."""

import json
import sys
from dataclasses import replace

import numpy as np
import pytest

from command import salf
from salf.core.rows import Row, append
from salf.live.agreement import Agreement, measure
from salf.report.agreement import figure, page
from salf.report.live import LiveRun
from salf.runs.folder import CONFIG, ROUNDS
from salf.runs.live_config import LiveConfig

FILES = ("fleet.csv", "fleet.png", "fleet.svg", "fleet.html")


def row(t):
    """user-1 always finishes; user-2 completes one layer of two in every fourth round."""
    slow = (0.9,) if t % 4 < 2 else ()
    stages = {"user-1": (0.2, 0.1 + 0.01 * (t % 3)), "user-2": slow}
    arrived = {"user-1": 0.4, "user-2": 1.1}
    depths = {user: 3 - len(own) for user, own in stages.items()}
    return Row(
        t, 1.0, (1, 1 + len(slow)), seconds=1.2, limit=1.5, deadline=1.0, depths=depths,
        stages=stages, arrived=arrived,
    )  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    config = LiveConfig(data="digits", users=2, deadline=1.0, slow="0.5x8", model="mlp")
    path = tmp_path / "live"
    path.mkdir()
    (path / CONFIG).write_text(config.to_toml())
    for t in range(1, 9):
        append(path / ROUNDS, row(t))
    return path


def made_up(**more):
    given = {
        "users": ("user-1", "user-2"),
        "stages": np.array([2, 2]),
        "live": np.array([[0.0, 0.0, 1.0], [0.5, 0.3, 0.2]]),
        "simulated": np.array([[0.0, 0.0, 1.0], [0.3, 0.5, 0.2]]),
        "live_times": np.array([0.04, 0.05, 0.06, 0.05]),
        "simulated_times": np.array([0.05, 0.06] * 10),
        "deadlines": (0.035,) * 4,
    }
    return Agreement(**{**given, **more})


def texts(found):
    return json.dumps([[section.heading, *map(str, section.blocks)] for section in found.sections])


def test_the_page_has_depths_and_times_and_how_they_differ(folder):
    found = page(made_up(), LiveRun.of(folder), "runs/live", ["fleet", "measure", "runs/live"])
    assert [section.heading for section in found.sections] == [
        "Layers completed by each user",
        "Round durations",
        "Reproduce this page",
    ]
    assert found.intro[0] == (
        "Depths differ by 0.100 on average over users, and by at most 0.200 (user-2). A round "
        "takes 50 ms live and 55 ms simulated on average, a ratio of 1.100."
    )
    assert "every second of 8 rounds" in found.intro[1]
    assert "T_max was 35 ms." in found.intro[1]
    users = found.sections[0].blocks[1]
    assert [list(each) for each in users.rows] == [
        ["user-1, 8x slower", "100%", "100%", "0%", "0%", "0.000"],
        ["user-2", "20%", "20%", "50%", "30%", "0.200"],
        ["Mean", "60%", "60%", "25%", "15%", "0.100"],
    ]
    assert "salf fleet measure runs/live" in texts(found)


def test_the_bars_of_a_user_are_its_shares_of_rounds(folder):
    found = figure(made_up(), LiveRun.of(folder))
    bars = found["datasets"][found["vconcat"][0]["data"]["name"]]
    times = found["datasets"]["points-2"]
    live = [bar for bar in bars if bar["user"] == "user-2, live"]
    assert [(bar["count"], bar["start"], bar["end"]) for bar in live] == [
        ("2 of 2", 0.0, 0.2),
        ("1 of 2", 0.2, 0.5),
        ("0 of 2", 0.5, 1.0),
    ]
    curve = [(each["x"], each["mean"]) for each in times if each["line"] == "live"]
    assert curve[:3] == [(0.04, 0.0), (0.04, 0.25), (0.05, 0.5)]
    assert curve[-1][1] == 1.0


def test_users_with_unequal_local_steps_finish_after_their_own():
    live = np.array([[0.0, 0, 1, 0, 0], [0.5, 0, 0, 0, 0.5]])
    found = made_up(stages=np.array([2, 4]), live=live, simulated=live)
    np.testing.assert_array_equal(found.finished(found.live), [1.0, 0.5])
    assert "user-1  100% live, 100%" in str(found)


def test_one_very_long_round_leaves_room_for_the_others_and_is_told(folder):
    times = np.append(np.full(199, 0.05), 9.0)
    found = page(made_up(live_times=times), LiveRun.of(folder), "live", [])
    assert "0.5% of the live rounds (up to 9 s) took longer than is shown" in texts(found)
    assert "T_max 35 ms" in texts(found)


@pytest.mark.parametrize(
    ("deadlines", "rounds", "says"),
    [
        ((), 8, "Rounds waited for all users."),
        ((0.02, 0.03), 8, "T_max ranged from 20 ms to 30 ms."),
        ((0.02,) * 4, 4, "rounds that it was measured from"),  # too few to be halved
    ],
)
def test_the_first_words_say_what_is_compared(folder, deadlines, rounds, says):
    run = LiveRun.of(folder)
    short = replace(run, records=run.records[:rounds])
    found = page(made_up(deadlines=deadlines), short, "live", [])
    assert says in found.intro[1]
    assert ("T_max" in texts(found)) == (len(set(deadlines)) == 1)  # the line of one deadline


def test_many_users_and_local_steps_give_a_figure_that_a_browser_can_draw(folder):
    users = tuple(f"user-{number}" for number in range(1, 301))
    shares = np.full((300, 21), 1 / 21)
    many = made_up(users=users, stages=np.full(300, 20), live=shares, simulated=shares)
    found = page(many, LiveRun.of(folder), "live", [])
    assert len(json.dumps(figure(many, LiveRun.of(folder)))) < 400_000
    assert "40 evenly spaced users are shown" in texts(found)
    assert "of each of up to 10 local steps" in texts(found)


def test_the_command_leaves_page_and_figure_beside_the_file(folder, tmp_path):
    done = salf("fleet", "measure", "live", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for name in FILES:
        assert (folder / name).stat().st_size > 300
        assert f"wrote live/{name}" in done.stdout
    written = (folder / "fleet.html").read_text(encoding="utf-8")
    assert "salf fleet measure live" in written
    assert f"{measure(folder)[1].variation.mean():.3f} on average over users" in written


def test_without_the_extra_there_is_the_file_and_a_sentence(folder, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "altair", None)
    done = salf("fleet", "measure", "live", "--out", "mine.csv", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stderr.startswith("No page was written: ")
    assert "pip install 'salf[report]'" in done.stderr
    assert done.stderr.count("\n") == 1
    assert (tmp_path / "mine.csv").exists()
    assert not (tmp_path / "mine.html").exists()


def test_a_file_that_fleet_would_not_read_is_refused(folder, tmp_path):
    done = salf("fleet", "measure", "live", "--out", "mine.html", cwd=tmp_path)
    assert done.returncode == 2
    assert "ends in .csv, not 'mine.html'" in done.stderr
    assert not (tmp_path / "mine.html").exists()
