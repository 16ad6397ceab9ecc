"""The server: it never waits for stragglers."""

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from flower_mnist.task import accuracy, load_data, make_model
from salf.flower import SALF

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """All rounds."""
    config = context.run_config
    data = load_data(config)
    model = make_model(config, data)

    def evaluate(round: int, arrays: ArrayRecord) -> MetricRecord:
        model.load_state_dict(arrays.to_torch_state_dict())
        return MetricRecord({"accuracy": accuracy(model, data.test)})

    strategy = SALF(
        model,
        lr=config["lr"],
        momentum=config["momentum"],
        local_steps=config["local-steps"],
        deadline=config["deadline"],
        grace=config["grace"] or None,
        method=config["method"],
        robust=config["robust"],
        state=config["state"] or None,
        record=config["record"] or None,
        min_available_nodes=config["min-nodes"],
        fraction_evaluate=0.0,
    )
    strategy.start(
        grid,
        ArrayRecord(model.state_dict()),
        num_rounds=config["num-server-rounds"],
        evaluate_fn=evaluate,
    )
