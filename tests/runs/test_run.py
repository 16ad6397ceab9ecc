import csv
import json
import os
import signal

import pytest
import torch
from safetensors.torch import load_file

from salf.common.errors import SalfError, TrainingDiverged
from salf.core.server import Server
from salf.runs import run as run_module
from salf.runs import training as training_module
from salf.runs.config import Config
from salf.runs.presets import load_config
from salf.runs.run import complete, run
from salf.simulation import Simulation

KINDS = [
    *({"method": name} for name in ("salf", "heterofl", "asyncfl", "salf-recall", "fedau")),
    {"method": "asyncfl", "options": {"stale": "model", "delay": 1}},
    {"method": "fedstale"},
    *({"server": name, "local_steps": 3, "lr": 0.01} for name in ("adam", "yogi", "adagrad")),
]


class Killed(BaseException):
    """Stands for a process that ends at this very moment."""


def run_and_die(config, folder, at):
    """Run as if killed in round `at`, with a checkpoint after every round before."""

    def kill(row, model):
        if row.round == at:
            raise Killed

    with pytest.raises(Killed):
        run(config, folder, on_round=kill, checkpoint_every=0)
    assert not (folder / "summary.json").exists()


def model_bytes(folder):
    return (folder / "model.safetensors").read_bytes()


def metrics_without_time(folder):
    with (folder / "metrics.csv").open() as stream:
        return [
            {key: value for key, value in line.items() if key != "seconds"}
            for line in csv.DictReader(stream)
        ]


def test_a_run_leaves_all_its_files(tiny, tmp_path):
    result = run(tiny, tmp_path / "r")
    names = {path.name for path in (tmp_path / "r").iterdir()}
    assert names - {".lock"} == {
        "config.toml",
        "metrics.csv",
        "summary.json",
        "model.safetensors",
        "checkpoint.safetensors",
    }
    summary = json.loads((tmp_path / "r" / "summary.json").read_text())
    assert summary == result.summary
    wanted = "test_accuracy best_accuracy rounds seconds method stragglers seed versions"
    assert set(wanted.split()) <= set(summary)
    rows = metrics_without_time(tmp_path / "r")
    assert [int(row["round"]) for row in rows] == list(range(1, 13))
    assert [row["round"] for row in rows if row["accuracy"]] == ["4", "8", "12"]
    for row in rows:  # U^1 within U^2 within U^3, and one user of six finishes
        assert 1 <= int(row["reached_1"]) <= int(row["reached_2"]) <= int(row["reached_3"]) <= 6


def test_the_written_config_gives_the_same_run_bit_for_bit(tiny, tmp_path):
    first = run(tiny, tmp_path / "a")
    again = run(load_config(str(tmp_path / "a" / "config.toml")), tmp_path / "b")
    assert model_bytes(tmp_path / "a") == model_bytes(tmp_path / "b")
    assert metrics_without_time(tmp_path / "a") == metrics_without_time(tmp_path / "b")
    assert first.summary["test_accuracy"] == again.summary["test_accuracy"]
    other = run(tiny.changed(seed=4), tmp_path / "c")
    assert model_bytes(tmp_path / "a") != model_bytes(tmp_path / "c")
    assert other.summary["seed"] == 4


@pytest.mark.parametrize(("at", "kind"), [(1, KINDS[2]), *((7, kind) for kind in KINDS)], ids=str)
def test_a_killed_run_resumes_to_the_same_model_bit_for_bit(tiny, tmp_path, kind, at):
    config = tiny.changed(stragglers=0.7, **kind)
    run(config, tmp_path / "whole")
    run_and_die(config, tmp_path / "cut", at=at + 1)
    run(config, tmp_path / "cut", resume=True)
    assert model_bytes(tmp_path / "whole") == model_bytes(tmp_path / "cut")
    assert metrics_without_time(tmp_path / "whole") == metrics_without_time(tmp_path / "cut")


def interrupted_in(config, folder, monkeypatch, where, on_call, number=signal.SIGINT):
    """A signal arrives while `where`, a method of the simulation's parts, is called."""
    owner, name = where
    real, calls = getattr(owner, name), []

    def gets_the_signal(*arguments, **more):
        calls.append(1)
        if len(calls) == on_call:
            signal.raise_signal(number)
        return real(*arguments, **more)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, gets_the_signal)
        with pytest.raises(KeyboardInterrupt if number == signal.SIGINT else SystemExit):
            run(config, folder)


