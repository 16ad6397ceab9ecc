"""`salf fleet`: who would reach what, without training."""

import numpy as np
import pytest
import torch
from torch import nn

from command import salf
from salf.common.errors import SalfError
from salf.core.layers import Layers
from salf.report.fleet import figure
from salf.runs.config import Config
from salf.runs.federation import preview_of
from salf.worlds.fleet.availability import Intervals
from salf.worlds.fleet.cost import Cost
from salf.worlds.fleet.devices import Fleet as Devices
from salf.worlds.fleet.preview import preview
from salf.worlds.fleet.timing import Timing

ROW = torch.zeros(1, 4)
ASKED = ("fleet", "preview", "digits-mlp", "--fleet", "phones", "--users", "6")


def test_named_fleets_are_listed_with_a_line_each(tmp_path):
    done = salf("fleet", "list", cwd=tmp_path)
    assert done.returncode == 0
    for name in ("phones", "pis", "microcontrollers", "slow-classes"):
        assert sum(line.startswith(f"{name} ") for line in done.stdout.splitlines()) == 1


def test_a_preview_is_that_of_the_run_s_batches_and_deadline(tmp_path):
    config = Config(data="digits", users=6, fleet="phones", deadline=0.01)
    equal = preview_of(config)
    assert (equal.deadline, equal.users) == (0.01, 6)
    steps = preview_of(config.changed(local_steps=3))
    assert (steps.expected > equal.expected).all()
    timed = preview_of(config.changed(batches="equal-time", batch_size=160))
    alike = preview_of(config.changed(batch_size=160))
    assert timed.expected.max() < alike.expected.max()


@pytest.mark.parametrize(
    ("deadline", "seconds"), [("auto:0.5", 0.5), ("auto:0.9", 0.9), (None, 0.7)]
)
def test_without_a_time_the_deadline_is_one_that_gives_the_reach(deadline, seconds):
    found = preview_of(Config(data="digits", users=9, fleet="pis", deadline=deadline))
    assert found.reach.mean() == pytest.approx(seconds, abs=0.01)


def test_p_l_and_waiting_are_those_of_the_cohort():
    """Of four users one is fast: a cohort of one misses it, and need not wait for it, in 3/4."""
    model = nn.Sequential(nn.Linear(4, 2))
    fleet = Devices.of(speed=[1000.0, 1.0, 1.0, 1.0])
    layers = Layers.of(model, None, ROW)
    timing = Timing(fleet, Cost.of(model, layers, ROW), np.ones_like, np.ones_like)
    draws = iter(np.random.default_rng(0).integers(4, size=10_000))
    all_ = preview("four", timing, ("0",), 1.0)
    one = preview("four", timing, ("0",), 1.0, lambda t: np.array([next(draws)]))
    assert (all_.asked, one.asked) == (4, 1)
    assert all_.unreached.tolist() == [0.0]
    # 50 cohorts: outside 0.5 to 1 with a chance below 1e-4.
    assert 0.5 < one.unreached[0] < 1
    assert all_.waiting.mean() == pytest.approx(16)
    assert one.waiting.min() == pytest.approx(0.016)
    assert "4 users (1 in every round)" in str(one)
    settings = {"data": "digits", "users": 8, "fleet": "pis", "deadline": 0.005}
    few = preview_of(Config(**settings, cohort=2))
    assert few.asked == 2
    assert few.unreached[0] > preview_of(Config(**settings)).unreached[0]


def test_one_very_slow_user_does_not_blur_when_the_others_finish():
    """Users are done after 16 to 47 s, and one after 1600 s."""
    fleet = Devices.of(speed=[*(16 / np.arange(16, 48)), 0.01])
    found = fleet.preview(nn.Sequential(nn.Linear(4, 2)), 20.0, example=ROW, batch_size=1)
    np.testing.assert_allclose(found.expected[:-1], np.arange(16, 48))
    assert found.deadline_to_finish(0.5) == pytest.approx(32, abs=2)
    assert found.deadline_to_finish(0.25) == pytest.approx(24, abs=2)


def test_p_l_of_very_many_users_is_that_of_all_of_them(monkeypatch):
    monkeypatch.setattr("salf.worlds.fleet.preview.MOST_USERS", 10)
    fleet = Devices.of(speed=[1.0] * 40, jitter=0.5)
    found = fleet.preview(nn.Sequential(nn.Linear(4, 2)), 16.0, example=ROW, batch_size=1)
    assert found.reach[0].tolist() == pytest.approx([0.5] * 10)
    assert found.unreached[0] == pytest.approx(0.5**40)


class Sum(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 2), nn.Linear(2, 2)

    def forward(self, left, right):
        return self.b(self.a(left) + right)


@pytest.mark.parametrize(
    "example",
    [
        (torch.zeros(3, 4), torch.zeros(3, 2)),
        {"left": torch.zeros(3, 4), "right": torch.zeros(3, 2)},
    ],
)
def test_a_model_with_several_inputs_has_a_preview(example):
    found = Devices.of(speed=[10.0, 20.0]).preview(Sum(), "2s", example=example)
    assert found.deadline == 2.0
    assert found.layers == ("a", "b")


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"deadline": "2"}, "a time needs a unit"),
        ({"deadline": -1.0}, "the deadline must be a positive time"),
    ],
)
def test_a_preview_that_cannot_be_is_a_sentence(settings, says):
    with pytest.raises(SalfError, match=says):
        Devices.of(speed=[1.0, 2.0]).preview(
            nn.Sequential(nn.Linear(4, 2)), **settings, example=ROW
        )


def by_hand(**more):
    """Three users; of the layers, 8 x 4 and 4 x 2, a row costs 32 and 8 multiply-adds forward."""
    fleet = Devices.of(speed=[100.0, 1000.0, 1.0], down=1000.0, up=1000.0, **more)
    model = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2))
    return fleet.preview(model, 10.0, example=torch.zeros(2, 8), batch_size=1)


def test_devices_that_are_not_always_there_have_chances_over_a_week():
    nights = [(86_400.0 * day, 86_400.0 * day + 43_200.0) for day in range(8)]
    half = Intervals(dict.fromkeys(range(3), nights))
    found = by_hand(availability=half)
    assert found.reach[0, 0] == pytest.approx(0.5, abs=0.05)


def test_the_picture_has_a_line_per_layer_and_the_deadline():
    found = by_hand()
    (chart,) = figure(found).charts
    assert [line.name for line in chart.lines] == ["layer 1", "layer 2"]
    assert chart.marks == [(10.0, "10 s")]
    last = {point.line: point.mean for point in chart.points}
    assert last["layer 1"] == pytest.approx(found.reach_at[-1][0], abs=1e-4)


def test_the_command_prints_the_text_and_leaves_a_picture(tmp_path):
    done = salf(*ASKED, "--deadline", "8ms", "--out", "p", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("phones: 6 users, done after")
    assert "By a deadline of 0.008 s" in done.stdout
    assert "Users that finish, by deadline: 25% by" in done.stdout
    assert "Fleet phones: 6 users" in (tmp_path / "p" / "preview.svg").read_text()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("fleet", "preview", "digits-mlp"), "a preview needs a fleet: set one"),
        (("fleet", "previw"), "No such command 'previw'."),
        ((*ASKED, "--deadline", "8"), "a time needs a unit"),
        ((*ASKED, "--pair", "weight"), "weight"),
    ],
)
def test_what_is_wrong_is_one_sentence(tmp_path, arguments, says):
    done = salf(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert says in done.stderr
    assert done.stderr.count("\n") == 1
