"""Fleets by name, by hand and from files, and who gets which device."""

import pickle

import numpy as np
import pytest
import torch
from torch import nn

import salf
from salf.common.errors import SalfError
from salf.core.draws import Keyed
from salf.core.layers import Layers
from salf.worlds.fleet.availability import OnAndOff
from salf.worlds.fleet.cost import Cost
from salf.worlds.fleet.devices import LAYERS, MULTIPLY_ADDS
from salf.worlds.fleet.jitter import ExponentialLayers


def quantiles(values, at=(5, 50, 95)):
    return np.percentile(values, at)


def test_a_named_fleet_is_a_function_of_its_seed_and_a_device_of_its_number():
    small, large = salf.Fleet("phones", users=3, seed=4), salf.Fleet("phones", users=50, seed=4)
    np.testing.assert_array_equal(small.speed, large.speed[:3])
    np.testing.assert_array_equal(small.up, large.up[:3])
    assert not np.array_equal(salf.Fleet("phones", users=3, seed=5).speed, small.speed)


def test_phones_have_the_documented_laws():
    """20,000 devices: quantiles within 4 % (over 4.5 standard errors of the 5th and 95th)."""
    devices = salf.Fleet("phones", users=20_000)
    z = 1.6449
    wanted = np.exp(0.78 * np.array([-z, 0, z]))
    np.testing.assert_allclose(quantiles(devices.speed), wanted, rtol=0.06)
    np.testing.assert_allclose(
        quantiles(devices.up), 1e3 * np.exp(8.04 + 0.68 * np.array([-z, 0, z])), rtol=0.05
    )
    np.testing.assert_allclose(
        quantiles(devices.down), 1e3 * np.exp(8.55 + 0.47 * np.array([-z, 0, z])), rtol=0.04
    )
    together = np.corrcoef(np.log([devices.speed, devices.up, devices.down]))
    assert np.abs(together[np.triu_indices(3, 1)]).max() < 4.5 / np.sqrt(20_000)


@pytest.mark.parametrize(
    ("name", "speeds"), [("pis", [0.5, 1.0, 1.9]), ("microcontrollers", [1.0, 4.2])]
)
def test_boards_are_of_a_few_models(name, speeds):
    speed = salf.Fleet(name, users=20_000).speed
    found = {value: float((speed == value).mean()) for value in np.unique(speed)}
    assert found == pytest.approx(dict.fromkeys(speeds, 1 / len(speeds)), abs=0.016)


def test_links_of_a_named_fleet():
    with_links, without = (salf.Fleet(f"pis:links={name}", 20_000, 0) for name in ("lan", "none"))
    assert with_links.up[0] == pytest.approx(941e6 / 8, rel=0.01)
    assert np.isinf([without.up, without.down]).all()
    clients = salf.Fleet("phones:links=clients", 20_000, 0)
    np.testing.assert_array_equal(clients.up, clients.down)
    # The quantiles of 100 clients, in kbit/s: 1134, 5388 and 43437.
    found = quantiles(clients.up) * 8 / 1e3
    np.testing.assert_allclose(found, [1134, 5388, 43437], rtol=0.25)
    np.testing.assert_array_equal(with_links.speed, without.speed)


def test_options_of_a_named_fleet():
    fast = salf.Fleet("phones:speed=10,jitter=0", 30, seed=0)
    np.testing.assert_allclose(fast.speed, 10 * salf.Fleet("phones", users=30).speed)
    assert fast.jitter.sigma == 0
    seeded = salf.Fleet("phones:seed=7", 30, seed=0)
    np.testing.assert_array_equal(seeded.speed, salf.Fleet("phones", users=30, seed=7).speed)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("phone", "unknown fleet 'phone'"),
        ("phones:colour=3", "unknown option of the fleet 'phones' 'colour'"),
        ("phones:speed=fast", "option speed of the fleet 'phones' must be"),
        ("phones:links=fast", "unknown kind of links 'fast'"),
        ("phones:speed=2,links", "write options of a fleet as in"),
        ("nowhere.csv", "cannot read the fleet"),
        ("nowhere.csv:speed=2", "unknown option of the fleet"),
        ("phones:speed=-1", "speed must be positive"),
    ],
)
def test_fleets_that_cannot_be_are_refused(spec, said):
    with pytest.raises(SalfError, match=said):
        salf.Fleet(spec, 3)


def test_a_fleet_by_hand():
    fleet = salf.Fleet.of([1e6, 2e6], up=5.0, latency=[0.1, 0.2])
    assert (len(fleet), fleet.up.tolist()) == (2, [5.0, 5.0])
    assert np.isinf(fleet.down).all()
    with pytest.raises(SalfError, match="one for each of the 2 devices"):
        salf.Fleet.of([1e6, 2e6], up=[1.0, 2.0, 3.0])
    with pytest.raises(SalfError, match="say how many users"):
        salf.Fleet("phones")
    for wrong in ({"speed": 0.0}, {"speed": []}, {"latency": -1.0}, {"counted": "rows"}):
        with pytest.raises(SalfError):
            salf.Fleet.of(**{"speed": [1.0], **wrong})


