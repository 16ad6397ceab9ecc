"""Runs by a simulated clock: from settings and from Python."""

import numpy as np
import pytest
import torch
from by_hand import EVERYBODY, rounds, world
from torch import nn

import interrupted
import salf
from salf.common.errors import SalfError
from salf.core.rows import read_csv
from salf.runs.config import Config
from salf.runs.presets import load_config, read_toml
from salf.worlds.fleet import named
from salf.worlds.fleet.jitter import LogNormal

SMALL = {"data": "digits", "lr": 0.3, "users": 8, "batch_size": 4, "threads": 1}
# A round of digits on these phones takes about 0.3 s at the median.
PHONES = {"fleet": "phones:speed=0.02,sigma=0.93,jitter=0.2", "deadline": 0.3}


def small_net():
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))


def data_of(rows):
    return torch.randn(rows, 6), torch.arange(rows) % 2


DATA = data_of(40)


def run(**settings):
    return salf.run(Config(**{**SMALL, **settings})).history


def buffer_of_3(method):
    """For the 8 users here, if the method has a buffer without being told so."""
    return {"buffer": 3} if getattr(salf.method(method), "buffer", None) else {}


@pytest.mark.parametrize("method", salf.METHODS)
def test_every_method_runs_by_the_clock(method):
    made = salf.method(method)
    settings = PHONES if made.asks.deadline else {**PHONES, "deadline": None}
    # FedDyn takes no momentum.
    history = run(**settings, method=method, rounds=6, momentum=0.0, options=buffer_of_3(method))
    clock = [row.clock for row in history.rows]
    assert clock == sorted(clock)
    assert clock[0] > 0
    if made.asks.deadline:
        assert np.diff([0, *clock]).max() <= 0.3 + 1e-12
    assert all(row.work >= row.wasted_work >= 0 for row in history.rows)
    assert all(row.bytes >= row.wasted_bytes >= 0 for row in history.rows)


def test_fedavg_waits_longer_and_wastes_nothing_and_drop_wastes_more_than_salf():
    fedavg, drop, salf_ = (run(**PHONES, method=m, rounds=20) for m in ("fedavg", "drop", "salf"))
    assert fedavg.rows[-1].clock > 1.5 * salf_.rows[-1].clock

    def wasted(history):
        return sum(row.wasted_work for row in history.rows)

    assert wasted(fedavg) == 0
    assert wasted(drop) > wasted(salf_) > 0


def test_evaluation_follows_the_clock():
    history = run(**PHONES, seconds=3.0, rounds=0, eval_seconds=1.0)
    assert [row.round for row in history.rows if row.accuracy is not None] == [4, 7, 10]
    assert [t for t, _ in history.timed_curve] == pytest.approx([1.2, 2.1, 3.0])


def test_the_slowest_tenth_is_tested_on_its_own_data():
    history = run(**PHONES, rounds=3)
    assert 0 <= history.test["slowest_tenth_accuracy"] <= 1
    assert "slowest_tenth_accuracy" not in run(rounds=3).test


def test_a_run_is_reproducible_and_a_stopped_one_continues_bit_for_bit(tmp_path):
    for method, deadline in (
        ("salf", "auto"),
        ("asyncfl", 0.3),
        ("fedbuff", None),
        ("timelyfl", None),
    ):
        settings = {**PHONES, "deadline": deadline, "method": method, "rounds": 12}
        settings |= {"availability": "markov:2,1", "options": buffer_of_3(method)}
        config = Config(**SMALL, **settings)
        whole = salf.run(config, tmp_path / f"{method}-whole")

        part = tmp_path / f"{method}-part"
        with pytest.raises(KeyboardInterrupt):
            salf.run(config, part, on_round=interrupted.at(5), checkpoint_every=0)
        resumed = salf.run(config, part, resume=True)
        assert [row.clock for row in resumed.history.rows] == [r.clock for r in whole.history.rows]
        weights = [
            (tmp_path / f"{method}-{kind}" / "model.safetensors").read_bytes()
            for kind in ("whole", "part")
        ]
        assert weights[0] == weights[1]


def test_metrics_csv_has_the_clock(tmp_path):
    result = salf.run(Config(**SMALL, **PHONES, rounds=4), tmp_path / "r")
    rows = read_csv(tmp_path / "r" / "metrics.csv")
    assert [row.clock for row in rows] == [row.clock for row in result.history.rows]
    assert [row.wasted_work for row in rows] == [r.wasted_work for r in result.history.rows]
    salf.run(Config(**SMALL, rounds=2), tmp_path / "plain")
    assert "clock" not in (tmp_path / "plain" / "metrics.csv").read_text()


