"""Voice: each user's share of the weight that was applied, beside its share of the data.

If users are heard as their data ask for, the two are equal. A method that hears whoever is there
gives fast users more; a picture of it shows which classes a model does not learn, and why.
"""

import numpy as np

from salf.arrivals import Floats
from salf.methods import Plan
from salf.recall import Recall

MOST_USERS = 10_000  # for more, nothing is kept


class Voice:
    """The weights of every user's gradients, new and remembered, summed over rounds and layers."""

    def __init__(self, users: int) -> None:
        self.total: Floats = np.zeros(users if users <= MOST_USERS else 0)

    def hear(self, plan: Plan, t: int, recall: Recall | None, everybody: float) -> None:
        """Add the weights of round t, before what is remembered changes by it."""
        if not len(self.total):
            return
        for group in plan.groups:
            weights = group.weights
            if recall is not None:  # what arrives takes the place of what is remembered
                left = recall.left(t, group.users.tolist()).T
                weights = weights * (1 - recall.rule.beta * left)
            self.total[group.users] += weights.mean(axis=0)
        if recall is not None:
            for user, weight in recall.weights(t, everybody).items():
                self.total[int(user)] += weight

    def shares(self) -> Floats:
        """Each user's share, which sum to 1; empty if nothing was heard or kept."""
        total = self.total.sum()
        return np.asarray(self.total / total) if total > 0 else np.empty(0)
