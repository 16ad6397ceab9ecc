"""Ctrl-C and SIGTERM end a program in order; freed memory is kept from round to round."""

import platform
import signal
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

import salf
from salf.common import process

GLIBC = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's allocator only")
LARGE = 48 * 2**20  # bytes: more than glibc keeps by itself


@pytest.fixture
def calls(monkeypatch):
    """What is called in the C library, instead of calling it."""
    made = []
    library = SimpleNamespace(
        mallopt=lambda *arguments: made.append(arguments), malloc_trim=lambda _: made.append("trim")
    )
    monkeypatch.setattr(process.ctypes, "CDLL", lambda name: library)
    return made


# In a process of its own: what other tests left on the heap decides where a block comes from.
MAPPED = f"""
import resource
import numpy
from salf.common.process import kept_memory

def faults():
    numpy.ones({LARGE}, numpy.uint8)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    numpy.ones({LARGE}, numpy.uint8)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

with kept_memory():
    inside = faults()
print(inside, faults())
"""


@GLIBC
def test_a_large_block_is_mapped_once_and_only_in_a_training():
    said = subprocess.run(
        [sys.executable, "-c", MAPPED], capture_output=True, text=True, check=True
    )
    inside, outside = map(int, said.stdout.split())
    assert inside < 10
    # At least one for each huge page, if the system has them on.
    assert outside > max(inside, 20)


@GLIBC
def test_trainings_use_it_and_afterwards_glibc_is_as_usual(calls):
    def fails(row, model):
        raise KeyError

    with pytest.raises(KeyError):
        salf.run(salf.Config(data="synthetic:5", users=4, rounds=2, threads=1), on_round=fails)
    assert calls[:2] == [(-3, 2**30), (-1, 2**30)]
    assert calls[2:] == [(-3, 32 * 2**20), (-1, 64 * 2**20), "trim"]


@pytest.mark.parametrize("name", ["MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES", "another library"])
def test_who_has_chosen_and_another_c_library_are_left_alone(calls, monkeypatch, name):
    if name == "another library":
        monkeypatch.setattr(process.platform, "libc_ver", lambda: ("", ""))
    else:
        monkeypatch.setenv(name, "1000000")
    with process.kept_memory():
        pass
    assert not calls


# ---- signals -----------------------------------------------------------------------------------


def handlers():
    return [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]


@pytest.fixture(autouse=True)
def _handlers_stay_as_they_were():
    before = handlers()
    yield
    assert handlers() == before


def test_sigterm_is_an_exit_with_143_and_the_second_one_does_not_cut_it_short():
    with process.sigterm_as_exit():
        with pytest.raises(SystemExit) as ended:
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
    assert ended.value.code == 143


def test_a_program_that_handles_sigterm_itself_keeps_its_handler():
    seen = []
    before = signal.signal(signal.SIGTERM, lambda *_: seen.append(1))
    try:
        with process.sigterm_as_exit(), process.held_signals() as held:
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert seen == [1]
    assert held == []


def test_outside_the_main_thread_no_handler_is_installed():
    seen = []

    def enter():
        with process.sigterm_as_exit(), process.held_signals(), process.uninterrupted():
            seen.append(handlers())

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join(60)
    assert seen == [handlers()]


def test_held_signals_wait_but_for_the_second_ctrl_c():
    with process.sigterm_as_exit(), process.held_signals() as held:
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT):
            signal.raise_signal(number)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert held == [signal.SIGTERM, signal.SIGTERM, signal.SIGINT]


def test_closing_is_not_interrupted():
    with process.uninterrupted():
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.raise_signal(number)


def test_an_exit_that_a_library_gave_another_code_is_still_that_of_sigterm():
    def terminated_inside():
        try:
            signal.raise_signal(signal.SIGTERM)
        except SystemExit:
            raise SystemExit(1) from None  # as Ray does

    with pytest.raises(SystemExit) as ended, process.sigterm_as_exit():
        terminated_inside()
    assert ended.value.code == process.TERMINATED
    with pytest.raises(SystemExit) as ended, process.sigterm_as_exit():
        raise SystemExit(3)
    assert ended.value.code == 3
