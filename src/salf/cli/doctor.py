"""`salf doctor`: what is installed and at hand here, and what to do about what is missing."""

import os
import platform
import re
import shutil
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version

from salf.cli.terminal import answer
from salf.common import version as installed

Check = tuple[str, str, str, str]  # a part, a name, what was found, and what to do about it


def doctor() -> None:
    """Show versions, cores, extras, data and caches, and what to do about what is missing."""
    checks = [*_machine(), *_packages(), *_data()]
    todo = [f"  {name}: {advice}" for _, name, _, advice in checks if advice]
    answer(
        [dict(zip(("part", "name", "found", "advice"), each, strict=True)) for each in checks],
        *(f"{part:14} {name:18} {found}" for part, name, found, _ in checks),
        "To have what is missing:" if todo else "Nothing is missing.",
        *todo,
    )


def _machine() -> Iterator[Check]:
    import torch

    from salf.runs.run import cores

    yield "machine", "Python", f"{platform.python_version()}, {platform.platform()}", ""
    yield "machine", "cores", f"{cores()} of {os.cpu_count()}", ""
    advice = f"set OMP_NUM_THREADS={cores()}" if torch.get_num_threads() > cores() else ""
    yield "machine", "threads of torch", str(torch.get_num_threads()), advice


def _packages() -> Iterator[Check]:
    """What salf needs, then what its extras bring."""
    yield "package", "salf", installed(), ""
    for needed in requires("salf") or []:
        name, extra = re.split(r"[^\w.-]", needed)[0], re.search(r"extra == .(\w+)", needed)
        if name == "salf" or (extra and extra[1] == "dev"):
            continue
        part, source = (f"extra {extra[1]}", f"salf[{extra[1]}]") if extra else ("package", name)
        try:
            yield part, name, version(name), ""
        except PackageNotFoundError:
            yield part, name, "missing", f"pip install '{source}'"


def _data() -> Iterator[Check]:
    from salf.data.loading import cache_folder
    from salf.data.named import INSTALLED, RECIPES

    cache = cache_folder()
    for name, recipe in RECIPES.items():
        places = [at for base in (cache / name, INSTALLED) for at in recipe.places(base)]
        found = [str(at) for at in places if len(recipe.find(at)) == len(recipe.files)]
        yield "data", name, "".join(found[:1]) or "missing", "" if found else f"salf data {name}"
    above = next(each for each in (cache, *cache.parents) if each.exists())
    advice = "" if os.access(above, os.W_OK) else "it cannot be written to: set SALF_CACHE"
    size = sum(each.stat().st_size for each in cache.rglob("*") if each.is_file())
    yield "cache", "data sets", f"{cache}, {size / 1e6:,.0f} MB", advice
    yield "cache", "free disk", f"{shutil.disk_usage(above).free / 1e9:,.1f} GB", ""
