"""salf, by `salf.train`: FedAvg without stragglers, or SALF with 90 % of them."""

import os

import salf
from common import Side, run_side


def main(side: Side) -> None:
    job, model, data = side.start()
    stragglers = float(os.environ.get("PEER_STRAGGLERS", "0"))
    local = {"local_epochs": job.epochs, "client_lr": job.rate} if job.epochs else {}
    history = salf.train(
        model,
        (data.images, data.labels),
        split=list(data.parts),
        users=job.users,
        cohort=job.cohort,
        batch_size=job.batch,
        rounds=side.rounds,
        method="salf" if stragglers else "fedavg",
        stragglers=stragglers,
        lr=1.0 if job.epochs else job.rate,
        momentum=0.0,
        seed=side.seed,
        on_round=side.round_done,
        **local,
    )
    side.report(model, data, engine=history.engine, why=history.why)


if __name__ == "__main__":
    run_side(main)
