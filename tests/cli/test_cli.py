"""The command line as a person meets it."""

import csv
import json
import os
import signal
import subprocess
import sys

import pytest

from command import salf, salf_process
from processes import in_group, started, wait_until
from salf import cli

SMALL = ["--data", "synthetic", "--users", "6", "--rounds", "8", "--batch-size", "4"]
TINY = [*SMALL, "--threads", "1"]


@pytest.mark.slow
def test_a_run_prints_its_result_and_nothing_else(tmp_path):
    done = salf_process("run", *TINY, "--method", "drop", "--out", "r", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stderr == ""  # no progress where there is no terminal
    assert done.stdout.startswith("drop, 90 % stragglers: test accuracy 0.")
    summary = json.loads((tmp_path / "r" / "summary.json").read_text())
    assert f"{summary['test_accuracy']:.4f}" in done.stdout
    assert "(fused engine: the model is a plain nn.Sequential)" in " ".join(done.stdout.split())


def test_flags_go_over_the_config(tmp_path):
    (tmp_path / "c.toml").write_text('data = "synthetic"\nusers = 6\nrounds = 3\nbatch-size = 4\n')
    done = salf("run", "c.toml", "--rounds", "2", "--seed", "5", "--out", "r", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "r" / "config.toml").read_text()
    assert "rounds = 2" in text
    assert "seed = 5" in text
    assert "users = 6" in text


@pytest.mark.slow
def test_compare_prints_a_table_and_leaves_results_picture_and_page(tmp_path, no_processes):
    done = salf(
        *("compare", *SMALL, "--methods", "fedavg,salf", "--stragglers", "0.5", "--seeds", "2"),
        *("--out", "c"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    with (tmp_path / "c" / "results.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 4
    mean = sum(float(r["test_accuracy"]) for r in rows if r["method"] == "salf") / 2
    assert f"{mean:.4f}" in done.stdout
    for name in ("accuracy.svg", "report.html"):
        assert (tmp_path / "c" / name).stat().st_size > 1000


def test_compare_with_a_run_that_diverges_prints_the_rest_and_exits_with_2(tmp_path, no_processes):
    # With only stragglers Drop never moves, so the rate that is FedAvg's end does nothing to it.
    asked = ["--methods", "fedavg,drop", "--stragglers", "1.0", "--seeds", "1", "--lr", "1e12"]
    done = salf("compare", *SMALL, *asked, cwd=tmp_path)
    assert done.returncode == 2
    assert "Drop" in done.stdout
    assert done.stderr.startswith("salf: fedavg-reached-iid-0-0 failed: training diverged")


def test_layers_are_shown_with_work_and_bytes_and_nothing_is_fetched(tmp_path, monkeypatch):
    monkeypatch.setenv("SALF_DATA", str(tmp_path / "empty"))
    monkeypatch.setenv("COLUMNS", "120")
    done = salf("layers", "cnn", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("cnn on mnist: 4 layers")
    cells = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines()[1:]}
    # 5x5 kernels, 6 channels, 8x8 pixels: 57,600 multiply-adds, and twice as many backwards.
    # On a phone 3 products of 0.73 ms each, and 16 rows at 8.2 ps x 8.7.
    assert cells["2"] == ["3", "Conv2d", "906", "3,624", "57,600", "115,200", "2.4"]
    assert cells["total"][2:] == ["6,422", "25,688", "149,300", "212,200", "8.52"]
    assert "reaches layer l with probability l/5" in done.stdout
    assert done.stderr == ""
    assert not (tmp_path / "empty").exists()


def test_layers_of_a_module_are_its_blocks_or_as_given_and_what_is_frozen_is_shown(tmp_path):
    (tmp_path / "mynets.py").write_text(
        "from torch import nn\n"
        "class Net(nn.Module):\n"
        "    def __init__(self, shape, classes):\n"
        "        super().__init__()\n"
        "        self.head = nn.Linear(4, classes)\n"
        "        self.norm, self.stem = nn.BatchNorm1d(4), nn.Linear(64, 4)\n"
        "    def forward(self, x):\n"
        "        return self.head(self.norm(self.stem(x.flatten(1))))\n"
        "class Frozen(Net):\n"
        "    def __init__(self, shape, classes):\n"
        "        super().__init__(shape, classes)\n"
        "        self.stem.requires_grad_(False)\n"
    )
    asked = ("layers", "mynets:Net", "--data", "digits")
    done = salf(*asked, cwd=tmp_path)
    assert "2 layers" in done.stdout
    assert done.stderr == ""
    done = salf(*asked, "--layers", "stem,norm,head", cwd=tmp_path)
    assert "3 layers" in done.stdout
    frozen = ("layers", "mynets:Frozen", "--data", "digits")
    assert "Frozen parameters belong to no layer" in salf(*frozen, cwd=tmp_path).stdout
    first, _ = json.loads(salf(*frozen, "--json", cwd=tmp_path).stdout)
    assert [first[name] for name in ("name", "parameters", "frozen")] == ["stem", 8, 260]
    done = salf(*asked, "--layers", "head,stem+norm", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("salf: the layers are in the wrong order")
    assert done.stderr.endswith("The order is: stem + norm, head.\n")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["run", "mnist-mpl"], "Did you mean 'mnist-mlp'?"),
        (["run", *TINY, "--method", "slaf"], "Did you mean 'salf'?"),
        (["run", *TINY, "--data", "mnits"], "Did you mean 'mnist'?"),
        (["run", *TINY, "--stragglers", "1.5"], "at most 1, not 1.5"),
        (["run", *TINY, "--users", "60000"], "60000 users"),
        (["run", *TINY, "--model", "vgg11"], "at least 32x32"),
        (["run", *TINY, "--model", "nowhere:Net"], "cannot import the model"),
        (["run", *TINY, "--lr", "1e12"], "training diverged in round"),
        (["run", *TINY, "--split", "dirichlet:-1"], "dirichlet"),
        (["run", *TINY, "--option", "width"], "NAME=VALUE"),
        (["run", *TINY, "--depth", "fixed:nan,1,1,1,1,1"], "depth nan is not one of 1..4"),
        (["run", *TINY, "--device", "meta"], "set device to cpu."),
        (["run", *TINY, "--out", "broken.toml/sub"], "Not a directory: broken.toml/sub."),
        (
            ["run", *TINY, "--model", "raises:Net"],
            "cannot create the model 'raises:Net': no weights",
        ),
        (["run", *TINY, "--model", "normed:Net", "--batch-size", "1"], "does not fit a batch"),
        (["run", *TINY, "--resume"], "--resume needs --out"),
        (["run", "broken.toml"], "broken.toml"),
        (["rnu"], "No such command 'rnu'. Did you mean 'run'? See"),
        (["foo"], "No such command 'foo'. See"),
        (["data"], "Missing argument 'NAME': mnist | fashion-mnist"),
        (["replay"], "Missing argument 'FOLDER': The folder of a run"),
        (["run", "one", "two"], "run --help"),
        (["run", "--rounds", "many"], "--rounds"),
        (["run", "--no-such-flag"], "--no-such-flag"),
        (["compare", "--stragglers", "0.3,2"], "at most 1, not 2"),
        (["compare", *SMALL, "--methods", "fedavg,nope"], "unknown method 'nope'"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(tmp_path, arguments, says):
    (tmp_path / "broken.toml").write_text("users = [")
    (tmp_path / "raises.py").write_text("def Net():\n    raise RuntimeError('no weights')\n")
    (tmp_path / "normed.py").write_text(
        "from torch import nn\n"
        "def Net():\n"
        "    layers = nn.Linear(784, 8), nn.BatchNorm1d(8), nn.Linear(8, 10)\n"
        "    return nn.Sequential(nn.Flatten(), *layers)\n"
    )
    done = salf(*arguments, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert says in done.stderr
    assert done.stderr.startswith("salf: ")
    assert done.stderr.count("\n") == 1, done.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("run --out r", "with --resume"),
        ("live --out=r", "with --resume"),
        ("run mnist-mlp", "Nothing was saved"),
        ("compare --out c", "Repeat the command to continue"),
        ("compare", "Nothing was saved"),
    ],
)
def test_what_is_said_after_ctrl_c_fits_the_command(arguments, says):
    assert says in cli._how_to_continue(arguments.split())


def test_help_does_not_wait_for_torch(tmp_path):
    code = (
        "import sys\nfrom salf.cli import app\n"
        "for command in ('run', 'compare', 'live', 'data'):\n"
        "    app([command, '--help'], standalone_mode=False)\n"
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_sigterm_keep_the_run_and_say_how_to_continue(tmp_path, number):
    flags = [*TINY, "--rounds", "100000", "--out", "r", "--checkpoint-every", "0.1"]
    with started("-m", "salf", "run", *flags, cwd=tmp_path, stderr=subprocess.PIPE) as process:
        wait_until((tmp_path / "r" / "checkpoint.safetensors").exists)
        process.send_signal(number)
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 128 + number
    assert errors == "salf: stopped. Repeat the command with --resume to continue.\n"
    assert (tmp_path / "r" / "model.safetensors").exists()


@pytest.mark.slow
@pytest.mark.skipif(not os.path.isdir("/proc"), reason="needs /proc to see processes")
def test_a_comparison_that_is_terminated_or_killed_leaves_no_processes(tmp_path):
    long = ["--data", "synthetic", "--rounds", "100000", "--seeds", "2", "--workers", "2"]
    runs = tmp_path / "c" / "runs"

    def compare():
        command = ("-m", "salf", "compare", *long, "--out", "c")
        return started(*command, cwd=tmp_path, stderr=subprocess.PIPE)

    with compare() as process:
        wait_until(lambda: len(list(runs.glob("*/config.toml"))) >= 2)
        os.killpg(process.pid, signal.SIGTERM)  # to its workers as well, as systemd does
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 143
        assert errors == "salf: stopped. Repeat the command to continue.\n"
        wait_until(lambda: in_group(process.pid) == {})  # multiprocessing's tracker ends last
    assert len(list(runs.glob("*/checkpoint.safetensors"))) == 2  # each after a round
    with compare() as process:
        wait_until(lambda: len(in_group(process.pid)) >= 4)  # with two workers and their tracker
        process.kill()
        wait_until(lambda: not in_group(process.pid))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["live"], "a live run needs a deadline: set one, such as --deadline 50ms"),
        (["live", "--deadline", "50"], "a time needs a unit"),
        (["live", "--deadline", "0ms"], "the deadline must be a positive time"),
        (["live", "--deadline", "50ms", "--slow", "8"], "write SHARExFACTOR"),
        (
            ["live", "--deadline", "50ms", "--method", "heterofl"],
            "heterofl runs in the simulator only",
        ),
        (["live", "--deadline", "50ms", "--max-norm", "0"], "max-norm must be above 0"),
        (["live", "--deadline", "50ms", "--resume"], "--resume needs --out"),
        (["live", "--deadline", "1s", "--backend", "flower", "--here", "2"], "are for Ray"),
        (["live", "--deadline", "1s", "--address", "127.0.0.1:1"], "cannot connect to Ray"),
        (["join", "--share", "9/8"], "needs --share NUMBER/USERS"),
        (["replay", "nowhere"], "nowhere contains no live run"),
    ],
)
def test_live_says_what_is_wrong_in_a_sentence(tmp_path, arguments, told):
    synthetic = [] if arguments[0] == "replay" else ["--data", "synthetic"]
    done = salf(*arguments, *synthetic, cwd=tmp_path)
    assert done.returncode == 2
    assert told in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stdout == ""
