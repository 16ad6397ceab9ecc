"""The package imports where Unix-only modules of Python are absent, as on Windows."""

import subprocess
import sys

import pytest

CODE = """
import importlib, pkgutil, sys
for name in ("fcntl", "grp", "pwd", "resource", "termios"):
    sys.modules[name] = None
import salf
for module in pkgutil.walk_packages(salf.__path__, "salf."):
    if not any(part in module.name for part in ("ray", "cluster.rounds", "flower", "__main__")):
        importlib.import_module(module.name)
"""


@pytest.mark.slow
def test_nothing_that_is_imported_needs_a_module_of_unix():
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CODE], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
