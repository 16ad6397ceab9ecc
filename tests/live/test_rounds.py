"""Rounds by a made-up clock: they close in time, whatever users do."""

from functools import partial
from itertools import pairwise
from math import inf

import pytest
import torch
import updates
from links import NEVER, Clock, MadeUpLink

from nets import mlp
from salf.common.errors import SalfError
from salf.live.rounds import Answer, Grace, Rounds
from salf.live.server import LiveServer, ServerSettings
from salf.live.update import Rejected
from salf.problem import Problem

LAYERS = 2


network = partial(mlp, 3, 4, 2)


def good(depth=1, seconds=0.0):
    return updates.of_ones(network(), depth, seconds)


def fail(link, *users):
    """These users fail from now on, or all; what is returned mends them."""
    answer, reason = link.answer, Rejected("out of memory")
    link.answer = lambda user, round: (
        Answer(user, round, reason) if user in (users or [user]) else answer(user, round)
    )
    return lambda: setattr(link, "answer", answer)


def rounds(delays, deadline=1.0, grace=0.5, method="salf", robust="none", **more):
    clock = Clock()
    settings = ServerSettings(method=method, unreached=[0.0] * LAYERS, robust=robust)
    server = LiveServer(Problem.of(network()), 0.1, settings)
    link = MadeUpLink(clock, delays, lambda: good(seconds=link.work))
    link.work = more.pop("work", 0.0)  # seconds of its delay
    grace = None if grace is None else Grace(grace)
    return Rounds(server, link, deadline, grace, now=clock, **more), link, clock


def test_a_round_closes_as_soon_as_all_have_answered():
    federation, link, _ = rounds({"a": 0.2, "b": 1.4})  # in the grace period
    row = federation.next()
    assert row.seconds == pytest.approx(1.4)
    assert row.depths == {"a": 1, "b": 1}
    assert row.limit == 1.5
    (task,) = link.tasks
    assert (task.round, task.deadline) == (1, 1.0)
    assert task.weights.keys() == dict(network().named_parameters()).keys()


def test_a_user_that_hangs_costs_the_deadline_and_the_grace_period_and_no_more():
    federation, link, _ = rounds({"a": 0.2, "b": NEVER})
    for t in (1, 2, 3):
        row = federation.next()
        assert row.round == t
        assert row.depths == {"a": 1, "b": LAYERS + 1}
        assert row.silent == ("b",)
        # It is asked once only, and never works through a queue of old rounds; so from then on
        # nobody waits for it.
        assert row.seconds == pytest.approx(1.5 if t == 1 else 0.2)
    assert link.asked == {"b": (1, NEVER)}


def test_what_comes_late_is_counted_and_dropped_and_its_user_takes_part_again():
    federation, _, _ = rounds({"a": 0.2, "slow": 1.8})
    before = {n: w.detach().clone() for n, w in federation.server.weights.items()}
    assert federation.next().depths["slow"] == LAYERS + 1  # asked at 0, closed at 1.5
    row = federation.next()  # from 1.5 on: a answers at 1.7, slow's of round 1 would come at 1.8
    assert (row.late, row.seconds) == (0, pytest.approx(0.2))
    row = federation.next()
    assert (row.late, row.silent) == (1, ("slow",))
    assert federation.next().depths["slow"] == LAYERS + 1  # asked again, and late again
    for name, weight in federation.server.weights.items():  # four steps of 0.1, all by a alone
        torch.testing.assert_close(weight.detach(), before[name] - 0.4)


def test_a_user_that_is_killed_is_not_waited_for():
    federation, link, _ = rounds({"a": 0.2, "b": 0.9})
    answer = link.answer

    def answer_and_lose_b(user, round):
        link.gone.add("b")
        return answer(user, round)

    link.answer = answer_and_lose_b
    row = federation.next()
    assert row.seconds == pytest.approx(0.2)
    assert row.depths == {"a": 1, "b": LAYERS + 1}
    link.answer = answer
    assert federation.next().depths == {"a": 1}
    link.asked.clear()
    link.gone.clear()  # it comes back, and takes part again
    assert federation.next().depths == {"a": 1, "b": 1}


def test_with_all_users_gone_the_server_waits_says_so_and_goes_on_when_one_returns():
    said = []
    federation, link, clock = rounds({"a": 0.2}, on_wait=said.append)
    link.gone.add("a")
    link.returning["a"] = clock.time + 50
    row = federation.next()
    assert row.depths == {"a": 1}
    assert row.seconds == pytest.approx(0.2)  # it began when there was somebody
    assert clock.time == pytest.approx(150.2, abs=0.3)
    assert said == ["no users are connected; waiting for one.", "a user is ready; continuing."]


