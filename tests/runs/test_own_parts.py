"""Methods, data sets, models, worlds and engines of one's own, wherever a name is taken."""

import sys
from pathlib import Path

import pytest

import salf
from salf.cli import main
from salf.core.rows import read_csv
from salf.report import names
from salf.runs.config import Config
from salf.runs.folder import METRICS
from salf.runs.presets import read_toml
from salf.runs.run import run

OWN = '''
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

import salf
from salf.worlds.depth import Uniform
from salf.engines import LoopEngine
from salf.methods.salf import SALF
from salf.worlds.base import World


@dataclass(frozen=True)
class Halves(SALF):
    """SALF with half of its step, or all of it."""

    whole: bool = False
    cap: int | None = None

    def divisor(self, closing):
        divisor = super().divisor(closing) * (1 if self.whole else 2)
        return divisor if self.cap is None else np.minimum(divisor, self.cap)


@dataclass(frozen=True)
class Part(SALF):
    keep_part: float | None = 0.5


class Crowd(SALF):
    def share(self, arrived, layers):
        return super().share(arrived, layers) / max(1, arrived.users)


def points():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(240, 6, generator=generator)
    y = (x[:, 0] > 0).long()
    return salf.from_tensors((x[:200], y[:200]), (x[200:], y[200:]))


def net(shape, classes):
    return nn.Sequential(nn.Linear(shape[0], 8), nn.ReLU(), nn.Linear(8, classes))


def law(users, layers):
    return Uniform(users, layers)


@dataclass(frozen=True)
class TurnTaking(World):
    """In round t user t finishes, the others reach the last layer."""

    users: int
    layers: int

    def arrivals(self, t, draws, users, memory):
        depth = np.full(self.users, self.layers)
        depth[t % self.users] = 1
        return salf.Arrivals(depth), memory

    def unreached(self, t, users, memory):
        return np.zeros(self.layers)


class Mine(LoopEngine):
    name = "mine"


not_a_method = 3
'''
SMALL = {"users": 5, "rounds": 4, "batch_size": 4, "eval_every": 2, "threads": 1}


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A file outside the package, in the current folder."""
    (tmp_path / "ownparts.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("ownparts", None)
    if str(tmp_path) in sys.path:
        sys.path.remove(str(tmp_path))


def test_every_part_of_a_run_can_be_named_by_import_path(own):
    config = Config(
        data="ownparts:points",
        model="ownparts:net",
        method="ownparts:Halves",
        depth="ownparts:TurnTaking",
        engine="ownparts:Mine",
        **SMALL,
    )
    result = run(config, own / "out")
    assert [row.reached for row in result.history.rows] == [(1, 5)] * 4
    assert result.summary["engine"] == "mine"
    assert run(config, own / "out", resume=True).summary == result.summary


COMMON = ["--data=ownparts:points", "--model=ownparts:net", "--users=5", "--rounds=3"]
COMMON += ["--batch-size=4"]


@pytest.fixture
def command(own, monkeypatch):
    """Run the command line in this process; returns its exit code."""

    def salf_command(*arguments):
        monkeypatch.setattr(sys, "argv", ["salf", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code or 0

    return salf_command


def test_options_of_any_simple_type_reach_an_own_method_from_the_command_line(command, capsys):
    def losses(out, *options):
        chosen = ("--method", "ownparts:Halves", "--lr", "0.1", "--out", out)
        assert command("run", *COMMON, *chosen, *options) == 0
        return [row.train_loss for row in read_csv(Path(out) / METRICS)]

    half = losses("half")
    whole = losses("whole", "--option", "whole=true", "--option", "cap=none")
    capped = losses("capped", "--option", "cap=1")
    assert half[0] == whole[0] == capped[0]  # the first batch is seen before any step
    assert len({half[-1], whole[-1], capped[-1]}) == 3
    assert command("run", "--method", "ownparts:Halves", "--option", "whole=perhaps") == 2
    said = "the option whole of halves must be of type bool, not 'perhaps'."
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"method": "ownparts:Nope"}, "unknown method of ownparts 'Nope'. Allowed: Crowd, Halves"),
        ({"method": "nowhere:Nope"}, "No module named 'nowhere' in the current folder"),
        ({"method": "ownparts:not_a_method"}, "must be a class derived from salf.Method"),
        ({"engine": "ownparts:Halves"}, "must be a class derived from salf.engines.Engine"),
        ({"options": {"whole": True}}, "unknown option of salf 'whole'"),
    ],
)
def test_what_is_not_what_was_named_is_refused_in_one_sentence(own, settings, said):
    with pytest.raises(salf.SalfError, match=said):
        Config(**settings)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"data": "ownparts:not_a_method"}, "cannot create the data set"),
        ({"data": "ownparts:points", "model": "ownparts:points"}, "not a torch.nn.Module"),
        (
            {"data": "ownparts:points", "depth": "ownparts:points"},
            "must return a salf.worlds.depth",
        ),
    ],
)
def test_a_part_that_makes_something_else_is_refused_in_one_sentence(own, settings, said):
    with pytest.raises(salf.SalfError, match=said):
        run(Config(**SMALL, **settings))


def test_an_option_set_to_none_is_kept_where_the_default_is_another(own):
    config = Config(method="ownparts:Part", options={"keep-part": "none"})
    assert config.make_method().keep_part is None
    assert read_toml(config.to_toml()) == config
    assert salf.method("ownparts:Part", keep_part=1.0).keep_part == 1.0


def test_a_share_that_depends_on_other_users_is_refused(own):
    with pytest.raises(salf.SalfError, match="share must depend on each user's own entry only"):
        run(Config(data="synthetic", method="ownparts:Crowd", **SMALL))


def test_two_methods_of_one_name_can_be_told_apart(own):
    (own / "ownparts.py").write_text(
        "import salf\nclass SALF(salf.methods.METHODS['salf']):\n  pass"
    )
    assert names.method("salf") == "SALF"
    assert names.method("ownparts:SALF") == "ownparts:SALF"


def test_a_package_brings_parts_by_entry_point(own, monkeypatch):
    installed = own / "installed"
    info = installed / "ownpackage-1.0.dist-info"
    info.mkdir(parents=True)
    (own / "ownparts.py").rename(installed / "ownparts.py")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ownpackage\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[salf.methods]\nhalves = ownparts:Halves\nbroken = ownparts:Nope\n"
        "[salf.data]\nownpoints = ownparts:points\n"
        "[salf.models]\nownnet = ownparts:net\n"
        "[salf.depths]\nturns = ownparts:TurnTaking\n"
        "[salf.engines]\nmine = ownparts:Mine\n"
    )
    monkeypatch.syspath_prepend(str(installed))
    config = Config(
        data="ownpoints", model="ownnet", method="halves", depth="turns", engine="mine", **SMALL
    )
    result = run(config)
    assert [row.reached for row in result.history.rows] == [(1, 5)] * 4
    with pytest.raises(salf.SalfError, match="cannot load the method 'broken' from ownparts:Nope"):
        Config(method="broken")
    with pytest.raises(salf.SalfError, match="halves"):
        Config(method="halfs")
