"""pfl-research, after its own benchmark of image classification."""

import jobs
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByUser
from pfl.algorithm import FederatedAveraging, NNAlgorithmParams
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import nn
from torch.nn import functional as F


class Model(nn.Module):
    """A network with the loss and the metrics that pfl asks for."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.net(inputs)

    def loss(self, inputs: torch.Tensor, labels: torch.Tensor, eval: bool = False) -> torch.Tensor:
        self.eval() if eval else self.train()
        return F.cross_entropy(self(inputs), labels)

    @torch.no_grad()
    def metrics(self, inputs: torch.Tensor, labels: torch.Tensor, eval: bool = True) -> dict:
        loss = self.loss(inputs, labels, eval)
        return {"loss": Weighted(float(loss) * len(labels), len(labels))}


class AfterRound(TrainingProcessCallback):
    def __init__(self, done: jobs.Rounds) -> None:
        self.done = done

    def after_central_iteration(self, *args: object, **kwargs: object):
        self.done()
        return False, Metrics()


name, job, _, _ = jobs.asked()
inputs, labels = (torch.from_numpy(array) for array in jobs.training_data(job))
model, done = Model(jobs.network(name)), jobs.Rounds()


def of_user(user: int) -> Dataset:
    own = slice(user * job.samples, (user + 1) * job.samples)
    return Dataset([inputs[own], labels[own]])


users = FederatedDataset(of_user, get_user_sampler("minimize_reuse", list(range(job.users))))
epochs = job.steps * job.batch >= job.samples
FederatedAveraging().run(
    NNAlgorithmParams(job.rounds + 1, 10**6, job.cohort, None),
    SimulatedBackend(users, users, postprocessors=[WeightByUser()]),
    PyTorchModel(model, torch.optim.SGD, torch.optim.SGD(model.parameters(), 1.0)),
    NNTrainHyperParams(
        local_batch_size=job.batch,
        local_num_epochs=1 if epochs else None,
        local_num_steps=None if epochs else job.steps,
        local_learning_rate=job.rate,
    ),
    NNEvalHyperParams(local_batch_size=1000),
    callbacks=[AfterRound(done)],
)
done.report(model.net, job)
