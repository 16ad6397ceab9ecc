"""salf beside its peers: the same jobs, on this machine, each peer in an environment of its own.

    python benchmarks/peers/run.py [--jobs images,mlp,cnn] [--sides salf,pfl] [--rounds N]
                                   [--repeats N] [--out FILE.json]

Every side runs in a process of its own, all sides in turn and in another order in every repetition;
Flower runs once, because it takes as long as all others together. Rounds a second: one over the
median round but the first; the median over the repetitions, and the smallest and largest. "times
loop" is the median of the ratios within a repetition. Start-up: from launching the process to the
end of its first round, less one round. Memory: the largest sum over the side's processes, memory
that they share counted once (PSS). Early in training the accuracy is a matter of luck: whether a
side has learned what the loop has is judged by the loss on the test data. A side that cannot be
installed or fails is in the table, with the reason below. Prints Markdown and writes the numbers as
JSON.

MNIST is read from salf's cache or downloaded. The images are CIFAR-10 if the cache has it, or else
made from a seed: patterns of ten classes that are shifted and noisy.
"""

import argparse
import hashlib
import json
import math
import os
import platform
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from common import JOBS
from salf.data import load
from salf.data.loading import DataSet, cache_folder

HERE = Path(__file__).parent
PLACE = HERE.parent / ".peers"  # environments and data
CORES = len(os.sched_getaffinity(0))
LONGEST = 900  # seconds a side may take
APART = 0.1  # of what the loop has learned: models whose losses differ by less are the same
SAMPLE = 0.2  # seconds between two looks at a side's memory
BASE = "loop"


@dataclass(frozen=True)
class Kind:
    """A side: its script, the packages of its environment (none: this one), and what is set."""

    script: str
    environment: str = ""
    packages: tuple[str, ...] = ()
    settings: dict[str, str] = field(default_factory=dict)
    processes: int = 1  # that it is launched as
    most: int = 1_000  # repetitions, where a run takes minutes

    def command(self) -> list[str]:
        python = str(PLACE / self.environment / "bin" / "python")
        launch = [python if self.environment else sys.executable]
        if self.processes > 1:
            launch += ["-m", "torch.distributed.run", "--standalone"]
            launch += [f"--nproc-per-node={self.processes}"]
        return [*launch, str(HERE / f"side_{self.script}.py")]


PFL = ("pfl", "pfl", ("pfl[pytorch]",))
SIDES = {
    "salf": Kind("salf"),
    "salf, 90 % stragglers": Kind("salf", settings={"PEER_STRAGGLERS": "0.9"}),
    "pfl": Kind(*PFL),
    f"pfl, {CORES} processes": Kind(*PFL, processes=CORES),
    "Flower": Kind("flower", "flower", ("flwr[simulation]", "torch"), most=1),
    "FLGo": Kind("flgo", "flgo", ("flgo",)),
    BASE: Kind("loop", "loop", ("torch", "numpy")),
}


