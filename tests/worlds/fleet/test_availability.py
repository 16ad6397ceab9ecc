"""When devices are available. Shares are tested with 4.5 standard errors unless said otherwise."""

import pickle

import numpy as np
import pytest

from salf.common.errors import SalfError
from salf.worlds.fleet import availability
from salf.worlds.fleet.availability import (
    DAY,
    Always,
    Clients,
    DayAndNight,
    Intervals,
    OnAndOff,
    sessions,
)

MANY = 4_000


def share(available, time, devices=MANY):
    who = np.arange(devices)
    return float((available.window(who, np.full(devices, float(time)))[0] == time).mean())


def near(found, wanted, devices=MANY):
    assert abs(found - wanted) <= 4.5 * np.sqrt(wanted * (1 - wanted) / devices), (found, wanted)


def test_always_is_now():
    assert Always().window(np.arange(2), np.array([3.0, 4.0]))[0].tolist() == [3.0, 4.0]


def test_intervals_by_hand():
    own = Intervals({0: [(1, 2), (4, 6)], 1: [(0, 3)]})
    who, at = np.array([0, 0, 0, 1, 1, 2]), np.array([0.0, 1.5, 2.0, 2.0, 3.0, 0.0])
    assert own.window(who, at)[0].tolist() == [1, 1.5, 4, 2, np.inf, np.inf]
    assert own.active(np.array([0, 1, 2]), 0.0, 5.0).tolist() == [2, 3, 0]
    # Of user 0's work, 1 s is done at 2, 2 s at 5, and 4 s never.
    assert own.elapsed(np.array([0]), 0.0, np.array([[1.0, 2.0, 4.0]])).tolist() == [[2, 5, np.inf]]


def test_intervals_are_repeated_after_their_period():
    own = Intervals({0: [(1, 2), (4, 6)], 1: [(0, 3)]}, {0: 10.0})
    who, at = np.array([0, 0, 0, 1]), np.array([6.0, 11.5, 34.0, 3.0])
    assert own.window(who, at)[0].tolist() == [11, 11.5, 34, np.inf]
    assert own.window(who, at)[1].tolist() == [12, 12, 36, np.inf]


def test_intervals_from_a_file(tmp_path):
    (tmp_path / "a.csv").write_text("device,start,end\n0,5,6\n0,1,2\n1,0,9\n")
    own = Intervals.csv(tmp_path / "a.csv")
    assert own.window(np.array([0, 0]), np.array([0.0, 3.0]))[0].tolist() == [1, 5]
    (tmp_path / "b.csv").write_text("who,start\n0,5\n")
    with pytest.raises(SalfError, match="must have numbers in the columns device, start, end"):
        Intervals.csv(tmp_path / "b.csv")


@pytest.mark.parametrize("wrong", [[(2, 1)], [(0, 2), (1, 3)], []])
def test_intervals_that_cannot_be_are_refused(wrong):
    with pytest.raises(SalfError, match="intervals of device 3"):
        Intervals({3: wrong})


def test_day_and_night_gives_every_device_its_share_of_each_day():
    available, who = DayAndNight(part=0.25), np.arange(50)
    for start in (0.0, 7.3 * DAY):
        np.testing.assert_allclose(available.active(who, start, DAY), 0.25 * DAY)


def test_most_devices_are_available_at_night():
    night, day = share(DayAndNight(), 2 * 3600), share(DayAndNight(), 14 * 3600)
    assert night > 0.9
    assert day < 0.05
    assert share(DayAndNight(), 2 * 3600 + 3 * DAY) == night


@pytest.mark.parametrize("time", [0.0, 50.0, 5_000.0])
@pytest.mark.parametrize(
    ("available", "wanted"), [(OnAndOff(60, 240), 0.2), (sessions(0.3, 20.0, 1.0), 0.3)]
)
def test_devices_come_and_go_and_are_in_equilibrium_from_the_start(available, wanted, time):
    near(share(available, time), wanted)


def test_sessions_have_their_median_and_phones_are_rarely_available():
    """The median of new sessions: 4.5 standard errors of a share of a half."""
    available, who = sessions(), np.arange(MANY)
    near(share(available, 0.0), 0.095)
    _, closes = available.window(who, np.zeros(MANY))
    opens, ends = available.window(who, closes)
    near(float((ends - opens < 181).mean()), 0.5)


