"""Ctrl-C and SIGTERM end a program in order."""

import signal
import threading

import pytest

from salf.common import signals


def handlers():
    return [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]


@pytest.fixture(autouse=True)
def _handlers_stay_as_they_were():
    before = handlers()
    yield
    assert handlers() == before


def test_sigterm_is_an_exit_with_143_and_the_second_one_does_not_cut_it_short():
    with signals.sigterm_as_exit():
        with pytest.raises(SystemExit) as ended:
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
    assert ended.value.code == 143


def test_a_program_that_handles_sigterm_itself_keeps_its_handler():
    seen = []
    before = signal.signal(signal.SIGTERM, lambda *_: seen.append(1))
    try:
        with signals.sigterm_as_exit(), signals.held() as held:
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert seen == [1]
    assert held == []


def test_outside_the_main_thread_no_handler_is_installed():
    seen = []

    def enter():
        with signals.sigterm_as_exit(), signals.held(), signals.uninterrupted():
            seen.append(handlers())

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join(60)
    assert seen == [handlers()]


def test_held_signals_wait_but_for_the_second_ctrl_c():
    with signals.sigterm_as_exit(), signals.held() as held:
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT):
            signal.raise_signal(number)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert held == [signal.SIGTERM, signal.SIGTERM, signal.SIGINT]


def test_closing_is_not_interrupted():
    with signals.uninterrupted():
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.raise_signal(number)


def test_an_exit_that_a_library_gave_another_code_is_still_that_of_sigterm():
    def terminated_inside():
        try:
            signal.raise_signal(signal.SIGTERM)
        except SystemExit:
            raise SystemExit(1) from None  # as Ray does

    with pytest.raises(SystemExit) as ended, signals.sigterm_as_exit():
        terminated_inside()
    assert ended.value.code == signals.TERMINATED
    with pytest.raises(SystemExit) as ended, signals.sigterm_as_exit():
        raise SystemExit(3)
    assert ended.value.code == 3
