"""Rounds in which every user is given the work that fits: TimelyFL's."""

from dataclasses import replace

import numpy as np

from salf.core.arrivals import Floats, Ints
from salf.core.draws import Draws, Unkeyed
from salf.worlds.base import Arrived, Memory
from salf.worlds.fleet.jitter import ROUNDING
from salf.worlds.fleet.round import Round, Tasks
from salf.worlds.fleet.timing import Timing
from salf.worlds.fleet.world import CLOCK, OnFleet, finite

LEAST = 1e-12  # seconds that work takes at least
DRAWN = 64  # rounds of which the usual times are the mean


class Timely(OnFleet):
    """A round lasts as long as the `fastest` part of its users need; all are given what fits.

    Users that can do the planned local steps several times in that time do, at most `most` times;
    the others do the steps, and of the last one the layers, that fit. What a user was given arrives
    in time as a whole or not at all. How long it takes is estimated before the round: as long as on
    average, or, if `measured`, as if devices knew how fast they are in this round.
    """

    surely, has_deadline = True, False  # nobody asks for p_l

    def __init__(self, timing: Timing, fastest: float, measured: bool, most: int) -> None:
        super().__init__(timing, None)
        self.fastest, self.measured, self.most = fastest, measured, most

    def arrivals(self, t: int, draws: Draws, users: Ints, memory: Memory) -> Arrived:
        clock = float(memory[CLOCK])
        times, given, seconds = self._given(draws, users, clock)
        each = np.maximum(given - 1, 0)
        finish = np.where(given > 0, times.done[times.tasks.each, each], np.inf)
        reached = np.where(finish <= seconds * (1 + ROUNDING), given, 0)
        took = min(float(finish[given > 0].max()), seconds)
        after = memory.copy()
        after[CLOCK] = clock + took
        return times.tasks.arrivals(reached, spent=times.spent(reached, took)), after

    def _given(self, draws: Draws, users: Ints, clock: float) -> tuple[Round, Ints, float]:
        """The users' times, how many milestones each is given, and the length of the round."""
        once = self.timing.round(draws, users, clock)
        tasks = once.tasks
        estimated = once.done if self.measured else self._usual(tasks)
        total, links = tasks.finish(estimated), tasks.finish(tasks.links)
        seconds = self._seconds(total)
        in_time = seconds * (1 + ROUNDING)
        fit = np.floor((in_time - links) / np.maximum(total - links, LEAST))
        # Where the others are away for hours, millions of steps would fit.
        fit = np.minimum(fit, self.most)
        epochs = np.maximum(fit, 1).astype(np.int64)
        times = self.timing.round(draws, users, clock, epochs)
        if self.measured:  # the next steps may take longer than the first
            fit = np.minimum(fit, times.reached(in_time) // tasks.milestones)
            epochs = np.maximum(fit, 1).astype(np.int64)
        some = ((estimated <= in_time) & tasks.within).sum(axis=1)
        given = np.where(fit >= 1, epochs * tasks.milestones, some)
        return _only(times, tasks.planned * epochs, given), given, seconds

    def _usual(self, tasks: Tasks) -> Floats:
        """When milestones are done on average, of devices that are available."""
        jitter, mean = self.timing.devices.jitter, np.zeros_like(tasks.nominal)
        draws = Unkeyed(np.random.default_rng(0))  # always the same, so that estimates are
        for _ in range(DRAWN):
            mean += jitter.complete(tasks.nominal, draws, tasks.users) / DRAWN
        return mean + tasks.links

    def _seconds(self, total: Floats) -> float:
        """The time in which so many of the users are done."""
        wanted = max(1, int(np.ceil(self.fastest * len(total) * (1 - ROUNDING))))
        known = np.sort(total[np.isfinite(total)])[:wanted]
        return finite(float(known[-1]) if len(known) else np.inf)


def _only(times: Round, planned: Ints, given: Ints) -> Round:
    """These times, with no work after the milestones given."""
    within = np.arange(times.tasks.work.shape[1]) < given[:, None]
    work = np.where(within, times.tasks.work, 0.0)
    return replace(times, tasks=replace(times.tasks, planned=planned, work=work))
