"""Worlds: who arrives at each step, and how far, round after round.

A method weighs arrivals and never asks where they come from: a law of depth drawn anew each round,
users that deliver late, or the record of a live run. In a live federation the devices themselves
are the world.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from salf.common import registry
from salf.common.errors import SalfError
from salf.core.arrivals import Arrivals, Floats, Ints
from salf.core.draws import Draws, Purpose
from salf.worlds import depth
from salf.worlds.depth import DepthDistribution

Memory = npt.NDArray[Any]
Arrived = tuple[Arrivals, Memory]
DELAY = 2  # rounds that a straggler is late per layer, as the paper has it
NEEDS_CLOCK = "needs a clock that says how long users take: set a fleet, such as fleet='phones'."


class World(ABC):
    """Produces the arrivals of `users` users with `layers` layers.

    The state of a world between rounds is one array of numbers, which is part of the checkpoint:
    `start` creates it, and `arrivals` takes the last one and returns the next.
    """

    users: int
    layers: int
    counts_steps = False  # whether arrivals say how many local steps were done
    whole = False  # whether users deliver all local steps or none
    trusted = False  # whether nothing is checked: a round of a small model takes a millisecond

    @abstractmethod
    def arrivals(self, t: int, draws: Draws, users: Ints, memory: Memory) -> Arrived:
        """Who arrives in round t, in which these users are asked, and the state after it."""

    def unreached(self, t: int, users: Ints, memory: Memory) -> Floats:
        """p_l in round t, for l = 1..L: the probability that none of these users reaches the layer.

        By default users are independent. `memory` is the state before the round.
        """
        return np.asarray((1 - self.reach(t, users, memory)).prod(axis=1))

    def reach(self, t: int, users: Ints, memory: Memory) -> Floats:
        """P(user u reaches layer l in round t), [L, users], for methods that weigh by it."""
        raise depth.unknown_reach(self)

    def reach_in_steps(self, t: int, users: Ints, planned: Ints, memory: Memory) -> Floats:
        """`reach` with local steps: who stops in a later step than the first reached the layer."""
        reach = self.reach(t, users, memory)
        return reach if self.counts_steps else 1 - (1 - reach) / planned

    def busy(self, t: int, memory: Memory) -> Ints:
        """Users at work on an earlier round, which are asked only if there are too few others."""
        return np.empty(0, np.int64)

    def start(self) -> Memory:
        """The state before round 1."""
        return np.empty(0, np.int64)

    def clock(self, memory: Memory) -> float | None:
        """The simulated seconds so far; None in a world without a clock."""
        return None

    def models_in_use(self, memory: Memory) -> set[int]:
        """The rounds whose models some user is still computing on."""
        return set()

    def in_steps(self, arrived: Arrivals, planned: Ints, draws: Draws) -> Arrivals:
        """The arrivals with local steps: a straggler stops in any of the `planned` alike."""
        if self.counts_steps:
            return arrived
        if self.whole:
            steps = np.where(arrived.depth == 1, planned, 1)
        else:
            place = draws.uniform(arrived.user, Purpose.STEP)[:, 0]
            stopped = 1 + (place * planned).astype(np.int64)
            steps = np.where(arrived.straggler, stopped, planned)
        return replace(arrived, steps=steps, planned=planned)

    def checked(self, arrived: Arrivals, t: int) -> Arrivals:
        """The arrivals of round t, or an error that says what is wrong with them."""
        if self.trusted:
            return arrived
        does = f"{type(self).__name__}.arrivals must return"
        if not isinstance(arrived, Arrivals):
            raise SalfError(f"{does} salf.Arrivals, not a {type(arrived).__name__}.")
        limits = {
            "user": (0, self.users - 1),
            "depth": (1, self.layers + 1),
            "straggler": (0, 1),
            "age": (0, t - 1),
            "weight": (0, np.inf),
            "planned": (1, np.inf),
            "steps": (1, arrived.planned.max(initial=1)),
        }
        for name, (low, high) in limits.items():
            entries, shape = getattr(arrived, name), (np.size(arrived.user),)
            if not isinstance(entries, np.ndarray) or entries.shape != shape:
                raise SalfError(f"{does} {name} as an array of shape {shape}.")
            if arrived.users and not low <= entries.min() <= entries.max() <= high:
                raise SalfError(
                    f"{does} {name} from {low} to {high} in round {t}, not {entries.min()} to "
                    f"{entries.max()}."
                )
        return arrived

    def checked_unreached(
        self, t: int, users: Ints, planned: Ints | None, memory: Memory
    ) -> Floats:
        """p_l in round t, with local steps if so many are `planned`; an error if it cannot be."""
        unreached = np.asarray(self.unreached(t, users, memory), np.float64)
        if not self.trusted and (
            unreached.shape != (self.layers,) or not ((unreached >= 0) & (unreached <= 1)).all()
        ):
            raise SalfError(
                f"{type(self).__name__}.unreached must return {self.layers} probabilities, one "
                f"for each layer, not {unreached}."
            )
        if planned is None or self.counts_steps:
            return unreached
        # Nobody reaches the layer if all users also stop in their first step.
        return unreached / np.prod(planned, dtype=np.float64)

    def waiting(self) -> "World":
        """These users when the server waits for all of them."""
        return Finishing(self)

    def narrowed(self, width: float) -> "World":
        """These users when stragglers train a network of this width and so finish."""
        return Finishing(self)

    def late(self, delay: int | None = None) -> "World":
        """These users when stragglers deliver `delay` * d rounds later, d being their depth."""
        raise SalfError(f"{type(self).__name__} does not say how late its stragglers deliver.")

    def buffered(self, size: int) -> "World":
        """These users when the server takes a step whenever `size` updates have arrived."""
        raise SalfError(f"a buffer of updates {NEEDS_CLOCK}")

    def timely(self, fastest: float, most: int) -> "World":
        """These users when each is given what fits into the time of the `fastest` part of them.

        No user does the planned local steps more than `most` times.
        """
        raise SalfError(f"assigning work that fits {NEEDS_CLOCK}")


class AtDeadline(World):
    """Every round ends at its deadline; how deep users get by then follows a law."""

    def __init__(self, law: DepthDistribution) -> None:
        self.law, self.users, self.layers = law, law.users, law.layers
        self.trusted = type(law) in (depth.Uniform, depth.Mixture, depth.PerUser)

    def arrivals(self, t: int, draws: Draws, users: Ints, memory: Memory) -> Arrived:
        return self.law.draw(draws, users), memory

    def reach(self, t: int, users: Ints, memory: Memory) -> Floats:
        return self.law.reach(users)

    def unreached(self, t: int, users: Ints, memory: Memory) -> Floats:
        return self.law.unreached(users)

    def late(self, delay: int | None = None) -> World:
        return Late(self.law, DELAY if delay is None else delay)


class Finishing(World):
    """The users of a world, all of whom finish: the server waits, or stragglers have less to do."""

    whole = True

    def __init__(self, world: World) -> None:
        self.world, self.users, self.layers = world, world.users, world.layers

    def arrivals(self, t: int, draws: Draws, users: Ints, memory: Memory) -> Arrived:
        arrived, memory = self.world.arrivals(t, draws, users, memory)
        return replace(arrived, depth=np.ones_like(arrived.depth)), memory

    def reach(self, t: int, users: Ints, memory: Memory) -> Floats:
        return np.ones((self.layers, len(users)))

    def busy(self, t: int, memory: Memory) -> Ints:
        return self.world.busy(t, memory)

    def start(self) -> Memory:
        return self.world.start()

    def models_in_use(self, memory: Memory) -> set[int]:
        return self.world.models_in_use(memory)


GIVEN, DUE = 0, 1  # rows of the memory: the round a user was given its model, the round it delivers


class Late(AtDeadline):
    """A straggler of depth d is busy for `delay` * d rounds, then delivers all layers.

    It starts in round t, is busy in rounds t .. t + delay d - 1, and arrives in round t + delay d
    with that old update alone; it may be drawn as a straggler again at once.
    """

    whole = True

    def __init__(self, law: DepthDistribution, delay: int) -> None:
        super().__init__(law)
        self.delay = delay

    def start(self) -> Memory:
        """Nobody is busy: [given, due] x users, 0 for idle."""
        return np.zeros((2, self.users), np.int64)

    def busy(self, t: int, memory: Memory) -> Ints:
        return np.flatnonzero(memory[DUE] > t)

    def models_in_use(self, memory: Memory) -> set[int]:
        return set(memory[GIVEN][memory[DUE] > 0].tolist())

    def arrivals(self, t: int, draws: Draws, users: Ints, memory: Memory) -> Arrived:
        """Users on time, and those whose old update is due, whether they are asked again or not."""
        delivers, works = memory[DUE] == t, memory[DUE] > t
        idle = users[~works[users]]
        drawn = self.law.draw(draws, idle, busy=len(users) - len(idle))
        starts = idle[drawn.straggler]
        after = memory.copy()
        after[:, delivers] = 0
        after[GIVEN, starts], after[DUE, starts] = t, t + self.delay * drawn.depth[drawn.straggler]
        straggler = delivers.copy()
        straggler[starts] = True
        arrived = np.union1d(idle, np.flatnonzero(delivers))
        return Arrivals(
            np.where(straggler & ~delivers, self.layers + 1, 1)[arrived],
            straggler[arrived],
            len(users),
            user=arrived,
            age=np.where(delivers, t - memory[GIVEN], 0)[arrived],
        ), after


@dataclass(eq=False)
class Recorded(World):
    """Arrivals that were written down, round by round. Without `steps`, everybody did one."""

    users: int
    asked: Sequence[Ints]
    depths: Sequence[Ints]
    chances: Sequence[Floats]  # p_l
    steps: Sequence[Ints] | None = None
    recorded_reach: Sequence[Floats] | None = None

    counts_steps = True

    def __post_init__(self) -> None:
        self.layers = len(self.chances[0])

    def arrivals(self, t: int, draws: Draws, users: Ints, memory: Memory) -> Arrived:
        depths = self.depths[t - 1]
        steps = np.ones_like(depths) if self.steps is None else self.steps[t - 1]
        return Arrivals(depths, user=self.asked[t - 1], steps=steps, planned=steps), memory

    def in_steps(self, arrived: Arrivals, planned: Ints, draws: Draws) -> Arrivals:
        return Arrivals(arrived.depth, user=arrived.user, steps=arrived.steps, planned=planned)

    def unreached(self, t: int, users: Ints, memory: Memory) -> Floats:
        return self.chances[t - 1]

    def reach(self, t: int, users: Ints, memory: Memory) -> Floats:
        if self.recorded_reach is None:
            return super().reach(t, users, memory)
        return self.recorded_reach[t - 1]

    def waiting(self) -> World:
        return self


def parse(spec: str, users: int, layers: int, ratio: float) -> World:
    """The world that `--depth` names: a law of depth, or a law or world of one's own.

    Yours is called with those of the keywords `users`, `layers` and `stragglers` that it takes.
    """
    if depth.is_named(spec):
        return AtDeadline(depth.parse(spec, users, layers, ratio))
    offered = {"users": users, "layers": layers, "stragglers": ratio}
    made = registry.call("depth", spec, _own(spec), offered)
    if isinstance(made, DepthDistribution):
        return AtDeadline(made)
    if not isinstance(made, World):
        raise SalfError(
            f"the depth {spec!r} must return a salf.worlds.depth.DepthDistribution or a "
            f"salf.worlds.base.World, not a {type(made).__name__}."
        )
    return made


def check(spec: str) -> None:
    """Refuse a name that no distribution has; its numbers are looked at with the layers."""
    if not depth.is_named(spec):
        _own(spec)


def _own(spec: str) -> Any:
    return registry.find("distribution of depth", spec, dict.fromkeys(depth.DEPTHS), "salf.depths")