@pytest.mark.parametrize(
    "where",
    [(Server, "apply"), (training_module, "evaluate"), (Simulation, "step_until")],
    ids=["server's step", "evaluation", "round"],
)
def test_ctrl_c_at_any_moment_resumes_to_the_same_model(tiny, tmp_path, monkeypatch, where):
    run(tiny, tmp_path / "whole")
    interrupted_in(tiny, tmp_path / "cut", monkeypatch, where, on_call=2)
    assert (tmp_path / "cut" / "model.safetensors").exists()  # what there was is kept
    run(tiny, tmp_path / "cut", resume=True)
    assert model_bytes(tmp_path / "whole") == model_bytes(tmp_path / "cut")
    assert metrics_without_time(tmp_path / "whole") == metrics_without_time(tmp_path / "cut")


def test_a_second_ctrl_c_stops_at_once_and_costs_nothing_saved(tiny, tmp_path, monkeypatch):
    run(tiny, tmp_path / "whole")
    real, calls = Server.apply, []

    def presses_twice(*arguments):
        calls.append(1)
        if len(calls) == 5:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            raise AssertionError("the second one did not stop it")
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Server, "apply", presses_twice)
        with pytest.raises(KeyboardInterrupt):
            run(tiny, str(tmp_path / "cut"), checkpoint_every=0)
    run(tiny, str(tmp_path / "cut"), resume=True)
    assert model_bytes(tmp_path / "whole") == model_bytes(tmp_path / "cut")


def test_a_write_that_is_killed_leaves_the_checkpoint_before_it(tiny, tmp_path, monkeypatch):
    run(tiny, tmp_path / "whole")
    real, calls = os.replace, []

    def dies_in_the_middle(source, target):
        calls.append(target)
        if len(calls) == 6:
            raise Killed
        real(source, target)

    monkeypatch.setattr(os, "replace", dies_in_the_middle)
    with pytest.raises(Killed):
        run(tiny, tmp_path / "cut", checkpoint_every=0)
    monkeypatch.setattr(os, "replace", real)
    load_file(tmp_path / "cut" / "checkpoint.safetensors")  # whole, so it can be read
    run(tiny, tmp_path / "cut", resume=True)
    assert model_bytes(tmp_path / "whole") == model_bytes(tmp_path / "cut")


def test_heterofl_in_several_chunks_resumes_to_the_same_model(tmp_path):
    """Which group is seen first after resuming must not decide the size of the chunks."""
    config = Config(
        data="synthetic",
        model="cnn",
        method="heterofl",
        users=90,
        batch_size=16,
        rounds=4,
        depth="probabilities:0.02,0.2,0.2,0.2,0.38",  # hardly anybody finishes
        eval_every=4,
        threads=1,
    )
    run(config, tmp_path / "whole")
    run_and_die(config, tmp_path / "cut", at=3)
    run(config, tmp_path / "cut", resume=True)
    assert model_bytes(tmp_path / "whole") == model_bytes(tmp_path / "cut")


def test_two_processes_do_not_work_in_one_folder(tiny, tmp_path):
    def second(row, model):
        with pytest.raises(SalfError, match="another process is working in"):
            run(tiny, tmp_path / "r", resume=True)

    run(tiny, tmp_path / "r", on_round=second)


def test_resuming_goes_on_with_the_threads_it_was_begun_with(tiny, tmp_path):
    run(tiny, tmp_path / "r")
    assert run(tiny.changed(threads=0), tmp_path / "r", resume=True).config.threads == 1
    with pytest.raises(SalfError, match="differs in threads"):
        run(tiny.changed(threads=2), tmp_path / "r", resume=True)


@pytest.mark.parametrize(("named", "threads"), [("3", 3), ("", 7), ("0", 7), ("many", 7)])
def test_threads_not_set_are_those_of_the_environment_else_all_cores(monkeypatch, named, threads):
    monkeypatch.setenv("OMP_NUM_THREADS", named)
    monkeypatch.setattr(run_module, "cores", lambda: 7)
    assert complete(Config()).threads == threads
    assert complete(Config(threads=2)).threads == 2


@pytest.mark.parametrize("lr", [0.1, "step:0.1,5,0.5"])
@pytest.mark.parametrize("finished", [5, 8])
def test_a_run_that_is_given_more_rounds_ends_as_one_begun_with_them(tiny, tmp_path, finished, lr):
    config = tiny.changed(method="asyncfl", stragglers=0.7, lr=lr)
    run(config, tmp_path / "whole")
    run(config.changed(rounds=finished), tmp_path / "more")
    assert run(config, tmp_path / "more", resume=True).summary["rounds"] == 12
    assert model_bytes(tmp_path / "whole") == model_bytes(tmp_path / "more")
    assert metrics_without_time(tmp_path / "whole") == metrics_without_time(tmp_path / "more")
    assert load_config(str(tmp_path / "more" / "config.toml")).rounds == 12