def test_clients_have_the_sessions_and_gaps_of_the_measured_ones_and_shares_of_their_own():
    """Parts of new sessions and gaps below measured quantiles, and of clients below shares."""
    available, who = Clients(seed=2), np.arange(MANY)
    shares = available.time_available(who)
    for below, part in ((0.59, 0.05), (0.77, 0.5), (0.99, 0.95)):
        near(float((shares < below).mean()), part)
    for time in (0.0, 1e5):
        near(share(available, time), shares.mean())
    _, closes = available.window(who, np.full(MANY, 5e4))
    opens, ends = available.window(who, closes)
    for below, part in ((29, 0.2), (490, 0.5), (4_900, 0.8), (88e3, 0.99)):
        near(float((ends - opens < below).mean()), part)
    # A gap is as long as measured at a share of the mean lengths of sessions and gaps, 0.76.
    scale = (1 / shares - 1) * Clients.ON.mean / Clients.OFF.mean
    for below, part in ((15, 0.5), (1_900, 0.8), (41e3, 0.99)):
        near(float(((opens - closes) / scale < below).mean()), part)


def test_what_a_device_does_depends_on_nobody_else_and_not_on_who_asked_before():
    available = OnAndOff(10, 30, seed=5)
    alone = available.window(np.array([7]), np.array([444.0]))
    together = available.window(np.arange(20), np.full(20, 444.0))
    assert (alone[0][0], alone[1][0]) == (together[0][7], together[1][7])
    again = OnAndOff(10, 30, seed=5).window(np.array([7]), np.array([444.0]))
    assert again == alone
    assert OnAndOff(10, 30, seed=6).window(np.array([7]), np.array([444.0])) != alone


def test_later_times_are_not_looked_for_from_the_beginning(monkeypatch):
    """The cycles of 10,000 s are 250 blocks; the next times are in the last ones."""
    available, drawn = OnAndOff(1, 0.25, seed=5), []
    block = OnAndOff._block

    def counted(self, *at):
        drawn.append(self)
        return block(self, *at)

    monkeypatch.setattr(OnAndOff, "_block", counted)
    who, work = np.arange(3), np.full((3, 2), 5.0)
    available.elapsed(who, 10_000.0, work)
    for start in (10_010.0, 10_020.0, 10_015.0, 10_080.0):  # also a little back
        drawn.clear()
        found = available.elapsed(who, start, work)
        assert len(drawn) < 60  # two or three for each session of 1 s
        other = OnAndOff(1, 0.25, seed=5)
        np.testing.assert_array_equal(found, other.elapsed(who, start, work))
        assert sum(each is other for each in drawn) > 200


def test_windows_follow_each_other_without_overlap():
    for available in (
        OnAndOff(10, 30),
        sessions(0.2, 5.0, 2.0),
        DayAndNight(period=100, spread=9),
        Clients(),
    ):
        who, now = np.arange(40), np.zeros(40)
        for _ in range(60):
            opens, closes = available.window(who, now)
            assert (opens >= now).all()
            assert (closes > opens).all()
            inside = (opens + closes) / 2
            np.testing.assert_array_equal(available.window(who, inside)[0], inside)
            now = closes


def test_users_have_the_availability_of_their_devices():
    own = Intervals({0: [(0, 1)], 1: [(5, 6)]}).of(np.array([1, 0]))
    assert own.window(np.array([0, 1]), np.zeros(2))[0].tolist() == [5, 0]


@pytest.mark.parametrize(
    ("spec", "kind"),
    [("always", Always), ("day-night", DayAndNight), ("sessions", availability.OnAndOff)],
)
def test_availability_as_people_write_it(spec, kind):
    assert isinstance(availability.parse(spec), kind)


@pytest.mark.parametrize("spec", ["sometimes", "markov", "markov:1", "markov:0,5", "none.csv"])
def test_availability_that_cannot_be_read_is_refused(spec):
    with pytest.raises(SalfError):
        availability.parse(spec)


def test_a_copy_does_not_know_what_was_looked_at():
    """So a fleet is the same object to a run that continues, whoever used it in between."""
    available = OnAndOff(10, 30, seed=5)
    before = pickle.dumps(available)
    wanted = available.window(np.array([7]), np.array([444.0]))
    assert pickle.dumps(available) == before
    assert pickle.loads(before).window(np.array([7]), np.array([444.0])) == wanted