def test_a_fleet_from_a_file_and_users_in_turn(tmp_path):
    path = tmp_path / "fleet.csv"
    path.write_text("name,speed,up,jitter\na,1e6,1000,0.1\nb,2e6,,0\n")
    fleet = salf.Fleet(str(path), users=5)
    assert fleet.speed.tolist() == [1e6, 2e6, 1e6, 2e6, 1e6]
    assert fleet.up.tolist() == [1000, np.inf, 1000, np.inf, 1000]
    factors = fleet.jitter.factor(Keyed(0, 1), np.arange(5))
    assert (factors == 1).tolist() == [False, True, False, True, False]
    with pytest.raises(SalfError, match="has 2 devices for 1 users: set users to 2"):
        salf.Fleet(str(path), users=1)


def test_every_way_to_make_a_fleet_takes_an_availability(tmp_path):
    path = tmp_path / "fleet.csv"
    path.write_text("speed\n1e6\n2e6\n")
    spec, who, at = "markov:30,10", np.arange(2), np.zeros(2)
    wanted = OnAndOff(30, 10).window(who, at)
    for fleet in (
        salf.Fleet(str(path), availability=spec),
        salf.Fleet(str(path), availability=OnAndOff(30, 10)),
        salf.Fleet(str(path)).available(spec),
        salf.Fleet("phones", users=2, availability=spec),
        salf.Fleet.of([1e6, 2e6], availability=spec),
        salf.Fleet(str(path), 2, seed=0, availability=spec),
    ):
        np.testing.assert_array_equal(fleet.availability.window(who, at), wanted)
    with pytest.raises(SalfError, match="has an availability of its own: leave out availability"):
        fleet.available("sessions")
    assert fleet.available("always") is fleet


def test_a_run_takes_its_setting_of_availability_for_a_fleet_object_too():
    x, own = torch.randn(60, 4), salf.Fleet.of([1e6, 2e6, 3e6], availability="markov:2,9")
    given = {"rounds": 5, "lr": 0.1, "deadline": 1.0, "batch_size": 4}

    def reached(fleet, **more):
        history = salf.train(
            nn.Sequential(nn.Linear(4, 2)), (x, (x > 0)[:, 0].long()), fleet=fleet, **given, **more
        )
        return [row.reached for row in history.rows]

    plain = salf.Fleet.of([1e6, 2e6, 3e6])
    assert reached(own) == reached(plain, availability="markov:2,9") != reached(plain)
    with pytest.raises(SalfError, match="an availability of its own: leave out availability="):
        reached(own, availability="sessions")


def test_a_device_of_which_nobody_says_when_it_is_available_is_refused(tmp_path):
    (tmp_path / "a.csv").write_text("device,start,end\n0,0,9\n2,0,9\n")
    with pytest.raises(SalfError, match="2 of 4 devices have no intervals, such as device 1"):
        salf.Fleet("pis", 4, seed=0, availability=str(tmp_path / "a.csv"))


@pytest.mark.parametrize(
    "content",
    ["", "speed\n", "name,up\na,3\n", "speed\nfast\n", "device,round,stage,seconds\n1,1,1,2\n"],
)
def test_files_that_are_no_fleet_are_refused(tmp_path, content):
    (tmp_path / "f.csv").write_text(content)
    with pytest.raises(SalfError, match="cannot read the fleet"):
        salf.Fleet(str(tmp_path / "f.csv"))


def test_slow_devices_hold_the_first_labels_or_the_fewest_samples():
    fleet = salf.Fleet.of([3.0, 1.0, 2.0])
    by_label = fleet.paired(np.array([5, 9, 0]))
    assert by_label.speed.tolist() == [2, 3, 1]
    by_size = fleet.paired(np.array([10, 20, 30]))
    assert by_size.speed.tolist() == [1, 2, 3]


def test_the_slowest_tenth_is_somebody():
    assert salf.Fleet.of([3.0, 1.0, 2.0]).slowest().tolist() == [1]
    assert len(salf.Fleet("phones", users=40).slowest()) == 4


def test_slow_classes_count_layers_and_go_by_label():
    devices = salf.Fleet("slow-classes", users=5)
    assert (devices.kinds, devices.pair) == ((LAYERS,), "labels")
    assert isinstance(devices.jitter, ExponentialLayers)


def test_a_model_without_products_is_refused():
    net, example = nn.LayerNorm(3), torch.ones(2, 3)
    cost = Cost.of(net, Layers.of(net, [["weight", "bias"]], example), example)
    with pytest.raises(SalfError, match="no multiply-adds are counted"):
        MULTIPLY_ADDS.seconds(cost)
    assert LAYERS.seconds(cost)[1].sum() > 0


def test_a_million_devices_are_made_and_one_is_looked_at():
    fleet = salf.Fleet("phones", users=1_000_000)
    assert len(fleet) == 1_000_000
    assert "1000000 devices" in repr(pickle.loads(pickle.dumps(fleet)))


def test_a_preview_by_hand():
    """Speeds 10 and 1 a second; 24 multiply-adds a row, one row: done after 4.8 and 48 s."""
    net = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    seen = salf.Fleet.of([10.0, 1.0]).preview(net, 10.0, example=torch.zeros(2, 4), batch_size=1)
    # forward 18, backward 12 of layer 2 and 12 of layer 1: 30 and 42.
    np.testing.assert_allclose(seen.expected, [4.2, 42])
    assert seen.reach.tolist() == [[1, 0], [1, 0]]
    assert seen.depths.tolist() == [0.5, 0, 0.5]
    assert seen.unreached.tolist() == [0, 0]
    assert seen.waiting.tolist() == pytest.approx([42] * 200)
    assert "waits for all users takes 42 s on average" in str(seen)