def test_train_takes_a_fleet_from_python():
    fleet = salf.Fleet.of(np.geomspace(1e3, 1e5, 10), jitter=0.1)
    history = salf.train(
        small_net(), data_of(160), fleet=fleet, deadline=0.1, seconds=1.0, batch_size=4
    )
    assert len(history.rows) >= 10
    assert history.rows[-1].clock <= 1.0
    with pytest.raises(SalfError, match="the fleet has 10 devices"):
        salf.train(small_net(), DATA, fleet=fleet, deadline=0.1, rounds=2, users=5)
    with pytest.raises(SalfError, match="fleet= takes a name or an object"):
        salf.train(small_net(), DATA, fleet=salf.Fleet, deadline=0.1, rounds=2)


def test_users_of_unequal_sizes_are_paired_with_devices_by_size():
    net, (x, y) = small_net(), data_of(100)
    split = [range(60), range(60, 70), range(70, 100)]
    fleet = salf.Fleet.of([1e3, 1e4, 1e5])  # the slowest goes to user 1, who has 10 samples
    history = salf.train(
        net, (x, y), split=split, fleet=fleet, pair="size", deadline=0.2, rounds=1, batch_size=1
    )
    assert history.rows[0].clock == pytest.approx(0.1, rel=0.5)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"seconds": 2.0, "rounds": 0}, "seconds needs a fleet"),
        ({"pair": "size"}, "pair needs a fleet"),
        ({"availability": "sessions"}, "availability needs a fleet"),
        ({"fleet": "phones", "deadline": -1.0}, "the deadline must be a positive time"),
        ({"fleet": "phones", "deadline": "auto:2"}, "must be between 0 and 1"),
        ({"fleet": "phones", "deadline": "soon"}, "a time needs a unit"),
        ({"fleet": "phones", "seconds": -1.0}, "seconds must be above 0"),
        ({"fleet": "phones", "rounds": 0}, "rounds must be at least 1"),
        ({"fleet": "phones", "seconds": 5.0, "rounds": 0, "lr": "cosine:0.1"}, "give rounds="),
        (
            {"fleet": "phones", "batches": "equal-time", "local_epochs": 1},
            "batches equal-time does not work with local epochs",
        ),
    ],
)
def test_settings_that_do_not_go_together_are_refused(settings, said):
    with pytest.raises(SalfError, match=said):
        Config(**settings)


def test_a_time_limit_replaces_the_number_of_rounds():
    preset = Config(data="digits", fleet="phones", deadline=2.0)
    assert preset.changed(seconds=5.0).rounds == 0
    assert preset.changed(seconds=5.0, rounds=7).rounds == 7
    given = {"data": "digits", "fleet": "phones", "deadline": 2.0}
    assert Config(**given).rounds == 250
    assert Config(**given, seconds=5.0).rounds == 0
    assert Config(**given, seconds=5.0, rounds=250).rounds == 250
    text = 'data = "digits"\nfleet = "phones"\ndeadline = 0.1\nseconds = 600.0\n'
    assert read_toml(text).rounds == 0
    assert read_toml(text + "rounds = 7\n").rounds == 7


def test_a_method_without_a_deadline_says_what_is_missing_before_data_are_looked_for():
    with pytest.raises(SalfError, match="this method needs a deadline"):
        run(fleet="phones", rounds=2, data="folder:/nowhere")
    with pytest.raises(SalfError, match="this method needs a deadline"):
        salf.compare(None, DATA, DATA, fleet="phones", users=2, rounds=1, seeds=1)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"method": salf.method("asyncfl", delay=2)}, "leave out delay"),
        ({"method": "asyncfl", "options": {"buffer": 2}}, "leave out deadline="),
        ({"method": salf.method("asyncfl", buffer=2)}, "leave out deadline="),
    ],
)
def test_settings_that_would_have_no_effect_are_refused(settings, said):
    given = {"fleet": "phones", "users": 4, "deadline": 1.0, "rounds": 1, **settings}
    with pytest.raises(SalfError, match=said):
        salf.train(small_net(), DATA, **given)


def test_p_l_is_the_chance_that_nobody_reaches_a_layer():
    """Depths of 4,000 rounds against p_l of the fleet's law, 4.5 standard errors."""
    made = world(1.5, jitter=LogNormal(0.5))
    chance = made.unreached(1, EVERYBODY, made.start())
    arrived, _ = rounds(made, 4_000)
    empty = np.mean([~each.reach(2).any(axis=1) for each in arrived], axis=0)
    assert (np.abs(empty - chance) <= 4.5 * np.sqrt(chance * (1 - chance) / 4_000)).all()
    assert 0.02 < chance[0] < 0.98


