"""How much is run: the paper's setting, or what two cores do in hours or in minutes."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from salf.data.named import RECIPES
from salf.runs.config import Config
from salf.runs.presets import PRESETS as CONFIGS

RATIOS = (0.3, 0.5, 0.7, 0.9)
CURVES_AT = 0.9  # the ratio at which the paper shows convergence on MNIST
METHODS = ("fedavg", "drop", "salf", "heterofl", "asyncfl")
WITH_DEADLINE = METHODS[1:]
# How layers are averaged: as the equations say, and over all users, as was published.
AVERAGES = ("reached", "all")

_PAPER_CONFIGS = {
    "mlp": replace(CONFIGS["mnist-mlp"], eval_every=5),
    "cnn": replace(CONFIGS["mnist-cnn"], eval_every=5),
    **{f"vgg{n}": CONFIGS[f"cifar-vgg{n}"] for n in (11, 13, 16, 19)},
}


@dataclass(frozen=True)
class Size:
    """The size of everything. `configs` are by model, up to method, stragglers and seed."""

    name: str
    seeds: int  # of the runs on MNIST
    vgg_seeds: int
    nets: tuple[str, ...]  # for fig-vgg90
    nets_by_share: tuple[str, ...]  # for fig-vgg
    vgg_averages: tuple[str, ...]  # for fig-vgg; fig-vgg90 has both
    deadlines: tuple[float, ...]  # of fig-latency, in microseconds
    draws: int  # of depths, for each point of the lemmas
    theorem_rounds: int
    theorem_repeats: int
    configs: Mapping[str, Config] = field(default_factory=lambda: _PAPER_CONFIGS)

    def seeds_of(self, model: str) -> range:
        """The seeds of this model's runs."""
        return range(self.vgg_seeds if model.startswith("vgg") else self.seeds)

    def seeded(self, model: str, method: str, average: str, ratio: float) -> list[Config]:
        """One run for each seed."""
        seeds = self.seeds_of(model)
        return [self.config(model, method, average, ratio, seed) for seed in seeds]

    def config(self, model: str, method: str, average: str, ratio: float, seed: int) -> Config:
        """One run. FedAvg waits for all users, so its run depends on model and seed only."""
        waits, base = method == "fedavg", self.configs[model]
        # On MNIST, evaluation takes as long as training, so only curves that are drawn have it.
        drawn = waits or ratio == CURVES_AT or model.startswith("vgg")
        return base.changed(
            method=method,
            average="reached" if waits else average,
            stragglers=0.0 if waits else ratio,
            seed=seed,
            eval_every=base.eval_every if drawn else base.rounds,
            threads=1,
        )


PAPER = Size(
    name="paper",
    seeds=5,
    vgg_seeds=3,  # one seed cannot tell two nets or methods apart
    nets=("vgg11", "vgg13", "vgg16", "vgg19"),
    nets_by_share=("vgg11", "vgg13", "vgg16", "vgg19"),
    vgg_averages=AVERAGES,
    deadlines=(1, 2, 3, 4, 5, 6, 7, 8, 9),
    draws=100_000,
    theorem_rounds=20_000,
    theorem_repeats=50,
)


def _shorter(rounds: int, eval_every: int) -> Mapping[str, Config]:
    """The paper's configs with so many rounds of VGG."""
    return {
        # On one core, validation on 10,000 images takes as long as 7 rounds.
        name: replace(config, rounds=rounds, eval_every=eval_every, validation=0.04)
        if name.startswith("vgg")
        else config
        for name, config in _PAPER_CONFIGS.items()
    }


# The paper's setting but for VGG, of which it runs the smallest net until FedAvg has learned.
MEDIUM = replace(
    PAPER,
    name="medium",
    nets=("vgg11",),
    nets_by_share=("vgg11",),
    vgg_averages=("reached",),
    configs=_shorter(rounds=300, eval_every=20),
)
QUICK = replace(
    PAPER,
    name="quick",
    seeds=3,
    vgg_seeds=1,
    nets=("vgg11", "vgg13"),
    nets_by_share=("vgg11",),
    vgg_averages=("reached",),
    deadlines=(1, 2, 3, 5, 7, 9),
    draws=20_000,
    theorem_rounds=5_000,
    theorem_repeats=20,
    configs=_shorter(rounds=60, eval_every=10),
)
SIZES: Mapping[str, Size] = {size.name: size for size in (QUICK, MEDIUM, PAPER)}


@dataclass(frozen=True)
class ItemSettings:
    """The settings an item was made with, as the folder remembers them."""

    size: str
    seeds: int | None = None  # of all runs; None: those of the size
    data_dir: str = ""

    def applied_to(self, size: Size) -> Size:
        """The size with these seeds, and with the data that `data_dir` holds taken from there."""
        if self.seeds is not None:
            size = replace(size, seeds=self.seeds, vgg_seeds=self.seeds)
        if not self.data_dir:
            return size
        configs = {
            name: replace(config, data_dir=self.data_dir)
            if _holds(Path(self.data_dir), config.data)
            else config
            for name, config in size.configs.items()
        }
        return replace(size, configs=configs)


def _holds(folder: Path, data: str) -> bool:
    recipe = RECIPES.get(data)
    return recipe is not None and any(map(recipe.find, recipe.places(folder)))
