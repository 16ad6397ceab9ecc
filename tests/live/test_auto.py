"""`--deadline auto` live: T_max is found, follows its target, and survives a restart."""

import numpy as np
import pytest
import torch
import updates
from links import NEVER, Clock, MadeUpLink
from torch import nn

from salf.live import tmax
from salf.live.reach import MOST
from salf.live.rounds import Answer, Grace, Rounds
from salf.live.server import LiveServer
from salf.live.update import Rejected, encode
from salf.problem import Problem
from salf.worlds.fleet.deadlines import Auto, DeadlineSchedule

LAYERS = 4
MESSAGES = 0.01  # seconds


class Devices(MadeUpLink):
    """Users whose stages take equally long, and who stop at the deadline.

    `speeds` are the seconds of a whole round; each round they vary by a few per cent. A user of
    speed None hangs, and never answers.
    """

    def __init__(self, speeds, jitter=0.1):
        super().__init__(Clock(), dict.fromkeys(speeds, NEVER), None)
        self.speeds, self.jitter = dict(speeds), jitter
        self.made, self.failing = {}, set()
        self.rng = np.random.default_rng(0)

    def send(self, task, users):
        for user in sorted(self.free() & set(users)):
            if self.speeds[user] is None:
                continue
            seconds = self.speeds[user] * np.exp(self.jitter * self.rng.normal())
            stages = int(min(LAYERS, task.deadline * LAYERS // seconds))
            took = seconds * stages / LAYERS
            self.delays[user] = took + MESSAGES
            self.made[user] = encode(good(LAYERS + 1 - stages, took))
        super().send(task, users)

    def answer(self, user, round):
        failed = user in self.failing
        return Answer(user, round, Rejected("out of memory") if failed else self.made[user])


def network():
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(3, 3) for _ in range(LAYERS)))


def good(depth, seconds):
    return updates.of_ones(network(), depth, seconds)


SPEEDS = {"a": 0.1, "b": 0.2, "c": 0.4, "d": 0.8}


def federation(link, deadline, server=None):
    server = server or LiveServer(Problem.of(network()), 0.01)
    return Rounds(server, link, deadline, Grace(0.5), now=link.clock)


def reached(row):
    return sum(LAYERS + 1 - depth for depth in row.depths.values()) / (LAYERS * len(row.depths))


def test_the_first_rounds_wait_for_everybody_and_t_max_starts_close_to_its_target():
    link = Devices(SPEEDS)
    rounds = federation(link, Auto(0.7))
    rows = [rounds.next() for _ in range(30)]
    assert rows[0].deadline == tmax.FIRST
    assert [reached(row) for row in rows[: tmax.TRIALS]] == [1.0] * tmax.TRIALS
    assert rows[0].seconds < 1.5  # it closes when all have answered
    assert rows[1].deadline < 5  # what it may take is learned from it
    assert 0.2 < rows[3].deadline < 0.5  # a, b and c finish, or nearly, and d reaches a half
    assert np.mean([reached(row) for row in rows[3:]]) == pytest.approx(0.7, abs=0.06)
    assert [task.deadline for task in link.tasks] == [row.deadline for row in rows]
    assert rows[-1].limit == pytest.approx(rows[-1].deadline + 0.5)


@pytest.mark.parametrize("target", [0.4, 0.9])
def test_t_max_follows_its_target_and_devices_that_change(target):
    link, found = Devices(SPEEDS), []
    rounds = federation(link, Auto(target))
    for slower in (1, 3):
        link.speeds = {user: slower * seconds for user, seconds in SPEEDS.items()}
        rows = [rounds.next() for _ in range(90)]
        assert np.mean([reached(row) for row in rows[60:]]) == pytest.approx(target, abs=0.06)
        found.append(rounds.server.t_max)
    assert found[1] == pytest.approx(3 * found[0], rel=0.3)


def test_a_user_that_hangs_or_fails_does_not_stretch_t_max():
    link = Devices({**SPEEDS, "hangs": None, "fails": 0.1})
    link.failing.add("fails")
    rounds = federation(link, Auto(0.7))
    rows = [rounds.next() for _ in range(80)]
    assert rows[0].seconds == pytest.approx(tmax.FIRST + 0.5)  # once
    assert max(row.seconds for row in rows[1:]) < 1.5
    assert max(row.deadline for row in rows[20:]) < 0.6


def test_a_target_that_cannot_be_reached_stops_at_the_longest(monkeypatch):
    monkeypatch.setattr(tmax, "LONGEST", 5.0)
    link = Devices({"slow": 1e5})
    rounds = federation(link, Auto(0.7))
    rounds.server.t_max = 1.0
    for _ in range(40):
        row = rounds.next()
    assert row.deadline == 5.0


def test_nobody_who_answers_in_the_trials_means_more_trials():
    link = Devices({"slow": 1e5})
    rounds = federation(link, Auto(0.7))
    for _ in range(5):
        rounds.next()
    assert rounds.t_max.trying
    link.speeds["slow"] = 0.2
    rounds.next()
    assert not rounds.t_max.trying


def test_t_max_and_what_was_learned_survive_a_restart(tmp_path):
    link = Devices(SPEEDS)
    rounds = federation(link, Auto(0.7))
    for _ in range(20):
        rounds.next()
    first = rounds.server
    first.save(tmp_path / "state")
    second = LiveServer(Problem.of(network()), 0.01)
    again = federation(link, Auto(0.7), server=second)
    second.restore(tmp_path / "state")
    assert second.t_max == first.t_max > 0
    np.testing.assert_array_equal(second.reach.unreached(), first.reach.unreached())
    row = again.next()
    assert (row.round, row.deadline) == (21, first.t_max)


def test_a_schedule_is_kept_live():
    link = Devices(SPEEDS)
    rounds = federation(link, DeadlineSchedule((0.1, 0.2, 0.3)))
    assert [rounds.next().deadline for _ in range(4)] == [0.1, 0.2, 0.3, 0.3]


def test_p_l_follows_the_depths_at_the_deadline_that_was_found():
    rounds = federation(Devices({"a": 0.4}, jitter=0.4), Auto(0.5))
    rows = [rounds.next() for _ in range(60)]
    assert rows[0].unreached == (0.0,) * LAYERS  # while users have the time they need
    assert list(rows[-1].unreached) == sorted(rows[-1].unreached, reverse=True)
    assert 0.3 < rows[-1].unreached[0] <= MOST
