"""Settings of simulated and live runs: siblings, each setting written once."""

import pytest

import salf
import salf.live
from salf.cli.options import lists_of
from salf.cli.terminal import as_options
from salf.common.errors import SalfError
from salf.runs.config import Config
from salf.runs.live_config import LiveConfig
from salf.runs.presets import read_toml
from salf.runs.settings import names_of

# Of every setting a value that is not its default, with what it needs; {} if none goes alone.
OTHERS = {
    "data": "digits", "data_dir": "here", "split": "shards:2", "model": "cnn", "layers": "a,b",
    "method": "drop", "average": "all", "users": 7, "cohort": 5, "deadline": 0.5,
    "batches": "equal", "compress": "fp16", "robust": "median", "tolerate": 2,
    "rounds": 9, "lr": "step:0.1,10,0.5", "server": "adam", "momentum": 0.25, "beta1": 0.8,
    "beta2": 0.9, "epsilon": 0.01, "batch_size": 3, "local_steps": 2, "local_epochs": 2,
    "client_lr": 0.2, "validation": 0.25, "seed": 3, "eval_every": 4, "options": {"lucky": "kept"},
    "given": {"model": "Net"}, "files": {"fleet": "1f"}, "cohort_by": "samples", "weigh": "samples",
    "depth": "uniform", "stragglers": 0.5, "fleet": "phones", "availability": "sessions",
    "reach": "counted", "pair": "labels", "attack": "flip", "attackers": 2,
    "seconds": 2.5, "eval_seconds": 0.5, "device": "cuda", "engine": "loop", "threads": 2,
    "grace": 0.25, "slow": "0.5x8", "max_norm": 3.5, "backend": "flower",
}  # fmt: skip
NEEDS = {
    "beta1": {"server": "adam"}, "beta2": {"server": "adam"}, "epsilon": {"server": "adam"},
    "options": {"method": "drop"}, "cohort_by": {"cohort": 5}, "attackers": {"attack": "flip"},
}  # fmt: skip
CLOCKED = ("deadline", "availability", "pair", "seconds", "eval_seconds")


@pytest.mark.parametrize("kind", [Config, LiveConfig])
def test_every_setting_of_each_kind_goes_through_toml(kind):
    for name in names_of(kind):
        needed = NEEDS.get(name, {})
        if kind is LiveConfig:
            needed = {"deadline": 1.0, **needed}
        elif name in CLOCKED:
            needed = {"fleet": "phones"}
        config = kind(**{**needed, name: OTHERS[name]})
        assert getattr(config, name) == OTHERS[name] != kind.__dataclass_fields__[name].default
        assert f"\n{name.replace('_', '-')}" in f"\n{config.to_toml()}".replace("[", "")
        again = read_toml(config.to_toml())
        assert again == config
        assert type(again) is kind


def test_settings_of_the_other_kind_are_refused():
    for text in ("grace = 1.0\nstragglers = 0.5\ndeadline = 1.0", "backend = 'ray'\nfleet = 'pis'"):
        with pytest.raises(SalfError, match="unknown setting"):
            read_toml(text)


def test_a_federation_may_be_simulated_or_live():
    config = Config(data="digits", users=4, lr=0.3, stragglers=0.5, rounds=7)
    live = salf.live.config(config, deadline="50ms", slow="0.5x4")
    assert (live.data, live.users, live.lr, live.rounds, live.deadline) == (
        "digits",
        4,
        0.3,
        7,
        0.05,
    )
    assert live.simulated() == config.changed(stragglers=Config.stragglers)
    for name, value in (("fleet", "phones"), ("weigh", "samples"), ("attack", "flip")):
        with pytest.raises(SalfError, match="simulated users only"):
            salf.live.config(config.changed(**{name: value}), deadline="50ms")


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (
            "set one, such as deadline='2s' or seconds=600.",
            "such as --deadline 2s or --seconds 600.",
        ),
        ("Give resume=True, or another out=.", "Give --resume, or another --out."),
        ("batch_size must be at least 1, not 0.", "batch-size must be at least 1, not 0."),
        ("use options={'buffer': 5}.", "use --option buffer=5."),
        ("cannot read runs/batch_size.csv of asyncfl(delay=3).",) * 2,
    ],
)
def test_the_command_line_says_options_where_python_says_arguments(said, shown):
    assert as_options(said).endswith(shown)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"lr": ["0.03,0.1"]}, {"lr": ["0.03", "0.1"]}),
        ({"lr": ["step:0.1,50,0.5"]}, {"lr": "step:0.1,50,0.5"}),
        ({"lr": ["0.1", "step:0.1,50,0.5"]}, {"lr": ["0.1", "step:0.1,50,0.5"]}),
        ({"lr": ["0.1,step:0.1,50,0.5"]}, {"lr": ["0.1", "step:0.1,50,0.5"]}),
        ({"split": ["iid,dirichlet:0.1"]}, {"split": ["iid", "dirichlet:0.1"]}),
        ({"depth": ["fixed:1,2"], "users": ["2"]}, {"depth": "fixed:1,2", "users": "2"}),
        ({"depth": ["probabilities:0.5,0.3,0.2"]}, {"depth": "probabilities:0.5,0.3,0.2"}),
        ({"depth": ["uniform,mixture"]}, {"depth": ["uniform", "mixture"]}),
        ({"layers": ["stem,head"]}, {"layers": "stem,head"}),
        (
            {"fleet": ["phones:speed=2,jitter=0.3"], "deadline": ["1s,2s"]},
            {"fleet": "phones:speed=2,jitter=0.3", "deadline": ["1s", "2s"]},
        ),
        (
            {"fleet": ["phones,pis"], "availability": ["markov:30,10"]},
            {"fleet": ["phones", "pis"], "availability": "markov:30,10"},
        ),
        ({"data": ["folder:a,b/c"]}, {"data": "folder:a,b/c"}),
    ],
)
def test_a_text_with_commas_is_several_values_if_each_part_is_one(given, found):
    assert lists_of(given) == found