def environment(kind: Kind) -> str:
    """Make a side's environment unless it is there; why it cannot be made, or nothing."""
    if not (name := kind.environment):
        return ""
    pins, folder = HERE / f"{name}.txt", PLACE / name
    digest = hashlib.sha256(pins.read_bytes()).hexdigest()
    if (ready := folder / "ready").exists() and ready.read_text() == digest:
        return ""
    print(f"making the environment of {name}", file=sys.stderr)
    shutil.rmtree(folder, ignore_errors=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    pip += ["--disable-pip-version-check", "--constraint", str(pins), *kind.packages]
    for command in ([sys.executable, "-m", "venv", str(folder)], pip):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            return f"cannot be installed: {last_line(done.stderr)}"
    ready.write_text(digest)
    return ""


def last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"


def arrays_of(data: DataSet) -> dict[str, np.ndarray[Any, Any]]:
    return {
        "images": data.train.inputs.numpy(), "labels": data.train.labels.numpy(),
        "test_images": data.test.inputs.numpy(), "test_labels": data.test.labels.numpy(),
    }  # fmt: skip


def pictures() -> dict[str, np.ndarray[Any, Any]]:
    """As many images as CIFAR-10 has, of as many values: noisy patterns of ten classes."""
    rng = np.random.default_rng(0)
    patterns = rng.standard_normal((10, 3, 8, 8), dtype=np.float32).repeat(4, 2).repeat(4, 3)
    found: dict[str, np.ndarray[Any, Any]] = {}
    for prefix, count in (("", 50_000), ("test_", 10_000)):
        labels = rng.permutation(np.arange(count) % 10)
        found[f"{prefix}labels"] = labels
        images = np.empty((count, 3, 32, 32), np.uint8)
        for some in np.split(np.arange(count), 10):
            noise = rng.standard_normal((len(some), 3, 32, 32), dtype=np.float32)
            shifted = np.roll(patterns, rng.integers(-4, 5), axis=3)[labels[some]]
            images[some] = np.clip(128 + 40 * (shifted + 1.4 * noise), 0, 255)
        found[f"{prefix}images"] = images
    return found


def data_of(job: str) -> tuple[Path, str]:
    """The file with a job's data, made once, and where they are from."""
    if job != "images":
        name, users = "mnist", JOBS[job].users
    else:
        users = JOBS[job].users
        name = "cifar10" if (cache_folder() / "cifar10").is_dir() else "made from seed 0"
    file = PLACE / "data" / f"{job}-{name.replace(' ', '-')}.npz"
    if not file.exists():
        made = name == "made from seed 0"
        arrays = pictures() if made else arrays_of(load(name))
        total = len(arrays["labels"])
        count = total // users
        order = np.random.default_rng(0).permutation(total)[: users * count]
        file.parent.mkdir(parents=True, exist_ok=True)
        np.savez(file, parts=order.reshape(users, count), **arrays)
    return file, name


class Memory(threading.Thread):
    """Watches how much memory a process and all below it use."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._pid, self._done, self.most = pid, threading.Event(), 0

    def run(self) -> None:
        while not self._done.wait(SAMPLE):
            self.most = max(self.most, sum(map(_pss, _tree(self._pid))))

    def stop(self) -> int:
        self._done.set()
        self.join()
        return self.most


def _tree(pid: int) -> list[int]:
    found, todo = [], [pid]
    while todo:
        found.append(one := todo.pop())
        for children in Path(f"/proc/{one}/task").glob("*/children"):
            try:
                todo += map(int, children.read_text().split())
            except OSError:  # gone
                continue
    return found


def _pss(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


def measure(kind: Kind, job: str, rounds: int, seed: int) -> dict[str, Any]:
    """Run a side once: its report, or why there is none."""
    file, _ = data_of(job)
    own = {"PEER_JOB": job, "PEER_ROUNDS": str(rounds), "PEER_SEED": str(seed)}
    own |= {"PEER_DATA": str(file), "PEER_LAUNCHED": str(time.time()), **kind.settings}
    # Nobody sends statistics, and everybody decides on the number of threads.
    own |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    inherited = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    if kind.environment:
        inherited.pop("PYTHONPATH", None)
    process = subprocess.Popen(
        kind.command(),
        env=inherited | own,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    memory = Memory(process.pid)
    memory.start()
    try:
        out, errors = process.communicate(timeout=LONGEST)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return {"failed": f"took more than {LONGEST} s"}
    finally:
        most = memory.stop()
        process.kill()  # after an interrupt; it has ended otherwise
    if process.returncode or not out.strip():
        return {"failed": last_line(errors)}
    found: dict[str, Any] = json.loads(out.strip().splitlines()[-1])
    return found | {"memory": max(most, found.pop("rss")), "rate": 1 / median(found["seconds"])}


def spread(values: list[float], form: str) -> str:
    low, middle, high = min(values), median(values), max(values)
    if len(values) == 1:
        return format(middle, form)
    return f"{middle:{form}} ({low:{form}} to {high:{form}})"


def table(job: str, found: dict[str, list[dict[str, Any]]], rounds: int) -> list[str]:
    """The Markdown of a job."""
    lines = [
        f"| {JOBS[job].title} | rounds a second | times {BASE} | start-up s | memory MiB | "
        f"accuracy after {rounds} rounds | test loss |",
        "|---|---|---|---|---|---|---|",
    ]
    base = found.get(BASE, [])
    notes = []
    for side, runs in found.items():
        good = [run for run in runs if "failed" not in run]
        if reasons := [run["failed"] for run in runs if "failed" in run]:
            notes.append(f"{side}: {len(reasons)} of {len(runs)} runs failed: {reasons[0]}")
        if not good:
            lines.append(f"| {side} | failed | | | | | |")
            continue
        rates = [run["rate"] for run in good]
        pairs = [(a, b) for a, b in zip(runs, base, strict=False) if "rate" in a and "rate" in b]
        against = f"{median(a['rate'] / b['rate'] for a, b in pairs):.2f}" if pairs else ""
        form = ".1f" if median(rates) >= 10 else ".3f"
        lines.append(
            f"| {side} | {spread(rates, form)} | {against} | "
            f"{spread([run['startup'] for run in good], '.1f')} | "
            f"{spread([run['memory'] / 2**20 for run in good], '.0f')} | "
            f"{spread([run['accuracy'] for run in good], '.3f')} | "
            f"{spread([run['loss'] for run in good], '.3f')} |"
        )
        learned = [math.log(10) - run["loss"] for run in good]
        others = [math.log(10) - run["loss"] for run in base if "loss" in run] or learned
        margin, middle = APART * median(others), median(learned)
        if not min(others) - margin <= middle <= max(others) + margin:
            share = f"{middle / median(others) - 1:+.0%}"
            notes.append(
                f"{side}: not what the {BASE} has learned, but {share} (loss below log 10)"
            )
    return [*lines, "", *(f"- {note}" for note in notes)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", default=",".join(JOBS), help="comma-separated")
    parser.add_argument("--sides", help="those whose names begin with one of these")
    parser.add_argument("--rounds", type=int, help="instead of each job's own")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=HERE.parent / "peers.json")
    given = parser.parse_args()
    asked = [name.strip().lower() for name in (given.sides or "").split(",")]
    sides = {n: kind for n, kind in SIDES.items() if any(n.lower().startswith(a) for a in asked)}
    missing = {side: reason for side, kind in sides.items() if (reason := environment(kind))}
    machine = {"cores": CORES, "processor": platform.machine(), "python": sys.version.split()[0]}
    result: dict[str, Any] = {"machine": machine, "jobs": {}}
    print(f"{CORES} cores, {given.repeats} repetitions\n")
    for number, job in enumerate(given.jobs.split(",")):
        rounds = given.rounds or JOBS[job].rounds
        found: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
        for repeat in range(given.repeats):
            for side in list(sides)[:: -1 if repeat % 2 else 1]:
                if repeat >= sides[side].most:
                    continue
                print(f"{job}, {repeat + 1} of {given.repeats}: {side}", file=sys.stderr)
                if side in missing:
                    run: dict[str, Any] = {"failed": missing[side]}
                else:
                    run = measure(sides[side], job, rounds, repeat)
                found[side].append(run)
                _, source = data_of(job)
                result["jobs"][job] = {"rounds": rounds, "data": source, "sides": found}
                given.out.write_text(json.dumps(result, indent=1) + "\n")
        print("\n".join([*([""] if number else []), *table(job, found, rounds)]))
        print(f"- data: {result['jobs'][job]['data']}", flush=True)


if __name__ == "__main__":
    main()
