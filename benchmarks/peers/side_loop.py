"""A plain PyTorch loop: what one writes without a framework, without waste.

The model is in place, users train it one after the other from the same weights, and differences
are summed up in place; nothing is copied or allocated that need not be.
"""

import numpy as np
import torch
from torch.nn import functional as F

from common import Side, batches, run_side


def main(side: Side) -> None:
    job, model, data = side.start()
    weights = list(model.parameters())
    start = [weight.detach().clone() for weight in weights]
    total = [torch.zeros_like(weight) for weight in start]
    optimizer = torch.optim.SGD(weights, lr=job.rate)
    model.train()
    for _ in range(side.rounds):
        for each in total:
            each.zero_()
        for user in np.random.choice(job.users, job.cohort, replace=False):
            with torch.no_grad():
                torch._foreach_copy_(weights, start)
            for inputs, labels in batches(job, data, user):
                optimizer.zero_grad()
                F.cross_entropy(model(inputs), labels).backward()
                optimizer.step()
            with torch.no_grad():
                torch._foreach_add_(total, weights)
        for mean, each in zip(start, total, strict=True):
            torch.div(each, job.cohort, out=mean)
        side.round_done()
    with torch.no_grad():
        torch._foreach_copy_(weights, start)
    side.report(model, data, threads=torch.get_num_threads())


if __name__ == "__main__":
    run_side(main)
