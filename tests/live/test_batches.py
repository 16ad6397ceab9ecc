"""Batches in equal time: users choose theirs from what they learned about themselves."""

from functools import partial

import pytest
import torch

from nets import mlp
from salf.live.batches import FITS, OwnBatch, common_time
from salf.live.server import LiveServer, ServerSettings
from salf.live.update import Rejected, Update, decode, encode
from salf.live.user import User
from salf.problem import Problem
from salf.worlds.fleet.cost import MOST

SIZE = 16


class Device:
    """A user by a made-up clock: a row takes `pace` seconds forward and twice that backward."""

    def __init__(self, name, pace, fixed=0.0, samples=1000):
        self.time, self.pace, self.fixed = 0.0, pace, fixed
        self.model = network()
        self.batch = OwnBatch(SIZE, samples)
        self.user = User(name, Problem.of(self.model), self.loss, self.now, batch=self.batch)
        for parameter in self.model.parameters():
            parameter.register_post_accumulate_grad_hook(self.backward)
        self.sizes = []

    def now(self):
        return self.time

    def loss(self, round, step):
        self.sizes.append(self.batch.rows)
        self.time += self.fixed + self.pace * self.batch.rows
        return self.model(torch.ones(self.batch.rows, 3)).sum()

    def backward(self, _):
        self.time += 2 * self.pace * self.batch.rows / 4  # two layers with two parameters each


network = partial(mlp, 3, 4, 2)


def federation(devices, deadline, rounds=30, fixed=True):
    model = network()
    server = LiveServer(Problem.of(model), 1e-6, ServerSettings(equal_time=SIZE))
    rows = []
    for _ in range(rounds):
        server.open([device.user.name for device in devices])
        task = server.task(deadline, fixed)
        for device in devices:
            server.take(device.user.name, encode(device.user.train(task)))
        rows.append(server.close())
    return server, rows


def test_a_step_takes_all_users_about_as_long_and_the_median_one_has_the_usual_batch(tmp_path):
    devices = [Device("fast", 1e-3), Device("usual", 2e-3), Device("slow", 8e-3)]
    server, rows = federation(devices, None)
    assert rows[0].rows == {"fast": SIZE, "usual": SIZE, "slow": SIZE}  # nothing is known yet
    assert rows[-1].rows == {"fast": 2 * SIZE, "usual": SIZE, "slow": SIZE // 4}
    assert server.step_seconds(None) == pytest.approx(SIZE * 3 * 2e-3, rel=0.05)
    server.save(tmp_path / "state")
    again, _ = federation([], None, 0)
    again.restore(tmp_path / "state")
    assert again.step_seconds(None) == server.step_seconds(None)


def test_a_constant_deadline_is_to_be_met_by_all():
    devices = [Device("a", 1e-3), Device("b", 2e-3), Device("c", 8e-3)]
    deadline = 3 * 2e-3 * SIZE / 2  # half of what the median user needs
    _, rows = federation(devices, deadline, 60)
    assert all(done.depths == {"a": 1, "b": 1, "c": 1} for done in rows[-10:])
    assert rows[-1].rows["b"] == pytest.approx(FITS * SIZE / 2, abs=2)
    # One that is adapted would follow the batches, and the batches it: to batches of one row.
    _, rows = federation([Device("a", 1e-3), Device("b", 1e-3)], deadline / 4, 20, fixed=False)
    assert rows[-1].rows["a"] == SIZE


def test_a_user_that_completes_no_layer_learns_from_its_forward_passes():
    slow, usual = Device("slow", 15e-3), [Device(f"u{i}", 1e-3) for i in range(2)]
    deadline = 3 * 1e-3 * SIZE / FITS
    _, rows = federation([slow, *usual], deadline, 60)
    assert rows[0].depths["slow"] == 3  # not even its forward pass fits
    assert rows[-1].depths["slow"] == 1
    assert rows[-1].rows == {"slow": 1, "u0": SIZE, "u1": SIZE}


def test_batches_stay_within_their_limits_and_the_samples_there_are():
    devices = [
        Device("fast", 1e-6),
        Device("small", 1e-5, samples=40),
        *(Device(f"u{i}", 1e-3) for i in range(3)),
    ]
    _, rows = federation(devices, None)
    assert rows[-1].rows["fast"] == MOST * SIZE
    assert rows[-1].rows["small"] == 40
    few = OwnBatch(SIZE, 5)
    assert few.rows == 5


def test_a_time_that_does_not_depend_on_the_batch_is_taken_into_account():
    devices = [Device("overhead", 1e-3, fixed=0.024), *(Device(f"u{i}", 1e-3) for i in range(2))]
    _, rows = federation(devices, None, 60)
    assert rows[-1].rows["overhead"] == pytest.approx(8, abs=2)  # 24 + 3 x 8 = 48 ms


def test_small_changes_leave_a_batch_as_it_is():
    device = Device("a", 1e-3)
    federation([device], None, 3)
    device.batch.fit(1.08 * 3e-3 * SIZE, device.user.backpropagation)
    assert device.batch.rows == SIZE
    device.batch.fit(1.5 * 3e-3 * SIZE, device.user.backpropagation)
    assert device.batch.rows == 24
    expected = device.batch.pace(device.user.backpropagation)
    assert expected == pytest.approx(3e-3)  # what was learned was scaled with it
    device.batch.fit(0.0, device.user.backpropagation)
    assert device.batch.rows == 24


def test_the_common_time_is_the_medians_and_unknown_before_anybody_answered():
    assert common_time({}, SIZE, 1.0) == 0
    assert common_time({"a": 0.0}, SIZE, 1.0) == 0
    paces = {"a": 0.1, "b": 0.2, "liar": 1e300}
    assert common_time(paces, SIZE, None) == SIZE * 0.2
    assert common_time(paces, SIZE, 1.0, steps=2) == FITS / 2


def test_rows_and_pace_travel_and_are_checked():
    update = Update(3, {}, rows=7, pace=0.25)
    back = decode(encode(update), 10_000)
    assert (back.rows, back.pace) == (7, 0.25)
    with pytest.raises(Rejected, match="its rows is not"):
        decode(encode(Update(3, {}, rows=-1)), 10_000)
