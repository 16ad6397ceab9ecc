"""When to start a round although its last layer will probably not be complete in time.

A device that never starts cannot learn that it has become faster; one that always starts returns
late again and again. So the share of rounds a device starts follows its chance of success:

    share = min(1, max(EAGER * chance, 1 / SELDOM))

The share is continuous in the chance, because devices of equal speed estimate different chances:
with a threshold, one of them would always start and the other hardly ever.
"""

EAGER = 8  # every round is started if at least one in eight succeeds
SELDOM = 24  # one round in 24 is started without any chance, which is fewer than 5 %
COLD = 3  # the first rounds are slow, so this many are started whatever the chance
HEAD_START = 0.8  # of a try, so that bad first rounds are doubted soon


class Retry:
    """Adds up the shares of rounds with a low chance; at 1, the next round is started: a try."""

    def __init__(self) -> None:
        self.cold = COLD  # rounds left to start whatever the chance
        self.credit = HEAD_START

    @property
    def due(self) -> bool:
        """Whether the next round is a try."""
        return self.credit >= 1

    def starts(self, chance: float) -> bool:
        """Whether to start a round with this chance of success."""
        return EAGER * chance >= 1 or self.cold > 0 or self.due

    def learn(self, chance: float, *, started: bool) -> None:
        """Take in a round that had this chance."""
        if started:
            self.cold = max(0, self.cold - 1)
            self.credit -= self.due
        if EAGER * chance < 1:
            self.credit += max(EAGER * chance, 1 / SELDOM)
