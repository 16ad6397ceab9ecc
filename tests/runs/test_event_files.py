"""What a run tells TensorBoard, and MLflow and W&B by the code of docs/howto.md."""

import pickle
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from command import salf
from salf.runs.config import Config
from salf.runs.events import TensorBoard
from salf.runs.run import run

HOWTO = Path(__file__).parents[2] / "docs" / "howto.md"


def events(folder):
    read = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found = read.EventAccumulator(str(folder))
    found.Reload()
    return {name: found.Scalars(name) for name in found.Tags()["scalars"]}


def test_a_run_is_written_for_tensorboard_with_the_simulated_clock(tmp_path):
    fleet = ("--fleet", "phones", "--deadline", "12ms", "--seconds", "0.1")
    done = salf("run", "digits-mlp", *fleet, "--tensorboard", "events", "--out", "r", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found, lines = events(tmp_path / "events"), (tmp_path / "r/metrics.csv").read_text().split()
    assert [each.step for each in found["train_loss"]] == [*range(1, len(lines))]
    names = lines[0].split(",")
    assert found.keys() == {*names} - {"round"}
    clock = [float(line.split(",")[names.index("clock")]) for line in lines[1:]]
    assert [each.wall_time for each in found["accuracy"]][-1] == pytest.approx(clock[-1])


def test_every_run_of_a_comparison_has_a_folder(tmp_path, no_processes):
    asked = ("--methods", "salf,drop", "--seeds", "1", "--rounds", "2", "--stragglers", "0.5")
    done = salf("compare", "digits-mlp", *asked, "--tensorboard", "events", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    folders = sorted((tmp_path / "events").iterdir())
    assert [each.name.partition("-")[0] for each in folders] == ["drop", "salf"]
    assert len(events(folders[0])["train_loss"]) == 2
    assert pickle.loads(pickle.dumps(TensorBoard("a"))) == TensorBoard("a")  # for other processes


def test_without_the_package_the_way_out_is_said(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    done = salf("run", "digits-mlp", "--rounds", "1", "--tensorboard", "events", cwd=tmp_path)
    assert done.returncode == 2
    assert "pip install 'salf[tensorboard]'" in done.stderr


@pytest.mark.parametrize(("name", "call"), [("mlflow", "log_metrics"), ("wandb", "log")])
def test_the_callbacks_of_the_docs_say_every_round(name, call, monkeypatch):
    (code,) = re.findall(r"```python\n(def measured.*?)```", HOWTO.read_text(), re.DOTALL)
    said, given = [], {}
    recorder = SimpleNamespace(**{call: lambda values, step: said.append((step, values))})
    monkeypatch.setitem(sys.modules, name, recorder)
    exec(code, given)
    config = Config(data="digits", rounds=3, threads=1)
    history = run(config, on_round=given[f"to_{name}"]).history
    assert [step for step, _ in said] == [1, 2, 3]
    assert [values["train_loss"] for _, values in said] == [r.train_loss for r in history.rows]