def test_more_rounds_need_resume_and_fewer_are_refused(tiny, tmp_path):
    run(tiny, tmp_path / "r")
    with pytest.raises(SalfError, match=r"different config \(it differs in rounds\)"):
        run(tiny.changed(rounds=20), tmp_path / "r")
    with pytest.raises(SalfError, match="a run of 12 rounds, which cannot be shortened to 6"):
        run(tiny.changed(rounds=6), tmp_path / "r", resume=True)


def test_a_run_whose_learning_rate_ends_with_it_cannot_be_given_more_rounds(tiny, tmp_path):
    config = tiny.changed(lr="cosine:0.1")
    run(config, tmp_path / "r")
    with pytest.raises(SalfError, match=r"falls to 0 over its 12 rounds.* another out="):
        run(config.changed(rounds=20), tmp_path / "r", resume=True)


@pytest.mark.parametrize(
    ("where", "error"),
    [
        ((run_module, "from_config"), RuntimeError),
        ((Simulation, "step_until"), SalfError),
        ((Server, "apply"), Killed),
    ],
    ids=["assembly", "round 1", "step of round 1"],
)
def test_a_run_that_fails_in_its_first_round_leaves_the_folder_free(
    tiny, tmp_path, monkeypatch, where, error
):
    def fails(*arguments, **more):
        raise error("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(*where, fails)
        with pytest.raises(error):
            run(tiny, tmp_path / "r")
    assert {path.name for path in (tmp_path / "r").iterdir()} <= {".lock"}
    assert run(tiny.changed(lr=0.2), tmp_path / "r").summary["rounds"] == 12


def test_resuming_with_nothing_there_says_that_it_starts_anew(tiny, tmp_path):
    said = []
    run(tiny, tmp_path / "new", report=said.append)
    assert said == []
    run(tiny, tmp_path / "r", resume=True, report=said.append)
    assert said == [f"{tmp_path / 'r'} has no checkpoint yet: the run starts from the beginning."]
    run(tiny, tmp_path / "r", resume=True, report=said.append)
    assert len(said) == 1


def test_the_written_config_holds_whole_paths(tmp_path, monkeypatch):
    (tmp_path / "digits").mkdir()
    config = Config(data="folder:digits", data_dir="here").changed()
    monkeypatch.chdir(tmp_path)
    assert complete(config).data == f"folder:{tmp_path / 'digits'}"
    assert complete(config).data_dir == str(tmp_path / "here")


def test_a_folder_with_another_config_is_refused_and_left_alone(tiny, tmp_path):
    run(tiny, tmp_path / "r")
    before = {path.name: path.read_bytes() for path in (tmp_path / "r").iterdir()}
    for resume in (False, True):
        with pytest.raises(SalfError, match=r"different config \(it differs in users, lr\)"):
            run(tiny.changed(users=5, lr=0.2), tmp_path / "r", resume=resume)
    with pytest.raises(SalfError, match="Give resume=True"):
        run(tiny, tmp_path / "r")
    assert before == {path.name: path.read_bytes() for path in (tmp_path / "r").iterdir()}


def test_resuming_a_finished_run_returns_it_without_training(tiny, tmp_path, monkeypatch):
    first = run(tiny, tmp_path / "r")
    monkeypatch.setattr(run_module, "from_config", None)
    again = run(tiny, tmp_path / "r", resume=True)
    assert again.summary == first.summary
    assert again.history.curve == first.history.curve


def test_a_damaged_checkpoint_is_one_sentence(tiny, tmp_path):
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "config.toml").write_text(tiny.to_toml())
    (tmp_path / "r" / "checkpoint.safetensors").write_bytes(b"not a checkpoint")
    with pytest.raises(SalfError, match="Delete it to start over"):
        run(tiny, tmp_path / "r", resume=True)


def test_a_run_that_diverges_says_where_and_keeps_what_there_was(tiny, tmp_path):
    with pytest.raises(TrainingDiverged, match=r"in round \d+: the update of layer \d"):
        run(tiny.changed(lr=1e12), tmp_path / "r")
    rows = metrics_without_time(tmp_path / "r")
    assert rows
    weights = load_file(tmp_path / "r" / "model.safetensors")
    assert all(bool(torch.isfinite(tensor).all()) for tensor in weights.values())
    assert not (tmp_path / "r" / "summary.json").exists()
