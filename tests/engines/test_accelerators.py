"""Training on a device other than the processor: pretended.py, as there is no accelerator here."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils import backend_registration

import salf
from salf.common.errors import SalfError
from salf.engines import ENGINES
from salf.methods import METHODS

pytestmark = pytest.mark.xdist_group("devices")  # one process for all
PRETENDED = Path(__file__).with_name("pretended.py")


@pytest.fixture(scope="module")
def passed():
    """What trained on the device as on the processor, with one copy to the host a round."""
    if not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"):
        pytest.skip("this PyTorch cannot have a device made in Python")
    done = subprocess.run(
        [sys.executable, PRETENDED], capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("engine", ENGINES)
def test_an_engine_trains_as_on_the_processor_and_copies_to_the_host_once_a_round(passed, engine):
    assert f"engine {engine}" in passed


@pytest.mark.parametrize("method", METHODS)
def test_a_method_trains_as_on_the_processor_and_copies_to_the_host_once_a_round(passed, method):
    assert f"method {method}" in passed


def test_a_copy_within_a_round_is_seen(passed):
    assert "a loss that looks is seen" in passed


@pytest.mark.parametrize("device", ["cuda:99", "mps", "nothing", "meta"])
def test_a_device_that_is_not_there_is_a_sentence_with_the_ones_that_are(device):
    if device == "mps" and torch.backends.mps.is_available():
        pytest.skip("it is there")
    with pytest.raises(SalfError, match=f"cannot use a device '{device}' .* set device to cpu"):
        salf.run(salf.Config(data="digits", model="mlp", rounds=1, device=device))


def test_a_model_of_ones_own_stays_on_its_device():
    model, data = torch.nn.Linear(2, 2), (torch.randn(20, 2), torch.zeros(20, dtype=torch.long))
    with pytest.raises(SalfError, match="device 'meta'"):
        salf.train(model.to("meta"), data, users=2, rounds=1)
