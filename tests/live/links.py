"""Users by a made-up clock, as a server reaches them."""

from math import inf

from salf.live.rounds import Answer
from salf.live.update import encode

NEVER = inf


class Clock:
    def __init__(self):
        self.time = 100.0

    def __call__(self):
        return self.time


class MadeUpLink:
    """Users who answer a given time after they are asked, with what `update()` says."""

    def __init__(self, clock, delays, update):
        self.clock = clock
        self.delays = dict(delays)  # by user; NEVER for one that hangs
        self.update = update
        self.gone = set()
        self.asked = {}  # user: (round, when it will answer)
        self.round = 0
        self.tasks = []
        self.returning = {}  # user: when it is there again

    def users(self):
        for user, when in self.returning.items():
            if self.clock.time >= when:
                self.gone.discard(user)
        return self.delays.keys() - self.gone

    def free(self):
        return self.users() - self.asked.keys()

    def send(self, task, users):
        self.round = task.round
        self.tasks.append(task)
        for user in sorted(self.free() & set(users)):
            self.asked[user] = task.round, self.clock.time + self.delays[user]

    def awaited(self):
        return {u for u, (round, _) in self.asked.items() if round == self.round} - self.gone

    def receive(self, seconds):
        until = self.clock.time + seconds
        first = min((when for _, when in self.asked.values()), default=NEVER)
        self.clock.time = max(self.clock.time, min(first, until))
        ready = [u for u, (_, when) in self.asked.items() if when <= self.clock.time]
        return [self.answer(user, self.asked.pop(user)[0]) for user in ready]

    def answer(self, user, round):
        return Answer(user, round, encode(self.update()))
