"""Count the lines of each package of src/salf, and the parameters of its largest constructors.

python tools/lines.py
"""

import ast
from collections import Counter
from pathlib import Path

HOME = Path(__file__).parent.parent
MOST = 10  # constructors to show


def parameters(tree: ast.Module) -> dict[str, int]:
    """How many parameters every constructor and top-level function has, by its name."""
    found = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            found[node.name] = _count(node)
        for each in node.body if isinstance(node, ast.ClassDef) else []:
            if isinstance(each, ast.FunctionDef) and each.name == "__init__":
                found[node.name] = _count(each) - 1  # self
    return found


def _count(function: ast.FunctionDef) -> int:
    of = function.args
    return len([*of.posonlyargs, *of.args, *of.kwonlyargs])


def main() -> None:
    """Print both, and the lines of the tests."""
    source = HOME / "src" / "salf"
    lines: Counter[str] = Counter()
    largest: dict[str, int] = {}
    for path in sorted(source.rglob("*.py")):
        place = path.relative_to(source)
        text = path.read_text(encoding="utf-8")
        lines[place.parts[0]] += text.count("\n")
        found = parameters(ast.parse(text)).items()
        largest |= {f"{name} ({place})": count for name, count in found}
    for package, count in lines.most_common():
        print(f"{count:6,}  {package}")
    print(f"{lines.total():6,}  src/salf")
    tests = sum(path.read_text().count("\n") for path in (HOME / "tests").rglob("*.py"))
    print(f"{tests:6,}  tests\n\nparameters of the largest constructors and functions:")
    for name, count in Counter(largest).most_common(MOST):
        print(f"{count:6}  {name}")


if __name__ == "__main__":
    main()
