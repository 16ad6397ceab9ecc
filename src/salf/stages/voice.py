"""Voice: each user's share of the weight that was applied, beside its share of the data.

If users are heard as their data ask for, the two are equal. A method that hears whoever is there
gives fast users more; a picture of it shows which classes a model does not learn, and why.
"""

import numpy as np

from salf.core.arrivals import Floats
from salf.methods import RoundPlan
from salf.stages.recall import Recall

MOST_USERS = 10_000  # for more, nothing is kept


class Voice:
    """The weights of every user's gradients, new and remembered, summed over rounds and layers."""

    def __init__(self, users: int) -> None:
        self.total: Floats = np.zeros(users if users <= MOST_USERS else 0)

    def hear(self, plan: RoundPlan, t: int, recall: Recall | None, everybody: float) -> None:
        """Add the weights of round t, before what is remembered changes by it."""
        if not len(self.total):
            return
        if recall is not None:
            self._hear_with_memory(plan, t, recall, everybody)
            return
        for group in plan.groups:
            # Not mean(), which takes twice as long on so few numbers.
            self.total[group.users] += group.weights.sum(axis=0) / len(group.weights)

    def _hear_with_memory(self, plan: RoundPlan, t: int, recall: Recall, everybody: float) -> None:
        layers, remembered = len(recall.layers), np.array(recall.remembered, np.int64)
        new = np.zeros((layers, len(self.total)))
        for group in plan.groups:
            new[:, group.users] = group.weights
        here = [np.flatnonzero(each).tolist() for each in new]
        nobody: list[list[int]] = [[] for _ in new]
        left = [
            recall.absent(t, layer, there)[: len(remembered)]
            for layer, there in enumerate(here if recall.rule.stands_in else nobody)
        ]
        old = np.zeros_like(new)
        if recall.rule.stands_in:
            # All together weigh 1: who arrived by number, who did not by what is left.
            for layer, absent in enumerate(left):
                total = len(here[layer]) + absent.sum()
                if total > 0:
                    new[layer] *= len(here[layer]) / total
                    old[layer, remembered] = absent / total
        else:
            # What arrives takes the place of what is remembered of its user.
            counts = recall.left(t, remembered.tolist()).T * recall.rule.beta
            new[:, remembered] *= 1 - counts
            old[:, remembered] = np.array(left) * recall.rule.beta / everybody
        self.total += (new + old).mean(axis=0)

    def shares(self) -> Floats:
        """Each user's share, which sum to 1; empty if nothing was heard or kept."""
        total = self.total.sum()
        return np.asarray(self.total / total) if total > 0 else np.empty(0)
