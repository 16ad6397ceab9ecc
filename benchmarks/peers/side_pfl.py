"""pfl (pfl-research): FederatedAveraging on its simulated backend; with torchrun, on all cores."""

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.internal.ops import pytorch_ops
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from torch.nn import functional as F

from common import Side, run_side


class Network(nn.Module):
    """The model as pfl wants it, with its loss; nothing is measured during training."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        self.train()
        return F.cross_entropy(self.net(inputs), labels)

    def metrics(self, *_: Tensor) -> dict[str, object]:
        return {}


def main(side: Side) -> None:
    job, net, data = side.start()
    model = PyTorchModel(Network(net), torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0))

    def dataset(user: int) -> Dataset:
        # Made anew every round: pfl goes through a data set in its order.
        return Dataset(data.of_user(user, None if job.epochs else job.batch), user_id=str(user))

    users = np.random.permutation(job.users).tolist()
    # As its documentation advises; users of a round differ, as on the other sides.
    sampler = get_user_sampler("minimize_reuse", users)
    federated = FederatedDataset(dataset, sampler)

    class Rounds(TrainingProcessCallback):
        def after_central_iteration(self, *_: object, **__: object) -> tuple[bool, Metrics]:
            side.round_done()
            return False, Metrics()

    FederatedAveraging().run(
        NNAlgorithmParams(side.rounds, side.rounds, job.cohort, None),
        SimulatedBackend(federated, federated),
        model,
        NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=job.rate, local_batch_size=job.batch
        ),
        callbacks=[Rounds()],
        send_metrics_to_platform=False,
    )
    processes = pytorch_ops.distributed.world_size
    if pytorch_ops.distributed.global_rank == 0:
        side.report(net, data, threads=torch.get_num_threads(), processes=processes)


if __name__ == "__main__":
    run_side(main)
