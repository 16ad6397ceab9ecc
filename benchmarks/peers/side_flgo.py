"""FLGo: its FedAvg on a task of its own making, users one after the other."""

import importlib
import os
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import flgo
import flgo.algorithm.fedbase as fedbase
import torch
from flgo.benchmark.partition import BasicPartitioner

import common
from common import Side, run_side

CONFIG = """
import common, os, torch
from pathlib import Path

data = common.Data(Path(os.environ["PEER_DATA"]))

class Images(torch.utils.data.Dataset):
    def __init__(self, images, labels):
        self.images, self.labels = images, labels

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.__getitems__([index])[0]

    def __getitems__(self, indices):
        index = torch.as_tensor(indices)
        return list(zip(common.scaled(self.images[index]), self.labels[index]))

train_data = Images(data.images, data.labels)
test_data = Images(data.test_images, data.test_labels)

def get_model():
    return common.network(os.environ["PEER_JOB"])
"""


class Part(torch.utils.data.Subset):
    """A user's samples; FLGo's own class is refused by the Subset of newer PyTorch versions."""

    def __init__(self, dataset: object, indices: list[int], perturbation: object = None) -> None:
        super().__init__(dataset, indices)


class Given(BasicPartitioner):
    def __init__(self, parts: list[list[int]]) -> None:
        self.parts = parts

    def __call__(self, data: object) -> list[list[int]]:
        return self.parts


def main(side: Side) -> None:
    job, model, data = side.start()

    class Server(fedbase.BasicServer):
        def iterate(self) -> bool:
            updated = super().iterate()
            side.round_done()
            return updated

    class Client(fedbase.BasicClient):
        pass

    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        sys.path.insert(0, folder)
        Path("config.py").write_text(CONFIG)
        made = flgo.gen_benchmark_from_file("peer_task", "config.py", folder)
        bench = importlib.import_module(made)
        bench.visualize = lambda *_: None  # it draws a figure of the partition
        importlib.import_module(".core", made).TaskPipe.TaskDataset = Part
        task = flgo.gen_task_by_(bench, Given(data.parts.tolist()), str(Path(folder, "task")))
        runner = flgo.init(
            task,
            SimpleNamespace(__name__="fedavg", Server=Server, Client=Client),
            {
                "num_rounds": side.rounds, "proportion": job.cohort / job.users,
                "num_epochs": 1, "num_steps": -1 if job.epochs else 1, "batch_size": job.batch,
                "learning_rate": job.rate, "train_holdout": 0.0, "eval_interval": -1,
                "seed": side.seed, "no_tqdm": True, "no_log_console": True,
                "torch_num_threads": torch.get_num_threads(),
            },
        )  # fmt: skip
        runner.model.load_state_dict(
            dict(zip(runner.model.state_dict(), model.state_dict().values(), strict=True))
        )
        runner.run()
    side.report(runner.model, data, threads=torch.get_num_threads())


if __name__ == "__main__":
    sys.path.insert(0, str(Path(common.__file__).parent))
    run_side(main)
