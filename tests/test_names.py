"""One word for one thing, and docstrings that begin with what the thing is."""

import ast
import re
import tomllib
from collections import defaultdict
from pathlib import Path

import salf

HOME = Path(salf.__file__).parent
TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(HOME.rglob("*.py"))}
VAGUE = re.compile(r"(That|Those|The same|Of) ")


def type_names(tree: ast.Module) -> set[str]:
    """Classes and aliases of types: names like `Row`, defined at the top of a module."""
    found = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        names = [each.id for each in targets if isinstance(each, ast.Name)]
        found |= {name for name in names if re.fullmatch(r"[A-Z]+[a-z]\w*", name)}
    return {name for name in found if not name.startswith("_")}


def test_every_public_name_is_where_it_is_said_to_be():
    assert all(getattr(salf, name) is not None for name in salf.__all__)


def test_a_type_name_is_defined_in_one_module_only():
    homes = defaultdict(list)
    for path, tree in TREES.items():
        for name in type_names(tree):
            homes[name].append(str(path.relative_to(HOME)))
    several = {name: places for name, places in homes.items() if len(places) > 1}
    assert several.keys() <= ALLOWED, several


def test_docstrings_begin_with_what_the_thing_is():
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    vague = {
        (str(path.relative_to(HOME)), VAGUE.match(text)[0])
        for path, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, kinds) and VAGUE.match(text := ast.get_docstring(node) or "")
    }
    assert not vague, vague


def test_the_architecture_page_has_the_packages_in_the_order_of_the_import_contract():
    root = Path(__file__).parent.parent
    contract = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = next(each["layers"] for each in contract["contracts"] if "containers" in each)
    floors = [set(layer.split(" | ")) for layer in layers]
    page = (root / "docs" / "architecture.md").read_text()
    listed = re.findall(r"^      (\w+)/? +\S", page.split("src/salf/\n")[1], re.MULTILINE)
    assert set(listed) == set().union(*floors)
    places = [next(at for at, floor in enumerate(floors) if name in floor) for name in listed]
    assert places == sorted(places)


# Flower's strategy has the name of its method: `salf.flower.SALF`.
ALLOWED = {"SALF"}
