"""Count the files, functions and changes of module that one round of `salf run` passes in src/salf.

    python tools/walk.py [--list] [arguments of `salf run`, by default: mnist-mlp --data synthetic]

Counted from the call of `runs.run.run(config, folder)` to its return, in a new process and with
`--rounds 1`, so with set-up, evaluation and the run's folder, but without the parsing of options.
Functions are those with a name: no lambdas, comprehensions or bodies of modules and classes. The
review that asked for a shorter way found 57 files, 274 functions and 516 changes of module; by this
script its version has 51, 278 and 590.
"""

import sys
import tempfile
from collections import Counter
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import FrameType

import salf
from salf.cli import app

HOME = Path(salf.__file__).parent
START = {str(HOME / place / "run.py") for place in ("runs", "experiments")}
DEFAULT = ("mnist-mlp", "--data", "synthetic")

Call = tuple[str, str, int]  # the file, the function's name and its line


def calls_of(arguments: list[str]) -> list[Call]:
    """All calls of salf's functions in a run of one round, from `run` on."""
    calls: list[Call] = []
    inside: list[FrameType] = []  # `run`, while it runs

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and not calls and code.co_name == "run" and code.co_filename in START:
            inside.append(frame)
        elif event == "return" and inside == [frame]:
            inside.clear()
        if not inside:
            return
        named = code.co_flags & CO_OPTIMIZED and "<" not in code.co_name
        if event == "call" and named and code.co_filename.startswith(str(HOME)):
            place = str(Path(code.co_filename).relative_to(HOME))
            calls.append((place, code.co_qualname, code.co_firstlineno))

    with tempfile.TemporaryDirectory() as folder:
        sys.setprofile(note)
        try:
            app(["run", *arguments, "--rounds", "1", "--out", f"{folder}/run"])
        except SystemExit as done:
            if done.code:
                raise
        finally:
            sys.setprofile(None)
    return calls


def main() -> None:
    """Print the three numbers and, with `--list`, the files with how often each is entered."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--list"]
    calls = calls_of(arguments or list(DEFAULT))
    entered = Counter(
        calls[at][0] for at in range(len(calls)) if not at or calls[at - 1][0] != calls[at][0]
    )
    functions = Counter(place for place, _, _ in set(calls))
    if "--list" in sys.argv:
        print("functions  entered  file")
        for place, times in entered.most_common():
            print(f"{functions[place]:9}  {times:7}  {place}")
    changes = sum(entered.values()) - 1
    print(f"{len(entered)} files, {len(set(calls))} functions, {changes} changes of module")


if __name__ == "__main__":
    main()