def test_when_everybody_is_at_work_on_an_earlier_round_no_empty_rounds_are_run():
    said = []
    federation, _, clock = rounds({"a": 4.0, "b": 5.0}, on_wait=said.append)
    assert federation.next().silent == ("a", "b")
    row = federation.next()
    assert row.late == 2  # a came while there was nobody to ask, b during this round
    assert clock.time == pytest.approx(100 + 4.0 + 1.5)
    assert said[0] == "all 2 users are busy with earlier rounds; waiting for one."


def test_fedavg_gives_users_no_deadline_and_says_for_whom_it_waits_ever_more_rarely():
    said = []
    federation, link, _ = rounds(
        {"quick": 0.1, "slow": 150.0}, deadline=None, method="fedavg", on_wait=said.append
    )
    row = federation.next()
    assert (row.depths, row.limit) == ({"quick": 1, "slow": 1}, None)
    assert row.seconds == pytest.approx(150.0)
    assert link.tasks[0].deadline is None
    assert len(said) == 3  # at 30, 60 and 120 s
    assert all(line.startswith("waiting for slow (") for line in said)


def test_the_step_is_part_of_the_round_so_answers_are_taken_until_it_has_to_begin():
    federation, _, clock = rounds({"a": 0.2, "b": NEVER})
    close = federation.server.close

    def slow_close():
        clock.time += 0.3
        return close()

    federation.server.close = slow_close
    federation.next()
    federation.link.asked.clear()
    row = federation.next()
    assert row.seconds == pytest.approx(1.5)  # closed in time: it stopped at 1.2


def test_a_deadline_that_is_none_is_refused_and_only_fedavg_goes_without():
    for deadline in (0.0, -1.0, inf, float("nan")):
        with pytest.raises(SalfError, match="must be a positive time"):
            rounds({"a": 0.1}, deadline=deadline)
    with pytest.raises(SalfError, match="drop needs a deadline"):
        rounds({"a": 0.1}, deadline=None, method="drop")


def test_a_learned_grace_period_follows_the_messages_and_not_the_work():
    federation, _, _ = rounds({"a": 0.7, "b": 0.8, "c": 0.8}, grace=None, work=0.6)
    for _ in range(10):
        federation.next()
    assert federation.grace.seconds(1.0) == pytest.approx(1.5 * 0.2)


def test_the_grace_period_learns_from_late_answers_so_that_it_can_grow():
    federation, _, _ = rounds({"a": 0.1, "far": 6.0}, deadline=1.0, grace=None, work=0.1)
    for _ in range(300):
        federation.next()
    assert federation.grace.seconds(1.0) < 1.0  # the largest does not count
    federation, _, _ = rounds({"a": 3.0, "b": 3.0}, deadline=1.0, grace=None, work=0.5)
    assert federation.next().silent == ("a", "b")
    for _ in range(20):
        row = federation.next()
    assert row.silent == ()


def test_one_user_of_eight_that_answers_as_late_as_it_can_does_not_stretch_the_grace_period():
    honest = dict.fromkeys("abcdefg", 0.03)
    federation, link, _ = rounds({**honest, "liar": 0.0}, deadline=0.05, grace=None, work=0.02)
    for _ in range(200):
        link.delays["liar"] = 0.05 + federation.grace.seconds(0.05) - 0.001
        federation.next()
    assert federation.grace.seconds(0.05) == pytest.approx(1.5 * 0.01)


def test_the_grace_period_is_at_most_ten_deadlines_whoever_reports_what():
    grace = Grace(first=0.2, most=60.0, tolerate=2)
    for user in "abcdefgh":
        grace.learn(user, 50.0)
    assert grace.seconds(0.05) == 0.5
    assert grace.seconds(0.01) == 0.2
    assert grace.seconds(None) == grace.seconds(1e3) == 60.0


def test_a_user_cannot_stretch_the_grace_period_by_what_it_says():
    for grace, seconds in ((Grace(most=2.0), 2.0), (Grace(0.25), 0.25)):
        for _ in range(100):
            grace.learn("a", 50.0)
        assert grace.seconds(1.0) == seconds
    with pytest.raises(SalfError, match="grace period must be a time"):
        Grace(-1.0)
    federation, link, _ = rounds({"a": 0.2}, grace=None)
    for claimed in (-1e8, 1e8):
        link.work = claimed
        for _ in range(10):
            federation.next()
    assert 0.0 <= federation.grace.seconds(1.0) <= 1.5 * 0.2 + 1e-9


def test_when_all_users_fail_rounds_are_not_used_up_until_they_are_mended():
    said = []
    federation, link, clock = rounds({"a": 0.1, "b": 0.1}, on_wait=said.append)
    mend, began = fail(link), []
    for _ in range(8):
        federation.next()
        began.append(clock.time)
    pauses = [after - before - 0.1 for before, after in pairwise(began)]
    assert pauses == pytest.approx([1, 2, 4, 8, 16, 32, 64], abs=0.3)
    assert len(said) == 8
    assert said[0].startswith("all users failed in round 1 (the last was b: out of memory)")
    mend()
    federation.next()  # after the last pause
    mended = clock.time
    for _ in range(3):
        federation.next()
    assert clock.time == pytest.approx(mended + 0.3)
    fail(link)
    federation.next()
    assert said[-1].endswith("starts in 1 s.")


