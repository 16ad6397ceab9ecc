"""Calibration: the constants of a device from timed steps."""

import numpy as np
import pytest
import torch

import salf
from command import salf as command
from nets import small_mlp
from salf.common.errors import SalfError
from salf.core.layers import Layers
from salf.live import calibrate as calibration
from salf.live.calibrate import calibrate
from salf.worlds.fleet.cost import Cost
from salf.worlds.fleet.devices import DeviceClass
from salf.worlds.fleet.files import passes, read, write

SIZES = (2, 8, 32, 128)  # of 128 inputs


def made(model, kind):
    """The times that a device of this class takes, and the layers and inputs of the model."""
    inputs = torch.zeros(128, 4, dtype=torch.float64)
    layers = Layers.of(model, None, inputs)
    fixed, row = kind.seconds(Cost.of(model, layers, inputs))
    each = fixed + np.array(SIZES)[:, None, None] * row  # [sizes, 2, L]
    return np.column_stack([each[:, 0].sum(axis=1), each[:, 1]]), layers, inputs


@pytest.mark.parametrize("launch", [1e-5, passes([1e-5, 3e-5, 2e-5, 4e-5])])
def test_the_constants_of_a_device_are_found_from_its_times(monkeypatch, tmp_path, launch):
    """Also once they were in a file, and by a fleet that was read from it."""
    model, kind = small_mlp(), DeviceClass("devices", 1e-9, launch, 1e-8)
    times, layers, inputs = made(model, kind)
    rng = np.random.default_rng(0)
    paces = np.exp(0.1 * rng.normal(size=(4000, len(SIZES), 1)))
    monkeypatch.setattr(calibration, "_timed", lambda *_: times * paces)
    found = calibrate(model, layers, Cost.of(model, layers, inputs), inputs, 3)
    np.testing.assert_allclose(found.fitted, times, rtol=0.02)
    assert found.jitter == pytest.approx(0.1, rel=0.1)
    write(tmp_path / "f.csv", "pi", found.kind, found.jitter)
    write(tmp_path / "f.csv", "phone", DeviceClass("phones", 1e-9, 1e-5, 2e-8), 0.0)
    devices = read(tmp_path / "f.csv")
    assert devices.speed.tolist() == [1, 1]
    # The law's median is 1, so the constants are those of the median step.
    np.testing.assert_allclose(made(model, devices.kinds[0])[0], times, rtol=0.02)
    text = (tmp_path / "f.csv").read_text().replace("phone,1,1,", "phone,3,0.5,")
    (tmp_path / "f.csv").write_text(text)
    fleet = salf.Fleet(str(tmp_path / "f.csv"))
    assert fleet.speed.tolist() == [1, 0.5, 0.5, 0.5]
    assert fleet.kind.tolist() == [0, 1, 1, 1]


def test_a_model_of_other_layers_than_the_one_calibrated_is_refused():
    kind = DeviceClass("devices", passes([1e-9, 2e-9, 3e-9, 4e-9, 5e-9]), 1e-5, 0.0)
    with pytest.raises(SalfError, match="a model of 4 layers, and this one has 3"):
        made(small_mlp(), kind)


def test_a_calibrated_line_does_not_go_into_another_fleet(tmp_path):
    (tmp_path / "f.csv").write_text("speed\n3\n")
    with pytest.raises(SalfError, match="other columns than a calibrated fleet"):
        write(tmp_path / "f.csv", "pi", DeviceClass("devices", 1e-9), 0.0)


def test_the_command_shows_measured_and_fitted_and_writes_a_fleet_that_runs(tmp_path):
    done = command("fleet", "calibrate", "mlp", "--data", "digits", "--out", "f.csv", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "per launch" in done.stdout
    seen = command(
        "fleet", "preview", "digits-mlp", "--fleet", "f.csv", "--users", "3", cwd=tmp_path
    )
    assert "3 users, done after" in seen.stdout, seen.stderr
    wrong = command("fleet", "calibrate", "mlp", "--out", "f.toml", cwd=tmp_path)
    assert "--out must be a file that ends in .csv" in wrong.stderr
