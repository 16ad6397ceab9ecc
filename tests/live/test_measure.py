"""A fleet from the record of a live run simulates that run."""

from dataclasses import replace

import numpy as np
import pytest

import salf
from salf.common.errors import SalfError
from salf.core.draws import Keyed
from salf.core.rows import Row, append, read
from salf.live.agreement import agreement, measure
from salf.live.measure import from_rows
from salf.runs.config import Config
from salf.runs.folder import CONFIG, ROUNDS
from salf.runs.live_config import LiveConfig
from salf.worlds.fleet.cost import Cost
from salf.worlds.fleet.deadlines import Constant
from salf.worlds.fleet.devices import Fleet
from salf.worlds.fleet.jitter import Traces
from salf.worlds.fleet.timing import Timing
from salf.worlds.fleet.world import OnFleet


def row(t, stages, arrived, seconds, deadline=1.0, limit=1.5, silent=(), layers=2, **more):
    """A live round of users who completed these stages."""
    depths = {user: layers + 1 - len(own) for user, own in stages.items()}
    depths |= dict.fromkeys(silent, layers + 1)
    reached = tuple(sum(d <= layer for d in depths.values()) for layer in range(1, layers + 1))
    times = {"seconds": seconds, "limit": limit, "deadline": deadline, "arrived": arrived}
    return Row(t, 1.0, reached, depths=depths, silent=silent, stages=stages, **times, **more)


def test_stages_and_overhead_of_rounds_by_hand():
    rows = [
        row(1, {"a": (0.4, 0.2), "b": (0.5,)}, {"a": 0.7, "b": 0.8}, 0.9),
        row(2, {"a": (0.4, 0.2), "b": ()}, {"a": 0.65, "b": 0.1}, 0.7),
        row(3, {"a": (0.8,)}, {"a": 0.9}, 1.5, silent=("b",)),
    ]
    measured = from_rows(rows, 16)
    a, b = measured.devices["a"], measured.devices["b"]
    # In round 3, a was twice as slow as usual, so layer 1 would have taken it 0.4 s.
    np.testing.assert_allclose(a.stages, [[0.4, 0.2], [0.4, 0.2], [0.8, 0.4]])
    # b never completed layer 1, which takes others half of the first stage: here 0.25 s. But it
    # stopped with 0.5 s left, so that would not have fitted; and nothing at all did later.
    np.testing.assert_allclose(b.stages[0], [0.5, 0.5], rtol=1e-5)
    assert (b.stages.cumsum(axis=1) > 1).sum(axis=1).tolist() == [1, 2, 2]
    # From the message to the new model, less the stages: 0.7 - 0.6 and the step's 0.1 s.
    np.testing.assert_allclose(a.overhead, [0.2, 0.1, 0.7], atol=1e-9)
    # In round 3 it was waited for until the end.
    np.testing.assert_allclose(b.overhead, [0.4, 0.15, 1.5], atol=1e-9)


def test_the_file_is_a_fleet_and_rounds_are_drawn_together(tmp_path):
    rows = [
        row(1, {"a": (0.4, 0.2), "b": (0.5,)}, {"a": 0.7, "b": 0.8}, 0.9, limit=1.2),
        row(2, {"a": (0.3, 0.1), "b": ()}, {"a": 0.45, "b": 0.1}, 0.5, limit=1.2),
    ]
    measured = from_rows(rows, 16)
    measured.write(tmp_path / "fleet.csv")
    fleet = Fleet.csv(tmp_path / "fleet.csv")
    assert len(fleet) == 2
    traces, ours = fleet.devices.jitter, measured.fleet().devices.jitter
    assert isinstance(traces, Traces)
    for read_back, known in zip(traces.rounds, ours.rounds, strict=True):
        np.testing.assert_allclose(read_back, known, rtol=1e-8)
    np.testing.assert_allclose(fleet.devices.speed, measured.fleet().devices.speed, rtol=1e-8)
    cost = Cost(np.zeros(2), np.ones(2), np.zeros(2))
    one = np.ones(2, np.int64)
    timing = Timing(fleet.devices, cost, lambda u: 16 * one[u], lambda u: one[u])
    world = OnFleet(timing, Constant(1.0))
    memory, seen = world.start(), set()
    for t in range(1, 30):
        arrived, memory = world.arrivals(t, Keyed(0, t), np.arange(2), memory)
        seen.add((*arrived.depth.tolist(), round(arrived.spent.seconds, 6)))
    assert seen == {(1, 2, 0.9), (1, 3, 0.5)}  # the two rounds that were recorded, whole


