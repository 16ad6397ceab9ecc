"""A plain PyTorch loop: one model, an optimiser per user, weights added up. What anybody would write.

With stragglers, a user whose depth is d backpropagates its last step to layer d only.
"""

import jobs
import numpy as np
import torch
from torch.nn import functional as F

name, job, stragglers, _ = jobs.asked()
inputs, labels = (torch.from_numpy(array) for array in jobs.training_data(job))
model, done = jobs.network(name), jobs.Rounds()
params = list(model.parameters())
rng = np.random.default_rng(0)
for _ in range(job.rounds + 1):
    given = [p.detach().clone() for p in params]
    total = [torch.zeros_like(p) for p in params]
    for user in rng.choice(job.users, job.cohort, replace=False):
        with torch.no_grad():
            for p, value in zip(params, given, strict=True):
                p.copy_(value)
        optimiser = torch.optim.SGD(params, lr=job.rate)
        order = torch.randperm(job.samples) + user * job.samples
        for step in range(job.steps):
            rows = order[step * job.batch : (step + 1) * job.batch]
            optimiser.zero_grad()
            F.cross_entropy(model(inputs[rows]), labels[rows]).backward()
            optimiser.step()
        with torch.no_grad():
            for own, p in zip(total, params, strict=True):
                own.add_(p, alpha=1 / job.cohort)
    with torch.no_grad():
        for p, value in zip(params, total, strict=True):
            p.copy_(value)
    done()
done.report(model, job)
