"""One word for one thing, and docstrings that begin with what the thing is."""

import ast
import re
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


def test_a_type_name_is_defined_in_one_module_only():
    homes = defaultdict(list)
    for path, tree in TREES.items():
        for name in type_names(tree):
            homes[name].append(str(path.relative_to(HOME)))
    several = {name: places for name, places in homes.items() if len(places) > 1}
    assert several.keys() <= STILL_TWICE, several


def test_docstrings_begin_with_what_the_thing_is():
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    vague = {
        (str(path.relative_to(HOME)), VAGUE.match(text)[0])
        for path, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, kinds) and VAGUE.match(text := ast.get_docstring(node) or "")
    }
    assert {place for place, _ in vague} <= STILL_VAGUE, vague


# To be emptied.
STILL_TWICE = {
    "Block",
    "Cell",
    "Floats",
    "Measured",
    "Plan",
    "Row",
    "SALF",
    "State",
    "Tensors",
    "Times",
    "Update",
    "User",
}
STILL_VAGUE = {
    "bench/bench.py",
    "bench/results.py",
    "bench/runs.py",
    "common/intervals.py",
    "core/inputs.py",
    "core/server.py",
    "data/samples.py",
    "data/sampling.py",
    "data/users_data.py",
    "engines/blocks.py",
    "engines/fused.py",
    "engines/stacked.py",
    "live/flower/strategy.py",
    "live/users.py",
    "methods/base.py",
    "methods/fedprox.py",
    "methods/fedvarp.py",
    "report/live/run.py",
    "report/measured.py",
    "report/seconds.py",
    "runs/plan.py",
    "stages/robust.py",
    "theory/planning.py",
    "worlds/base.py",
    "worlds/depth.py",
    "worlds/fleet/availability.py",
    "worlds/fleet/cost.py",
    "worlds/fleet/deadlines.py",
    "worlds/fleet/devices.py",
    "worlds/fleet/timely.py",
    "worlds/fleet/timing.py",
    "worlds/fleet/world.py",
}
