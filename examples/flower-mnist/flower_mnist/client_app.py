"""A node: it holds its data, and sends the layers it reached by the deadline."""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

import salf.flower
from flower_mnist.task import draw_batches, load_data, make_model, own_samples
from salf.live.slow import Slowdown, slowness

app = ClientApp()


@app.train()
def train(msg: Message, context: Context) -> Message:
    """One round of this node."""
    config = context.run_config
    number, nodes = context.node_config["partition-id"], context.node_config["num-partitions"]
    data = load_data(config)
    model = make_model(config, data)
    samples = own_samples(config, data, number, nodes)
    batches = draw_batches(config, samples, number, msg.content["config"]["server-round"])
    factor = slowness(config["slow"], nodes)[number]
    if factor > 1:
        Slowdown(model, factor)
    return salf.flower.train(model, lambda: next(batches), msg, context)
