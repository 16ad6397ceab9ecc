"""The command line, called in this process: starting Python and torch would take seconds each."""

import io
import os
import subprocess
import sys
from contextlib import chdir, redirect_stderr, redirect_stdout
from unittest.mock import patch

import torch

from salf import cli


def salf(*arguments, cwd, main=cli.main):
    """What `salf ARGUMENTS` prints and returns in the folder `cwd`."""
    out, errors = io.StringIO(), io.StringIO()
    modules, threads = set(sys.modules), torch.get_num_threads()
    with (
        chdir(cwd),
        patch.object(sys, "argv", ["salf", *arguments]),
        patch.object(sys, "path", list(sys.path)),
        patch.dict(os.environ),
        redirect_stdout(out),
        redirect_stderr(errors),
    ):
        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code or 0
        finally:
            torch.set_num_threads(threads)
            _forget(modules, str(cwd))
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), errors.getvalue())


def _forget(modules, folder):
    """Another test may have another module of the same name."""
    for name in set(sys.modules) - modules:
        if str(getattr(sys.modules[name], "__file__", None) or "").startswith(folder):
            del sys.modules[name]


def salf_process(*arguments, cwd):
    """The same in a process of its own, for what depends on how it starts."""
    return subprocess.run(
        [sys.executable, "-m", "salf", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=300,
    )
