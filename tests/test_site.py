"""The site is whole: every method, setting and public name has its place, and it builds."""

import ast
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import fields
from pathlib import Path

import pytest
import yaml

import salf
from salf.runs.settings import helps
from tools import site_pages

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
API = "\n".join(page.read_text("utf-8") for page in sorted((DOCS / "api").glob("*.md")))
LISTED = re.findall(r"^::: (\S+)$", API, re.MULTILINE)


def nav():
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))
    return site_pages.in_navigation(settings["nav"])


def test_every_public_name_is_on_one_page_of_the_reference():
    public = {f"salf.{name}" for name in salf.__all__}
    assert public <= set(LISTED)
    assert len(LISTED) == len(set(LISTED))
    index = (DOCS / "api/index.md").read_text("utf-8")
    assert not [name for name in LISTED if f"`{name.rpartition('.')[2]}`" not in index]


def test_names_of_the_reference_exist():
    for name in LISTED:
        module, _, last = name.rpartition(".")
        exec(f"from {module} import {last}")


def test_samples_import_what_is_public_only():
    modules = set(re.findall(r"`(salf[\w.]*)`", (DOCS / "api/index.md").read_text("utf-8")))
    private = []
    for page in [ROOT / "README.md", *DOCS.glob("*.md")]:
        for code in re.findall(r"(?ms)^```python\n(.*?)^```$", page.read_text("utf-8")):
            for node in ast.walk(ast.parse(code)):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("salf"):
                    if node.module.startswith("salf.methods."):
                        continue
                    names = [f"{node.module}.{each.name}" for each in node.names]
                    private += [n for n in names if not {n, _short(n)} & {*LISTED, *modules}]
    assert not private, "say on docs/api/index.md what is public"


def _short(name):
    """Names of salf are also where their module exports them: salf.data.load is salf.load."""
    short = f"salf.{name.rpartition('.')[2]}"
    return short if name.startswith("salf.data.") else name


def test_every_method_has_a_page_with_rule_figure_and_source():
    made = site_pages.pages()
    results = (DOCS / "figures/methods/results.json").read_text("utf-8")
    for name in salf.METHODS:
        page = made[f"methods/{name}.md"]
        assert f"methods/{name}.md" in nav()
        for part in ("## Rule", "## When", "## Figure", "## Source"):
            assert part in page
        ET.parse(DOCS / f"figures/methods/{name}.svg")
        assert f'"{name}"' in results or f'"{name}, 4 steps"' in results


def test_every_setting_is_on_the_page_of_settings():
    page = site_pages.pages()["api/settings.md"]
    shown = [f.name for f in fields(salf.Config) if f.name in helps()]
    assert len(shown) > 30
    assert not [name for name in shown if f"`{name}`" not in page]


def test_every_page_is_in_the_navigation(tmp_path):
    assert len(nav()) == len(set(nav()))
    pages = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}
    assert set(nav()) <= pages | set(site_pages.pages())
    (tmp_path / "new.md").write_text("# New\n")
    (tmp_path / "old.md").write_text("# Old\n")
    config = {"docs_dir": str(tmp_path), "nav": [{"Start": [{"Old": "old.md"}]}]}
    assert site_pages.on_config(config)["nav"][1] == {"More": ["new.md"]}


def test_links_of_the_readme_and_of_other_texts_lead_somewhere():
    made = {(DOCS / page).resolve() for page in site_pages.pages()}
    for name in (
        *site_pages.BENEATH,
        *(p.relative_to(ROOT).as_posix() for p in DOCS.rglob("*.md")),
    ):
        page = ROOT / name
        for link in re.findall(r"\]\(((?!https?:|#)[^)\s]+)\)", page.read_text("utf-8")):
            path = (page.parent / link.partition("#")[0]).resolve()
            assert path.exists() or path in made, f"{name}: {link}"


def test_the_readme_is_one_screen():
    readme = (ROOT / "README.md").read_text("utf-8")
    assert len(readme.splitlines()) < 120
    assert "@article{" in readme
    assert "@software{" in readme


def test_the_citation_and_the_workflow_can_be_read():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert citation["cff-version"] == "1.2.0"
    assert {"message", "title", "authors"} <= set(citation)
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text("utf-8"))
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    ran = [step["run"] for step in steps if "run" in step]
    assert {"make test", "make docs", "make lint"} == set(ran)
    assert "3.11" in workflow["jobs"]["test"]["strategy"]["matrix"]["python"]
    targets = re.findall(r"^(\S+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert not [each for each in ran if each.split()[1] not in targets]


def test_the_version_is_known_with_and_without_an_installation():
    assert re.match(r"\d+\.\d+", salf.__version__)
    code = f"import sys; sys.path.insert(0, {str(ROOT / 'src')!r}); import salf"
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"{code}; print(salf.__version__)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "0+unknown\n"


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path):
    pytest.importorskip("mkdocs", reason="the site's packages are installed by make docs")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr.strip()
    for name in ("index.html", "tutorial.html", "methods/salf.html", "search/search_index.json"):
        assert (tmp_path / name).exists()
    train = (tmp_path / "api/training.html").read_text("utf-8")
    assert 'id="salf.train"' in train
    assert 'data-md-color-scheme="slate"' in train
