"""Reach learned from depths: it converges to the truth, and treats censoring right."""

import numpy as np
import pytest
import torch
from by_hand import timing_of

import interrupted
import salf
from salf.common.errors import SalfError
from salf.core.draws import Keyed
from salf.runs.config import Config
from salf.worlds.fleet.cost import Cost
from salf.worlds.fleet.devices import Fleet
from salf.worlds.fleet.jitter import ExponentialLayers, LogNormal
from salf.worlds.fleet.learned import LearnedReach

LAYERS, USERS = 5, 12
EVERYBODY = np.arange(USERS)
# Five layers of 1 s each on the median device; the fastest is 2.7 times as fast as the slowest.
COST = Cost(np.zeros(LAYERS), np.full(LAYERS, 1 / 16), np.ones(LAYERS))
SPEEDS = np.exp(np.linspace(-0.5, 0.5, USERS))


def timing(jitter, speeds=SPEEDS):
    return timing_of(Fleet.of(speeds, jitter=jitter, counted="layers"), COST, rows=16)


def depths(times, seconds, t, users=None):
    users = np.arange(times.users) if users is None else users
    drawn = times.round(Keyed(1, t), users, 0.0)
    return drawn.tasks.arrivals(drawn.reached(seconds)).depth


def learned(times, deadlines, rounds=400, nominal=None, **settings):
    """What is known after so many rounds with these deadlines in turn."""
    users = np.arange(times.users)
    model = LearnedReach(times.expected_done(users) if nominal is None else nominal, **settings)
    known = model.start()
    for t in range(1, rounds + 1):
        seconds = deadlines[t % len(deadlines)]
        known = model.learn(known, users, seconds, depths(times, seconds, t))
    return model, known


@pytest.mark.parametrize("law", [LogNormal(0.3), ExponentialLayers()])
@pytest.mark.parametrize("seconds", [3.0, 6.0])
def test_it_converges_to_the_truth(law, seconds):
    # 400 observations of a user: a share of 1/2 has a standard error of 0.025.
    times = timing(law)
    model, known = learned(times, [seconds], nominal=2 * times.expected_done(EVERYBODY), memory=1.0)
    truth = times.reach(EVERYBODY, 0.0, seconds)
    error = np.abs(model.reach(known, EVERYBODY, seconds) - truth)
    assert error.mean() < 0.03
    assert error.max() < 0.12
    before = np.abs(model.reach(model.start(), EVERYBODY, seconds) - truth)
    assert before.mean() > 2 * error.mean()  # it did learn


@pytest.mark.parametrize("law", [LogNormal(0.3), ExponentialLayers()])
def test_it_predicts_deadlines_that_were_not_tried(law):
    times = timing(law)
    model, known = learned(times, [4.0], memory=1.0)
    for seconds in (2.5, 6.0):
        truth = times.reach(EVERYBODY, 0.0, seconds)
        error = np.abs(model.reach(known, EVERYBODY, seconds) - truth)
        assert error.mean() < 0.05
        tried = np.abs(times.reach(EVERYBODY, 0.0, 4.0) - truth)
        assert error.mean() < tried.mean() / 3  # better than to take over what was seen


def test_who_always_finishes_or_never_does_is_only_known_to_be_faster_or_slower():
    nominal = np.arange(1.0, LAYERS + 1)[None].repeat(2, axis=0)
    model = LearnedReach(nominal, memory=1.0)
    known, users = model.start(), np.arange(2)
    for _ in range(50):
        known = model.learn(known, users, 3.0, np.array([1, LAYERS + 1]))
    full, nothing = model.reach(known, users, 3.0).T
    assert full.min() > 0.93
    assert nothing.max() < 0.07
    # Not "its time is the deadline": much faster and much slower users would look the same.
    assert 0.05 < model.reach(known, users[:1], 2.0)[0, 0] < 0.95
    assert 0.05 < model.reach(known, users[1:], 4.0)[-1, 0] < 0.95


def test_a_user_with_few_observations_is_taken_for_one_of_the_fleet():
    nominal = np.tile(np.arange(1.0, LAYERS + 1), (20, 1))
    times = timing(LogNormal(0.1), speeds=np.full(20, 1 / 3))  # 3 times as slow as nominal
    model = LearnedReach(nominal)
    known, others = model.start(), np.arange(1, 20)
    for t in range(1, 21):
        known = model.learn(known, others, 8.0, depths(times, 8.0, t, others))
    new = np.array([0])
    truth = times.reach(np.arange(20), 0.0, 8.0)[:, :1]
    assert np.abs(model.reach(known, new, 8.0) - truth).max() < 0.1
    assert np.abs(model.reach(model.start(), new, 8.0) - truth).max() > 0.4
    for _ in range(10):  # but its own depths count more
        known = model.learn(known, new, 8.0, np.array([1]))
    assert model.reach(known, new, 8.0)[0, 0] > 0.8


def test_old_observations_fade():
    nominal = np.arange(1.0, LAYERS + 1)[None]
    user = np.array([0])
    model = LearnedReach(nominal)
    known = model.start()
    for _ in range(300):
        known = model.learn(known, user, 3.0, np.array([1]))
    for _ in range(100):  # now it is slow
        known = model.learn(known, user, 3.0, np.array([LAYERS + 1]))
    assert model.reach(known, user, 3.0)[0, 0] < 0.4


def test_users_in_parts_are_computed_as_all_at_once(monkeypatch):
    whole, known = learned(timing(ExponentialLayers()), [3.0], 5)
    monkeypatch.setattr("salf.worlds.fleet.learned.AT_ONCE", 1)
    parts, known_in_parts = learned(timing(ExponentialLayers()), [3.0], 5)
    np.testing.assert_array_equal(known, known_in_parts)
    np.testing.assert_allclose(
        whole.reach(known, EVERYBODY, 3.0), parts.reach(known, EVERYBODY, 3.0), rtol=1e-12
    )


def test_too_many_users_are_refused_with_the_way_out():
    with pytest.raises(SalfError, match="use reach = known"):
        LearnedReach(np.ones((10_001, 2)))


SMALL = {"data": "digits", "lr": 0.3, "users": 8, "batch_size": 4, "threads": 1, "rounds": 12}
PHONES = {"fleet": "phones:speed=0.02,jitter=0.2", "deadline": "auto"}


def test_a_simulated_run_learns_p_l_and_continues_bit_for_bit(tmp_path):
    config = Config(**SMALL, **PHONES, reach="learned", cohort=5)

    whole = salf.run(config, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        salf.run(config, tmp_path / "part", on_round=interrupted.at(5), checkpoint_every=0)
    resumed = salf.run(config, tmp_path / "part", resume=True)
    assert [row.train_loss for row in resumed.history.rows] == [
        row.train_loss for row in whole.history.rows
    ]
    known = salf.run(config.changed(reach="known"))
    pairs = zip(whole.history.rows, known.history.rows, strict=True)
    assert any(ours.train_loss != theirs.train_loss for ours, theirs in pairs)
    assert all(torch.isfinite(torch.tensor(row.train_loss)) for row in whole.history.rows)


def test_learned_reach_needs_a_fleet():
    with pytest.raises(SalfError, match="reach learned needs a fleet"):
        Config(**SMALL, reach="learned")
