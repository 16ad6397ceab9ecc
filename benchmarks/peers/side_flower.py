"""Flower: its simulation on Ray with its FedAvg, one actor of one thread on every core."""

import os
from functools import cache
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import nn
from torch.nn import functional as F

from common import JOBS, Data, Side, batches, network, run_side

client = ClientApp()


@cache
def prepared() -> tuple[nn.Module, Data]:
    """What an actor keeps from one user to the next."""
    torch.set_num_threads(1)
    return network(os.environ["PEER_JOB"]), Data(Path(os.environ["PEER_DATA"]))


@client.train()
def train(message: Message, context: Context) -> Message:
    """A user's local steps."""
    job, (model, data) = JOBS[os.environ["PEER_JOB"]], prepared()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=job.rate)
    for inputs, labels in batches(job, data, int(context.node_config["partition-id"])):
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    content = {
        "arrays": ArrayRecord(model.state_dict()),
        "metrics": MetricRecord({"num-examples": job.batch}),
    }
    return Message(content=RecordDict(content), reply_to=message)


def main(side: Side) -> None:
    job, model, data = side.start()
    server = ServerApp()

    @server.main()
    def run(grid: Grid, context: Context) -> None:
        strategy = FedAvg(
            fraction_train=job.cohort / job.users,
            fraction_evaluate=0.0,
            min_train_nodes=job.cohort,
            min_available_nodes=job.users,
        )

        def after(t: int, arrays: ArrayRecord) -> None:
            if t:
                side.round_done()

        found = strategy.start(
            grid, ArrayRecord(model.state_dict()), side.rounds, evaluate_fn=after
        )
        model.load_state_dict(found.arrays.to_torch_state_dict())

    cores = len(os.sched_getaffinity(0))
    run_simulation(
        server,
        client,
        job.users,
        backend_config={
            "init_args": {"num_cpus": cores, "include_dashboard": False},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )
    side.report(model, data, processes=cores)


if __name__ == "__main__":
    from side_flower import main as importable  # by the actors, unlike what is in __main__

    run_side(importable)
