"""The least versions of dependencies: none has a known hole, and what is tested is allowed."""

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MORE = PROJECT["optional-dependencies"].values()
REQUIRED = [Requirement(text) for group in (PROJECT["dependencies"], *MORE) for text in group]
# The first version without a hole, and the hole.
SAFE = {
    "ray": ("2.54", "CVE-2026-27482: pages in a browser call the dashboard"),
    "torch": ("2.8", "CVE-2025-32434 in torch.load, CVE-2025-3730 in ctc_loss"),
    "jinja2": ("3.1.6", "CVE-2025-27516: a template leaves its sandbox"),
    "pillow": ("12.1.1", "CVE-2026-25990: writes beyond a PSD image"),
    "filelock": ("3.20.3", "CVE-2025-68146 and CVE-2026-22701: a lock may follow a link"),
}


def least(name):
    (wanted,) = {r.specifier for r in REQUIRED if r.name == name}
    (bound,) = (Version(each.version) for each in wanted if each.operator == ">=")
    return bound


@pytest.mark.parametrize("name", SAFE)
def test_no_version_with_a_known_hole_is_allowed(name):
    assert least(name) >= Version(SAFE[name][0]), SAFE[name][1]


def test_the_versions_that_are_tested_are_allowed():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = dict(line.lower().split("==") for line in lines if "==" in line)
    for required in REQUIRED:
        if required.name != "salf" and required.name in pinned:
            assert pinned[required.name] in required.specifier, required