def test_a_user_that_hangs_does_not_hide_that_all_others_fail():
    said = []
    federation, link, clock = rounds({"hung": NEVER, "a": 0.1, "b": 0.1}, on_wait=said.append)
    federation.next()  # in which it begins to hang
    fail(link)
    began = clock.time
    for _ in range(6):
        federation.next()
    assert clock.time - began > 1 + 2 + 4 + 8 + 16
    assert len(said) == 6


def test_a_wait_of_a_moment_is_not_worth_a_word():
    said = []
    federation, _, _ = rounds({"a": 2.5}, on_wait=said.append)  # late, and free a second later
    for _ in range(3):
        federation.next()
    assert said == []


def test_users_who_left_lose_their_votes_and_the_record_says_so():
    federation, link, _ = rounds(dict.fromkeys("abcd", 0.1), robust="mixed")
    assert federation.next().gone == ()
    there = link.users()
    link.users = lambda: [user for user in there if user != "d"]
    assert federation.next().gone == ("d",)
    assert federation.next().gone == ()
    recall = federation.server.pipeline.recall
    assert recall.voters(3, 0) == ["a", "b", "c"]


def test_rounds_in_which_all_failed_say_nothing_about_who_reaches_what():
    federation, link, _ = rounds({"a": 0.1, "b": 0.1})
    federation.server.given_unreached = None
    federation.next()
    mend = fail(link)
    for _ in range(20):
        federation.next()
    mend()
    assert federation.next().unreached == (0.0, 0.0)
    link.delays = {"a": NEVER, "b": NEVER}  # but these are late, which is what p_l is about
    federation.next()
    assert federation.server.reach.unreached()[0] > 0


@pytest.mark.parametrize(
    ("b", "rejected", "late", "end"),
    [
        (0.1, [(("b", "out of memory"),)] * 3, 0, 100.6),
        (1.6, [()] * 3, 1, 103.2),  # a failure of an earlier round is not held against this one
    ],
)
def test_one_user_that_fails_slows_nobody_down(b, rejected, late, end):
    said = []
    federation, link, clock = rounds({"a": 0.2, "b": b}, on_wait=said.append)
    fail(link, "b")
    rows = [federation.next() for _ in range(3)]
    assert [row.rejected for row in rows] == rejected
    assert sum(row.late for row in rows) == late
    assert clock.time == pytest.approx(end)
    assert said == []


def test_one_slow_step_does_not_cost_the_rounds_after_it_their_users():
    federation, _, clock = rounds({"a": 0.9, "b": 1.3})
    close = federation.server.close

    def slow_close():
        clock.time += 5.0
        federation.server.close = close
        return close()

    federation.server.close = slow_close
    federation.next()
    for _ in range(5):
        row = federation.next()
        assert row.depths["a"] == 1  # T_max is the users', whatever a step took
    assert row.depths == {"a": 1, "b": 1}


def test_who_comes_after_a_round_has_begun_is_asked_in_the_next_one():
    federation, link, _ = rounds({"a": 0.2})
    send = link.send

    def send_when_another_has_come(task, users):
        link.delays["new"] = 0.1
        send(task, users)

    link.send = send_when_another_has_come
    row = federation.next()
    assert (row.depths, row.rejected) == ({"a": 1}, ())
    assert federation.next().depths == {"a": 1, "new": 1}


def test_when_the_last_user_goes_just_before_it_is_asked_the_server_goes_on():
    federation, link, clock = rounds({"a": 0.2})
    users, there = link.users, iter([True, False])
    link.users = lambda: users() if next(there, True) else set()
    assert federation.next().depths == {}
    assert federation.next().depths == {"a": 1}
    assert clock.time == pytest.approx(100.2)


def test_a_cohort_is_drawn_from_the_free_users_anew_each_round():
    users = [f"u{n}" for n in range(8)]
    federation, _, _ = rounds(dict.fromkeys(users, 0.1) | {"slow": 5.0}, cohort=3)
    asked = [set(federation.next().depths) for _ in range(30)]
    assert {len(each) for each in asked} == {3}
    assert len({frozenset(each) for each in asked}) > 10
    assert set().union(*asked) == {*users, "slow"}
    assert all(asked.count(each) < 10 for each in asked)
    federation, _, _ = rounds({"a": 0.1, "b": 0.1}, cohort=3)  # of fewer it is all
    assert set(federation.next().depths) == {"a", "b"}