def test_larger_batches_take_longer_in_proportion(tmp_path):
    rows = [row(t, {"a": (0.4, 0.2)}, {"a": 0.7}, 0.8, rows={"a": 8}) for t in (1, 2)]
    measured = from_rows(rows, 16)
    measured.write(tmp_path / "fleet.csv")
    devices = Fleet.csv(tmp_path / "fleet.csv").devices
    cost = Cost(np.zeros(2), np.ones(2), np.zeros(2))
    for size, seconds in ((8, 0.6), (16, 1.2)):
        rows_of = np.array([size])
        timing = Timing(devices, cost, lambda u, r=rows_of: r[u], lambda u: np.ones(len(u), int))
        done = timing.round(Keyed(0, 1), np.array([0]), 0.0).done
        assert done[0, -1] == pytest.approx(seconds)


def live_rounds(rounds, deadline, seed=0, parts=(0.6, 0.4)):
    """Rounds of users who stop before the stage that does not fit, some of whom never start."""
    rng = np.random.default_rng(seed)
    speeds = {"user-1": 0.3, "user-2": 0.7, "user-10": 2.4, "user-11": 6.0}
    rows = []
    for t in range(1, rounds + 1):
        busy = np.exp(0.2 * rng.normal())  # of the machine that all of them share
        stages, arrived = {}, {}
        for user, seconds in speeds.items():
            times = seconds * busy * np.exp(0.1 * rng.normal()) * np.array(parts)
            fit = int((times.cumsum() <= deadline).sum())
            stages[user] = tuple(times[:fit])
            worked = float(times[:fit].sum()) if fit else deadline  # in vain
            arrived[user] = worked + 0.1 * np.exp(0.3 * rng.normal())
        seconds = max(arrived.values()) + 0.02
        rows.append(row(t, stages, arrived, seconds, deadline, layers=len(parts)))
    return rows


def test_simulated_with_the_fleet_depths_and_round_times_agree():
    rows = live_rounds(200, 1.0)
    found = agreement(from_rows(rows[::2], 16), rows[1::2])
    assert found.users == ("user-1", "user-2", "user-10", "user-11")
    assert found.variation.mean() < 0.1
    assert found.simulated_seconds == pytest.approx(found.live_seconds, rel=0.05)
    assert "Mean duration of a round" in str(found)
    # A control: the fleet of another run does not agree with it.
    slower = [replace(each, stages=dict.fromkeys(each.stages, ())) for each in rows[::2]]
    other = agreement(from_rows([*slower, *rows[:2]], 16), rows[1::2])
    assert other.variation.mean() > 0.3


@pytest.mark.parametrize("deadline", [0.6, 1.5])
def test_a_deadline_that_was_not_measured_is_predicted(deadline):
    """user-10 completes its first stage in 5 % of the rounds by 1 s, and in 57 % by 1.5 s."""
    measured = from_rows(live_rounds(200, 1.0), 16)
    found = agreement(measured, live_rounds(200, deadline, seed=1))
    assert found.variation[:3].mean() < 0.15
    # The naive way, no longer than T_max where nothing was completed, has user-10 always succeed.
    assert 0.1 < found.simulated[2, 0] < 0.6 or deadline < 1


def test_rounds_that_wait_for_all_are_measured_too():
    rows = live_rounds(100, np.inf)
    rows = [replace(each, deadline=None, limit=None) for each in rows]
    found = agreement(from_rows(rows[::2], 16), rows[1::2])
    assert found.variation.max() == 0
    assert found.simulated_seconds == pytest.approx(found.live_seconds, rel=0.1)


def test_a_record_without_times_is_refused_with_the_way_out():
    with pytest.raises(SalfError, match="no layer times"):
        from_rows([row(1, {}, {}, 1.0, silent=("a",))], 16)
    with pytest.raises(SalfError, match="nobody completed all layers"):
        from_rows([row(1, {"a": (0.4,)}, {"a": 0.5}, 1.0)], 16)


def test_a_folder_is_measured_and_its_fleet_runs(tmp_path):
    config = LiveConfig(data="digits", users=4, deadline=1.0, batch_size=16, model="mlp")
    (tmp_path / CONFIG).write_text(config.to_toml())
    for each in live_rounds(20, 1.0, parts=(0.5, 0.4, 0.1)):
        append(tmp_path / ROUNDS, each)
    assert read(tmp_path / ROUNDS)[0].stages["user-1"]
    measured, found = measure(tmp_path)
    measured.write(tmp_path / "fleet.csv")
    assert found.variation.mean() < 0.15
    fleet = str(tmp_path / "fleet.csv")
    simulated = Config(data="digits", users=4, rounds=5, deadline=1.0, fleet=fleet, threads=1)
    history = salf.run(simulated).history
    assert history.rows[-1].clock == pytest.approx(5 * found.live_seconds, rel=0.5)


def test_a_user_that_was_there_for_one_round_is_left_out_of_the_comparison():
    rows = live_rounds(40, 1.0)
    guest = replace(rows[1], depths={**rows[1].depths, "user-9": 1})
    found = agreement(from_rows(rows[::2], 16), [guest, *rows[3::2]])
    assert "user-9" not in found.users
    assert np.isfinite(found.variation).all()
