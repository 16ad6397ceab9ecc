"""How well `salf fleet calibrate` predicts a live run on Ray: depths and round times.

    python benchmarks/calibrated.py [--preset mnist-cnn] [--rounds 200] [--repeats 3]

Eight users, four of them twice as slow as the others. All are slowed, so that together they need
less than one core, as eight devices would that share none. Each device is calibrated by a process
of its own, all eight at the same time. The run is then predicted from these calibrations and T_max
alone.
"""

import argparse
import os
import tempfile
from multiprocessing import get_context
from pathlib import Path
from statistics import median

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from salf.core.draws import Keyed
from salf.core.layers import Layers
from salf.data import example
from salf.live.calibrate import calibrate
from salf.live.launch import run
from salf.live.slow import Slowdown
from salf.live.users import user_name
from salf.models import build
from salf.runs.live_config import LiveConfig, live, slowness
from salf.runs.presets import PRESETS
from salf.worlds.fleet.cost import Cost
from salf.worlds.fleet.deadlines import DeadlineSchedule
from salf.worlds.fleet.devices import Fleet
from salf.worlds.fleet.files import read, write
from salf.worlds.fleet.timing import Timing
from salf.worlds.fleet.world import OnFleet, deadline_for

USERS = 8
DEPTH, TIME = 0.2, 0.15  # to reach: a layer, and a part of the time of a round


def model_of(config: LiveConfig, rows: int) -> tuple[torch.nn.Module, Layers, torch.Tensor, int]:
    inputs, classes = example(config.data, rows)
    model = build(config.model, tuple(inputs.shape[1:]), classes, config.seed)
    return model, Layers.of(model, config.given_layers(), inputs), inputs, classes


def device(config: LiveConfig, slower: float, path: Path, ready: object) -> None:
    """Calibrate one device, as slow as its user, while the others do."""
    os.nice(1)  # as users on Ray
    model, layers, inputs, classes = model_of(config, config.batch_size)
    cost = Cost.of(model, layers, inputs)  # before the work that makes it slow is added
    if slower != 1:
        Slowdown(model, slower)
    ready.wait()  # type: ignore[attr-defined]
    found = calibrate(model, layers, cost, inputs, classes)
    write(path, path.stem, found.kind, found.jitter)


def calibrated(config: LiveConfig, folder: Path) -> Fleet:
    """The fleet of the devices of all users, calibrated at the same time."""
    spawn = get_context("spawn")
    ready, slow = spawn.Barrier(USERS), slowness(config.slow, USERS)
    paths = [folder / f"device-{number}.csv" for number in range(USERS)]
    processes = [
        spawn.Process(target=device, args=(config, slow[number], path, ready))
        for number, path in enumerate(paths)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    devices = [read(path) for path in paths]
    return Fleet.of(
        [1.0] * USERS,
        jitter=[float(np.max(each.jitter.sigma)) for each in devices],  # type: ignore[attr-defined]
        counted=[each.kinds[0] for each in devices],
    )


def predicted(
    config: LiveConfig, fleet: Fleet, rounds: int, reach: float
) -> tuple[float, list[float], float]:
    """T_max, the mean depth of each user, and the seconds of a round."""
    model, layers, inputs, _ = model_of(config, config.batch_size)
    timing = Timing(
        fleet,
        Cost.of(model, layers, inputs),
        lambda users: np.full(len(users), config.batch_size),
        lambda users: np.ones(len(users), np.int64),
    )
    seconds = deadline_for(timing, reach)
    world = OnFleet(timing, DeadlineSchedule((seconds,)))
    memory, depths = world.start(), []
    for t in range(1, rounds + 1):
        arrived, memory = world.arrivals(t, Keyed(0, t), np.arange(USERS), memory)
        depths.append(arrived.depth)
    return seconds, np.mean(depths, axis=0).tolist(), world.clock(memory) / rounds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", default="mnist-cnn")
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--slow", default="0.5x16,0.5x8")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument(
        "--reach", type=float, default=0.8, help="part of the layers to reach by T_max, predicted"
    )
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    console, apart, ratios = Console(), [], []
    for repeat in range(1, given.repeats + 1):
        config = live(
            PRESETS[given.preset],
            users=USERS,
            slow=given.slow,
            rounds=given.rounds,
            batch_size=given.batch_size,
            deadline=1.0,
            eval_every=given.rounds,
        )
        with tempfile.TemporaryDirectory() as folder:
            fleet = calibrated(config, Path(folder))
        seconds, depths, took = predicted(config, fleet, given.rounds, given.reach)
        rows = run(config.changed(deadline=seconds)).history.rows
        names = [user_name(number) for number in range(1, USERS + 1)]
        true = [float(np.mean([row.depths[name] for row in rows])) for name in names]
        times = float(np.mean([row.seconds for row in rows]))
        table = Table(title=f"{repeat}: T_max {1e3 * seconds:.1f} ms", title_justify="left")
        for column in ("", "slowed", "mean depth, predicted", "live"):
            table.add_column(column, justify="right")
        for name, slower, ours, theirs in zip(
            names, slowness(config.slow, USERS), depths, true, strict=True
        ):
            table.add_row(name, f"{slower:g} x", f"{ours:.2f}", f"{theirs:.2f}")
        table.add_row("round, ms", "", f"{1e3 * took:.1f}", f"{1e3 * times:.1f}")
        console.print(table)
        apart.append(float(np.mean(np.abs(np.subtract(depths, true)))))
        ratios.append(took / times - 1)
        console.print(
            f"mean depth of all users {np.mean(depths):.2f} predicted, {np.mean(true):.2f} live; "
            f"users differ by {apart[-1]:.2f} of a layer on average; round time {ratios[-1]:+.0%}"
        )
    console.print(
        f"medians of {given.repeats}: {median(apart):.2f} of a layer (to reach: {DEPTH}), round "
        f"time {median(ratios):+.0%} (to reach: {TIME:.0%})"
    )


if __name__ == "__main__":
    main()