def test_what_follows_from_the_fleet_cannot_be_set_too():
    for more in ({"depth": salf.worlds.depth.Uniform(4, 2)}, {"stragglers": 0.0}):
        with pytest.raises(SalfError, match="determine how far users get"):
            salf.train(small_net(), DATA, users=4, fleet="pis", deadline=1.0, rounds=2, **more)


def test_a_deadline_that_is_just_enough_is_enough():
    """p_l must not be 1 in a layer that somebody reaches, however times are rounded."""
    x, y = data_of(80)
    for speed in (23456.0, 22222.0, 17.3):
        net = small_net()
        fleet = salf.Fleet.of([speed] * 4, up=54321.0, down=98765.0)
        enough = float(fleet.preview(net, 1.0, example=x[:16]).expected.max())
        history = salf.train(net, (x, y), fleet=fleet, deadline=enough, rounds=2)
        assert history.rows[0].reached == (4, 4)


def test_files_of_a_fleet_are_found_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fleet.csv").write_text("speed\n" + "1e5\n" * 8)
    salf.run(Config(**SMALL, fleet="fleet.csv", deadline=1.0, rounds=2), tmp_path / "r")
    monkeypatch.chdir("/")
    again = salf.run(load_config(str(tmp_path / "r" / "config.toml")))
    assert len(again.history.rows) == 2


def test_an_epoch_takes_what_its_samples_take():
    """17 samples in batches of 16 and 1 take as long as in one of 17."""
    x, y = data_of(17)

    def clock(batch_size):
        net = small_net()
        fleet = salf.Fleet.of([1e3])
        history = salf.train(
            net, [(x, y)], fleet=fleet, method="fedavg", rounds=1, local_epochs=1,
            batch_size=batch_size,
        )  # fmt: skip
        return history.rows[0].clock

    assert clock(16) == pytest.approx(clock(17))


@pytest.mark.parametrize(
    ("setting", "column", "before", "after"),
    [
        ("fleet", "speed", ["1e5"] * 8, ["2e5"] * 8),
        ("deadline", "deadline", ["0.3"], ["0.2"]),
        ("availability", "device,start,end", [f"{u},0,9" for u in range(8)], ["0,1,9"]),
    ],
)
def test_a_run_does_not_continue_with_a_file_that_was_changed(
    tmp_path, setting, column, before, after
):
    file = tmp_path / "given.csv"
    file.write_text("\n".join([column, *before]))
    config = Config(**{**SMALL, **PHONES, setting: str(file), "rounds": 2})
    salf.run(config, tmp_path / "r")
    salf.run(config.changed(rounds=3), tmp_path / "r", resume=True)
    file.write_text("\n".join([column, *after]))
    with pytest.raises(SalfError, match=f"differs in the contents of its {setting}"):
        salf.run(config.changed(rounds=3), tmp_path / "r", resume=True)


def test_a_run_does_not_continue_with_other_figures_of_its_fleet(tmp_path, monkeypatch):
    config = Config(**SMALL, **PHONES, rounds=2)
    salf.run(config, tmp_path / "r")
    monkeypatch.setattr(named, "FIGURES", "others")
    with pytest.raises(SalfError, match="differs in rounds, the contents of its fleet"):
        salf.run(config.changed(rounds=3), tmp_path / "r", resume=True)


def test_batch_norm_and_a_slow_user_s_single_row_are_a_sentence():
    net = nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 2))
    fleet = salf.Fleet.of([1e3, 1e5, 1e5])
    given = {"fleet": fleet, "deadline": 10.0, "rounds": 1, "batch_size": 8}
    salf.train(net, DATA, **given)
    with pytest.raises(SalfError, match="does not fit a batch of shape 1x6"):
        salf.train(net, DATA, batches="equal-time", **given)


def test_a_regression_on_a_fleet_is_told_by_its_loss():
    x = torch.randn(40, 4)
    data = x, x[:, :2].sum(1, keepdim=True)
    found = salf.compare(
        lambda: nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 1)), data, data,
        loss=lambda outputs, targets: ((outputs - targets) ** 2).mean(1),
        methods=["fedavg", "salf"], fleet="phones", users=4, deadline=0.001, rounds=3, seeds=1,
    )  # fmt: skip
    text = str(found)
    assert "has the lowest test loss" in text
    assert "accuracy" not in text
