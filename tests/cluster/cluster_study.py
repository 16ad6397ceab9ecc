"""Run by test_studies.py in a process of its own, on a cluster of two nodes."""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import ray
import torch

import salf
from salf.cluster import Cluster, files
from salf.data.loading import cache_folder
from salf.runs.pool import Job

LOST = Path(os.environ["LOST"])  # a file that is there when the node is not
SETTINGS = {"data": "digits", "rounds": 1000, "users": 4, "methods": ["salf"], "seeds": 2}


class Slow(torch.nn.Module):
    """A model whose rounds wait a little on nodes until one of them is lost."""

    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(64, 10)

    def forward(self, x):
        if not LOST.exists():
            time.sleep(0.05)
        return self.head(x.flatten(1))


def accuracies(compared):
    return [record["test_accuracy"] for record in compared.records()]


def named(nodes, out, raylet):
    """A comparison by names; the second node is killed while both work."""

    submitted = []
    submit = nodes._submit
    nodes._submit = lambda name, job: submitted.append(name) or submit(name, job)

    def kill():
        parts = {}
        while sum(0 < part < 1 for part in parts.values()) < 2:  # both are at work
            time.sleep(0.05)
            parts = ray.get(nodes._desk.news.remote())
        os.kill(raylet, signal.SIGKILL)
        LOST.touch()

    threading.Thread(target=kill, daemon=True).start()
    there = salf.compare("cluster_study:Slow", out=out, workers=nodes, **SETTINGS)
    here = salf.compare("cluster_study:Slow", out=f"{out}-here", workers=1, **SETTINGS)
    assert accuracies(there) == accuracies(here)
    assert len(submitted) > 2, submitted  # one was lost
    models = list(Path(f"{out}-here").rglob("model.safetensors"))
    assert len(models) == 2
    for path in models:
        assert path.read_bytes() == Path(out, "runs", path.parent.name, path.name).read_bytes()
    assert not list(Path(out).rglob(".cluster-*"))


def own(nodes):
    """A comparison of objects that have no name."""
    torch.manual_seed(0)
    x = torch.randn(3000, 20)
    y = (x[:, 0] > 0).long()
    net = torch.nn.Sequential(torch.nn.Linear(20, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    given = {"test": (x[2000:], y[2000:]), "users": 5, "rounds": 20, "seeds": 1}
    given["methods"] = [salf.method("salf"), "drop"]
    there = salf.compare(net, (x[:2000], y[:2000]), workers=nodes, **given)
    here = salf.compare(net, (x[:2000], y[:2000]), **given)
    assert accuracies(there) == accuracies(here)


class Net(torch.nn.Module):
    """A model of one's own, whose users are computed one at a time because of its norm."""

    def __init__(self):
        super().__init__()
        self.filters, self.head = torch.nn.Conv2d(1, 4, 3), torch.nn.Linear(4 * 36, 10)
        self.norm = torch.nn.BatchNorm2d(4)

    def forward(self, x):
        return self.head(torch.relu(self.norm(self.filters(x))).flatten(1))


def rounds(nodes):
    """A run whose users are shared out; a worker is killed between two rounds."""
    config = salf.Config(
        data="digits", model="cluster_study:Net", users=9, rounds=5, local_steps=2, batch_size=4,
        lr=0.1, method="scaffold", threads=1,
    )  # fmt: skip
    made, sat = [], []

    class Watched:
        def crew(self, engine):
            made.append(nodes.crew(engine))
            return made[0]

    def kill(row, model):
        sat.append(len(made[0]._seats))
        if row.round == 2:
            ray.kill(made[0]._seats[0])

    there = salf.run(config, workers=Watched(), on_round=kill)
    here = salf.run(config, workers=1)
    assert "2 cores of a cluster" in there.summary["why"], there.summary["why"]
    assert sat == [2, 2, 1, 1, 1], sat
    assert [r.train_loss for r in there.history.rows] == [r.train_loss for r in here.history.rows]


def cached(done):
    """Where the node has its cache, and what is in the set there."""
    done(0.5)
    time.sleep(0.5)
    return str(cache_folder()), (cache_folder() / "set" / "train").read_text()


def data(nodes, out):
    """The second node has another home, and so another cache."""
    os.environ["SALF_CACHE"] = f"{out}-cache"
    files.write(cache_folder() / "set", {"train": b"x"})
    jobs = {f"job {n}": Job(cached, 1.0, reads=(cache_folder() / "set",)) for n in range(4)}
    found = set(nodes.do(jobs).results.values())
    del os.environ["SALF_CACHE"]
    assert len(found) == 2, found
    assert {content for _, content in found} == {"x"}, found


if __name__ == "__main__":
    address, out, raylet = sys.argv[1:]
    with Cluster(address) as nodes:
        rounds(nodes)
        own(nodes)
        data(nodes, out)
        named(nodes, out, int(raylet))
