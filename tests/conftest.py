import os

# One thread, also in processes that tests start: the sums of small matrices come out the same
# everywhere, and xdist can use the rest.
os.environ["OMP_NUM_THREADS"] = "1"

import functools
import signal

import pytest
import torch
from hypothesis import settings

import pools
from salf.data import loading
from salf.runs import pool

torch.set_num_threads(1)

# Also where pytest inherits SIGINT ignored (`nohup make test &`); processes it starts inherit this.
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("salf", deadline=None, derandomize=os.environ.get("CI") == "true")
settings.load_profile("salf")

# Made once per process: every federation of a test that has no data of its own loads it.
loading.synthetic = functools.cache(loading.synthetic)


@pytest.fixture
def no_processes(monkeypatch):
    """Jobs are done here, for tests that are not about the processes of a pool."""
    monkeypatch.setattr(pool, "ProcessPoolExecutor", pools.Here)


def pytest_xdist_auto_num_workers():
    """One more than there are cores: live federations wait most of the time, and leave one idle."""
    return pool.cores() + 1


def pytest_collection_modifyitems(items):
    """Those that take long come first, so that no worker of xdist is left with one in the end."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: item.get_closest_marker("slow") is None)
