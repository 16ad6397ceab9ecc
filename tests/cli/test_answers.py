"""`--json` of every command, help, versions, and what salf says of itself."""

import json
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version

import pytest
import typer
from typer.main import get_command

from command import salf
from salf import cli
from salf.cli import doctor
from salf.data.named import RECIPES
from salf.methods import METHODS

TINY = ["--data", "synthetic", "--users", "4", "--rounds", "2", "--batch-size", "4"]


def commands():
    """Every command of salf by its words."""
    top = get_command(cli.app).commands
    groups = {name: each.commands for name, each in top.items() if hasattr(each, "commands")}
    nested = {(a, b): each for a, found in groups.items() for b, each in found.items()}
    return {**{(name,): each for name, each in top.items() if name not in groups}, **nested}


def test_every_command_has_json():
    assert {("run",), ("join",), ("fleet", "list")} <= {*commands()}
    for name, command in commands().items():
        assert "--json" in [option for each in command.params for option in each.opts], name


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        (["run", *TINY, "--threads", "1"], "test_accuracy"),
        (["compare", *TINY, "--methods", "salf", "--seeds", "1", "--out", "c"], "test_accuracy"),
        (["bench", "--suite", "digits"], "scenario"),
        (["layers", "mlp"], "parameters"),
        (["data", "digits"], "classes"),
        (["bound"], "C"),
        (["methods"], "options"),
        (["methods", "fedprox"], "file"),
        (["doctor"], "advice"),
        (["fleet", "list"], "about"),
        (["fleet", "preview", "digits-mlp", "--fleet", "phones", "--out", "p"], "reach"),
        (["fleet", "calibrate", "mlp", "--data", "digits"], "multiply_add"),
    ],
    ids=" ".join,
)
def test_json_is_one_document_and_nothing_else(tmp_path, no_processes, arguments, key):
    done = salf(*arguments, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout, parse_constant=lambda name: pytest.fail(name))
    assert key in (found[0] if isinstance(found, list) else found)
    # The next command in this process tells people again.
    assert salf("fleet", "list", cwd=tmp_path).stdout.startswith("phones")


def test_files_are_told_beside_the_json(tmp_path):
    asked = ("fleet", "preview", "digits-mlp", "--fleet", "phones", "--out", "p", "--json")
    told = salf(*asked, cwd=tmp_path).stderr.splitlines()
    assert told
    assert all(line.startswith("wrote p") for line in told)


def test_a_number_that_json_does_not_have_is_null(tmp_path):
    done = salf("bound", "--gap", "1e308", "--rho-s", "1e308", "--json", cwd=tmp_path)
    found = json.loads(done.stdout, parse_constant=lambda name: pytest.fail(name))
    assert None in found.values()


def test_the_version_is_printed_and_salf_alone_shows_the_help(tmp_path):
    done = salf("--version", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"salf {version('salf')}\n")
    alone = salf(cwd=tmp_path)
    assert "Usage:" in alone.stdout
    assert "compare" in alone.stdout
    assert alone.stderr == ""


@pytest.mark.parametrize("arguments", [["--help-all", "--nope"], ["fleet", "nope"], ["run", "-x"]])
def test_a_usage_error_is_a_sentence(tmp_path, arguments):
    done = salf(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith("salf: ")


def subclasses(kind):
    return [kind, *(each for own in kind.__subclasses__() for each in subclasses(own))]


@pytest.mark.parametrize("kind", subclasses(cli.ClickException), ids=lambda kind: kind.__name__)
def test_every_error_of_click_is_a_sentence(kind, capsys):
    """Also those that know of no parameter and no context, such as `Missing command.`"""
    try:
        error = kind("Missing command.")
    except TypeError:  # one that wants more
        error = kind("Missing command.", "more")
    except AttributeError:  # one of no arguments at all, which has printed the help
        return

    def command(standalone_mode):
        raise error

    with pytest.raises(SystemExit) as ended:
        cli.main(command)
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("salf: ")


def test_help_shows_the_usual_options_and_help_all_the_rest(tmp_path):
    usual, whole = (salf("run", each, cwd=tmp_path).stdout for each in ("--help", "--help-all"))
    for shown in ("--method", "--fleet", "--rounds", "--out", "--json", "--help-all"):
        assert shown in usual
    for rare in ("--tolerate", "--beta1", "--checkpoint-every", "--workers"):
        assert rare not in usual
        assert rare in whole
    assert len(usual.splitlines()) < 100
    few, all_ = (salf(each, cwd=tmp_path).stdout for each in ("--help", "--help-all"))
    assert " join " not in few
    assert " join " in all_
    # What --help leaves out works as before.
    done = salf("run", *TINY, "--tolerate", "1", "--threads", "1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_methods_are_shown_with_options_defaults_and_source(tmp_path):
    listed = salf("methods", cwd=tmp_path).stdout
    assert all(f"{name} " in listed for name in METHODS)
    assert "--option fade=20.0 (float | None, at least 0)" in listed
    one = salf("methods", "fedasync", cwd=tmp_path).stdout
    assert "Xie et al." in one
    assert "--option staleness=polynomial (constant | polynomial | hinge)" in one
    assert "runs on a fleet only" in one
    assert one.rstrip().endswith("fedasync.py")
    (tmp_path / "mine.py").write_text(
        '"""Mine."""\nimport salf\nfrom dataclasses import dataclass\n@dataclass(frozen=True)\n'
        'class Mine(salf.Method):\n    """All alike."""\n    rate: float = 2.0\n'
    )
    own = salf("methods", "mine:Mine", cwd=tmp_path).stdout
    assert "All alike." in own
    assert "--option rate=2.0 (float)" in own
    assert "Did you mean 'salf'" in salf("methods", "slaf", cwd=tmp_path).stderr


def test_the_doctor_says_what_is_missing_and_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setenv("SALF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("salf.data.named.INSTALLED", tmp_path)

    def no_ray(name):
        if name == "ray":
            raise PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(doctor, "version", no_ray)
    told = salf("doctor", cwd=tmp_path).stdout
    assert "  ray: pip install 'salf[ray]'\n" in told
    assert "  mnist: salf data mnist\n" in told
    assert f"{tmp_path / 'cache'}, 0 MB" in told
    found = json.loads(salf("doctor", "--json", cwd=tmp_path).stdout)
    names = {each["name"]: each["found"] for each in found}
    assert names["torch"] == version("torch")
    assert names["ray"] == names["mnist"] == "missing"
    assert {*RECIPES, "cores", "Python", "free disk"} <= {*names}
    home = tmp_path / "cache" / "mnist"
    home.mkdir(parents=True)
    for name in RECIPES["mnist"].files.values():
        (home / name).write_bytes(b"0")
    assert "salf data mnist" not in salf("doctor", cwd=tmp_path).stdout


def test_the_shell_completes_commands_options_and_presets():
    def completed(line):
        words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
        code = "import sys; sys.argv = ['salf']; from salf.cli import main; main()"
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, **words, "_SALF_COMPLETE": "complete_bash"},
            capture_output=True,
            text=True,
            timeout=60,
        )
        return done.stdout.split()

    assert completed("salf comp") == ["compare"]
    assert completed("salf run digits") == ["digits-mlp"]


def test_completion_can_be_installed(tmp_path):
    assert "--install-completion" in salf("--help", cwd=tmp_path).stdout
    assert isinstance(cli.app, typer.Typer)
