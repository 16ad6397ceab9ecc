"""From a deadline to depths: as the paper maps them, and by the time each layer takes."""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from statistics import median
from time import perf_counter

import torch
from torch.nn.functional import cross_entropy

from salf.backprop import backward_to
from salf.experiments.pool import Progress
from salf.layers import Layers
from salf.models import build
from salf.reproduction.item import Json, Measurement
from salf.reproduction.sizes import Size

FULL_PASS = 7.5  # microseconds of a full backward pass of the CNN, as the paper measured it

_REPETITIONS = 300


def straggler_share(deadline: float) -> float:
    """The paper's linear map from a deadline to the ratio of stragglers."""
    return round(max(0.0, 1 - deadline / FULL_PASS), 4)


def timing(size: Size) -> Measurement:
    """The measurement of the layers' backward times."""
    config = size.configs["cnn"]
    what = {"model": config.model, "batch_size": config.batch_size, "repetitions": _REPETITIONS}
    return Measurement("layer-times", layer_times, what, work=3.0)


def layer_times(model: str, batch_size: int, repetitions: int, progress: Progress) -> Json:
    """Seconds from the loss down to each layer, in medians over the repetitions, on one core."""
    network = build(model, (1, 28, 28), 10, seed=0)
    layers = Layers.of(network)
    parameters = dict(network.named_parameters())
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(batch_size, 1, 28, 28, generator=generator)
    labels = torch.randint(10, (batch_size,), generator=generator)
    samples: list[list[float]] = [[] for _ in layers]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for repetition in range(repetitions):
            # One depth after the other, so that whatever slows the machine slows them all.
            for depth, seconds in enumerate(samples, 1):
                loss = cross_entropy(network(images), labels)
                start = perf_counter()
                backward_to(depth, loss, parameters, layers)
                seconds.append(perf_counter() - start)
            progress((repetition + 1) / repetitions)
    finally:
        torch.set_num_threads(threads)
    return {
        "kinds": [type(network.get_submodule(layer.name)).__name__ for layer in layers],
        "seconds": [median(seconds) for seconds in samples],
    }


def layer_shares(seconds: Sequence[float]) -> list[float]:
    """S_l: the part of the backward pass that is over when layer l is done, S_1 = 1.

    To three digits, so that what follows from them is not all noise of the measurement.
    """
    at_least_later = list(accumulate(reversed(seconds), max))[::-1]
    return [max(0.001, round(each / at_least_later[0], 3)) for each in at_least_later]


def timed_depths(deadline: float, shares: Sequence[float]) -> str:
    """The stragglers' depths if a full pass takes a time uniform on (0, 7.5]: S_l tau <= T_max.

    P(d <= l) = min(1, T_max / (7.5 S_l)), so that P(d = 1) is the share of those that finish, and
    a straggler is one that did not.
    """
    reach = [*(min(1.0, deadline / (FULL_PASS * share)) for share in shares), 1.0]
    late = [0.0, *(round((each - reach[0]) / (1 - reach[0]), 6) for each in reach)]
    chances = (after - before for before, after in pairwise(late))
    return "mixture:" + ",".join(f"{chance:.6f}" for chance in chances)
