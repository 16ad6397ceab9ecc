"""How well backpropagation keeps its deadline, and what it costs to watch the clock.

    OMP_NUM_THREADS=1 python benchmarks/deadlines.py [--repeats N] [--models vgg11,transformer]

After a short warm-up with no deadline, every deadline is kept by a learner of its own, and they
take turns with full passes, so that a machine that gets busy slows all alike. Over: how much later
than the deadline a round returned, in per cent of it. Finished: of the layers that are complete
by the deadline in the median full pass, the share that was completed; the way it is split shows
how many there were. Hooks: the processor's time of a full pass that watches the clock less that
of a plain one, in per cent of the plain backward pass; the median over all turns.
"""

import argparse
import os
from collections.abc import Callable
from statistics import median
from time import perf_counter, thread_time

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional as F

from salf.core.deadline import Backpropagation
from salf.core.layers import Layers
from salf.models import PAPER_MODELS

BATCH, WORDS, LENGTH, WIDTH = 16, 256, 32, 256
SHARES = (0.10, 0.25, 0.50, 0.75, 0.90)  # of a full pass
WARM_UP = 8
# To reach, on a quiet machine.
OVER_MEDIAN, OVER_P95, HOOKS, FINISHED = 2.0, 10.0, 3.0, 80.0


class Transformer(nn.Module):
    """A small one that predicts words, with the embedding as its output's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        block = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(block, 4, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, WORDS)
        self.head.weight = self.embed.weight
        # Larger ones make scores so far apart that gradients are denormal, and arithmetic slow.
        nn.init.normal_(self.embed.weight, std=WIDTH**-0.5)

    def forward(self, words: Tensor) -> Tensor:
        """The scores of all words, at each place."""
        return self.head(self.encoder(self.embed(words)))


def vgg11() -> tuple[nn.Module, Layers, Callable[[], Tensor]]:
    model = PAPER_MODELS["vgg11"]((3, 32, 32), 10)
    inputs, labels = torch.randn(BATCH, 3, 32, 32), torch.randint(0, 10, (BATCH,))
    return model, Layers.of(model), lambda: F.cross_entropy(model(inputs), labels)


def transformer() -> tuple[nn.Module, Layers, Callable[[], Tensor]]:
    model = Transformer()
    words = torch.randint(0, WORDS, (BATCH, LENGTH + 1))
    inputs, targets = words[:, :-1], words[:, 1:].reshape(-1)
    layers = Layers.of(model, example=inputs)
    return model, layers, lambda: F.cross_entropy(model(inputs).flatten(0, 1), targets)


MODELS = {"vgg11": vgg11, "transformer": transformer}


def busy(work: Callable[[], object]) -> float:
    begin = thread_time()
    work()
    return thread_time() - begin


def measure(name: str, repeats: int, console: Console, tables: tuple[Table, Table]) -> None:
    model, layers, loss = MODELS[name]()
    full = Backpropagation(model, layers)
    learners = [Backpropagation(model, layers) for _ in SHARES]

    def plain() -> None:
        loss().backward()
        model.zero_grad()

    def watched() -> None:
        full.within(None, loss)

    for _ in range(WARM_UP):
        for learner in (full, *learners):
            learner.within(None, loss)
        plain()
    added, backwards = [], []
    # A small difference of two large times: it takes more turns than the rest.
    for turn in track(range(3 * repeats), f"{name}, cost", console=console, transient=True):
        # Who comes second finds other memory, so they take turns in that, too.
        sides = (plain, watched) if turn % 2 else (watched, plain)
        times = {side: busy(side) for side in sides}
        added.append(times[watched] - times[plain])
        backwards.append(times[plain] - busy(loss))

    whole = median(full.within(None, loss).total for _ in range(WARM_UP))
    deadlines = [share * whole for share in SHARES]
    forwards, completions = [], []
    over: list[list[float]] = [[] for _ in SHARES]
    reached: list[list[int]] = [[] for _ in SHARES]
    for _ in track(range(repeats), f"{name}, deadlines", console=console, transient=True):
        partial = full.within(None, loss)
        forwards.append(partial.forward)
        each = [partial.layers[number] for number in range(len(layers), 0, -1)]
        completions.append(partial.forward + np.cumsum(each))
        for place, (deadline, learner) in enumerate(zip(deadlines, learners, strict=True)):
            begin = perf_counter()
            depth = learner.within(deadline, loss).depth
            took = perf_counter() - begin
            over[place].append(max(0.0, took / deadline - 1) * 100)
            reached[place].append(len(layers) + 1 - depth)

    possible = [int((np.median(completions, axis=0) <= deadline).sum()) for deadline in deadlines]
    keeping, cost = tables
    for place, share in enumerate(SHARES):
        # A round that was lucky and got further than the median pass makes up for no other.
        done = sum(min(number, possible[place]) for number in reached[place])
        could = possible[place] * repeats
        at_median, at_p95 = np.percentile(over[place], [50, 95])
        keeping.add_row(
            name,
            f"{share:.0%}",
            f"{deadlines[place] * 1e3:.1f}",
            verdict(at_median, at_median <= OVER_MEDIAN),
            verdict(at_p95, at_p95 <= OVER_P95),
            f"{max(over[place]):.1f}",
            f"{possible[place]} of {len(layers)}",
            f"{np.mean(reached[place]):.2f}",
            verdict(100 * done / could, 100 * done >= FINISHED * could) if could else "none to",
        )
    hooks = median(added) / median(backwards) * 100
    cost.add_row(
        name,
        str(len(layers)),
        str(len(list(model.parameters()))),
        f"{whole * 1e3:.1f}",
        f"{median(forwards) * 1e3:.1f}",
        f"{median(backwards) * 1e3:.1f}",
        verdict(hooks, hooks <= HOOKS),
    )


def verdict(value: float, reached: bool) -> str:
    return f"{value:.1f}" if reached else f"[bold]{value:.1f} ![/bold]"


def table(title: str, columns: list[str]) -> Table:
    made = Table(title=title)
    for column in columns:
        made.add_column(column, justify="left" if column == "model" else "right")
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=100, help="rounds for each deadline")
    parser.add_argument("--models", default=",".join(MODELS), help="comma-separated")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    console = Console(width=120)  # the tables do not fit into less
    before = os.getloadavg()[0]
    keeping = table(
        f"Deadlines, {arguments.repeats} rounds each, one thread; to reach: over ≤ {OVER_MEDIAN} % "
        f"(median), ≤ {OVER_P95} % (p95), finished ≥ {FINISHED} %",
        [
            *("model", "deadline", "ms", "over % median", "p95", "max"),
            *("layers possible", "mean done", "finished %"),
        ],
    )
    cost = table(
        f"What the clock costs; to reach: ≤ {HOOKS} % of a backward pass",
        ["model", "layers", "parameters", "full pass ms", "forward ms", "backward ms", "hooks %"],
    )
    for name in arguments.models.split(","):
        measure(name, arguments.repeats, console, (keeping, cost))
    console.print(keeping)
    console.print(cost)
    console.print(f"Load before {before:.1f}, after {os.getloadavg()[0]:.1f}; 1 is this benchmark.")


if __name__ == "__main__":
    main()
