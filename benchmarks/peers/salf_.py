"""salf, as a user calls it."""

import jobs

import salf

name, job, stragglers, threads = jobs.asked()
model, done = jobs.network(name), jobs.Rounds()
parts = [range(u * job.samples, (u + 1) * job.samples) for u in range(job.users)]
salf.train(
    model,
    jobs.training_data(job),
    jobs.test_data(job),
    method="salf" if stragglers else "fedavg",
    split=[list(part) for part in parts],
    cohort=job.cohort if job.cohort < job.users else "all",
    **({"local_epochs": 1} if job.steps > 1 else {}),
    batch_size=job.batch,
    rounds=job.rounds + 1,
    eval_every=10**6,
    lr=job.rate,
    momentum=0.0,
    stragglers=stragglers,
    threads=threads,
    on_round=done,
)
done.report(model, job)
