"""How much is run: `paper` is the paper's setting, `quick` what two cores do in 40 minutes."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from salf.experiments.config import PRESETS as CONFIGS
from salf.experiments.config import Config

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
class Preset:
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

    def config(self, model: str, method: str, average: str, ratio: float, seed: int) -> Config:
        """One run. FedAvg waits for everybody: it is one run whatever else is asked for."""
        waits, base = method == "fedavg", self.configs[model]
        # On MNIST, evaluations take as long as the training, so only what is drawn has them.
        drawn = waits or ratio == CURVES_AT or model.startswith("vgg")
        return base.changed(
            method=method,
            average="reached" if waits else average,
            stragglers=0.0 if waits else ratio,
            seed=seed,
            eval_every=base.eval_every if drawn else base.rounds,
            threads=1,
        )


PAPER = Preset(
    name="paper",
    seeds=5,
    # One seed can tell no two nets or methods apart; three may. It is a GPU's job anyway.
    vgg_seeds=3,
    nets=("vgg11", "vgg13", "vgg16", "vgg19"),
    nets_by_share=("vgg11", "vgg13", "vgg16", "vgg19"),
    vgg_averages=AVERAGES,
    deadlines=(1, 2, 3, 4, 5, 6, 7, 8, 9),
    draws=100_000,
    theorem_rounds=20_000,
    theorem_repeats=50,
)
QUICK = replace(
    PAPER,
    name="quick",
    seeds=3,
    vgg_seeds=1,  # what the time allows: no two curves can be told apart
    nets=("vgg11", "vgg13"),
    nets_by_share=("vgg11",),
    vgg_averages=("reached",),
    deadlines=(1, 2, 3, 5, 7, 9),
    draws=20_000,
    theorem_rounds=5_000,
    theorem_repeats=20,
    configs={
        # Fewer images to validate on: on one core, 10,000 take as long as 7 rounds.
        name: replace(config, rounds=60, eval_every=10, validation=0.04)
        if name.startswith("vgg")
        else config
        for name, config in _PAPER_CONFIGS.items()
    },
)
PRESETS: Mapping[str, Preset] = {preset.name: preset for preset in (QUICK, PAPER)}
