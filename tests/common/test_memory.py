"""Freed memory is kept from round to round, without touching anything else."""

import subprocess
import sys

import pytest

import salf
from salf.common import memory
from salf.common.errors import SalfError

pytestmark = pytest.mark.skipif(not memory._is_glibc(), reason="glibc's allocator only")
LARGE = 48 * 2**20  # bytes: more than glibc keeps by itself


@pytest.fixture(autouse=True)
def no_choice_made(monkeypatch):
    for name in (memory.VARIABLE, "GLIBC_TUNABLES", *memory._GLIBCS_OWN):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def calls(monkeypatch):
    """What is called in the C library, instead of calling it."""
    made = []

    class Library:
        def mallopt(self, *arguments):
            made.append(arguments)

        def malloc_trim(self, pad):
            made.append("trim")

    monkeypatch.setattr(memory.ctypes, "CDLL", lambda name: Library())
    return made


# In a process of its own: what other tests left on the heap decides where a block comes from.
MAPPED = f"""
import resource
import numpy
from salf.common import memory

def faults():
    numpy.ones({LARGE}, numpy.uint8)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    numpy.ones({LARGE}, numpy.uint8)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

with memory.kept():
    inside = faults()
print(inside, faults())
"""


def test_a_large_block_is_mapped_once_and_only_in_a_training():
    said = subprocess.run(
        [sys.executable, "-c", MAPPED], capture_output=True, text=True, check=True
    )
    inside, outside = map(int, said.stdout.split())
    assert inside < 10
    # At least one for each huge page, if the system has them on.
    assert outside > max(inside, 20)


def test_afterwards_glibc_is_as_usual(calls):
    def fails():
        with memory.kept():
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert calls[:2] == [(-3, 2**30), (-1, 2**30)]
    assert calls[2:] == [(-3, 32 * 2**20), (-1, 64 * 2**20), "trim"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SALF_MALLOC", "default"),
        ("MALLOC_TRIM_THRESHOLD_", "1000000"),
        ("GLIBC_TUNABLES", "glibc.malloc.mmap_threshold=1000000"),
    ],
)
def test_who_has_chosen_is_left_alone(calls, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    with memory.kept():
        pass
    assert not calls


def test_another_c_library_is_left_alone(calls, monkeypatch):
    def unknown(name):
        raise ValueError("unrecognized configuration name")

    monkeypatch.setattr(memory.os, "confstr", unknown)
    with memory.kept():
        pass
    assert not calls


def test_an_unknown_choice_is_refused(monkeypatch):
    monkeypatch.setenv("SALF_MALLOC", "jemalloc")
    with pytest.raises(SalfError, match="must be 'keep' or 'default'"), memory.kept():
        pass


def test_trainings_use_it_and_results_are_the_same_bit_for_bit(monkeypatch):
    config = salf.Config(data="synthetic:5", model="cnn", users=4, rounds=2, threads=1)
    kept = salf.run(config)
    monkeypatch.setenv("SALF_MALLOC", "default")
    usual = salf.run(config)
    assert [row.train_loss for row in kept.history.rows] == [
        row.train_loss for row in usual.history.rows
    ]
    assert kept.history.test == usual.history.test
    monkeypatch.setenv("SALF_MALLOC", "nonsense")
    with pytest.raises(SalfError, match="SALF_MALLOC"):
        salf.run(config)
