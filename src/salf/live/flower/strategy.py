"""SALF as a Flower strategy: rounds that end at their deadline, from whatever layers came."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from logging import INFO, WARNING
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result
from torch import Tensor, nn

from salf.common.errors import SalfError
from salf.core.layers import Layers, Prefixes
from salf.core.rows import Row, with_metrics
from salf.core.server import SGD, Schedule
from salf.live.flower.link import GridLink, grace_of
from salf.live.flower.mail import Mail
from salf.live.rounds import Rounds, wait_for
from salf.live.server import LiveServer, ServerSettings
from salf.problem import Problem
from salf.worlds.fleet import deadlines
from salf.worlds.fleet.deadlines import Deadline

log = logging.getLogger("flwr").log  # where all of Flower's own strategies write

WAITING = "[WAITING]"  # how a line of the log begins that says why nothing happens

Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]


@dataclass(frozen=True)
class FlowerSettings(ServerSettings):
    """The settings of a strategy beside those of FedAvg."""

    robust: str = "mixed"  # because anybody may have a node
    momentum: float = 0.0
    grace: float | None = None
    layers: Sequence[Prefixes] | None = None
    example: Tensor | None = None
    evaluate_timeout: float = 60.0
    seed: int = 0


class SALF(FedAvg):
    """Federated learning that never waits for stragglers.

        strategy = SALF(model, lr=0.1, deadline=2.0)
        result = strategy.start(grid, ArrayRecord(model.state_dict()), num_rounds=100)

    Every node receives the model and `deadline`, the seconds that its call of `salf.flower.train`
    may take, and replies with the gradients of the layers it reached. A round closes when all nodes
    have replied, or `grace` seconds after the deadline, by default learned from the time that
    replies spend in transit. Each layer moves by `lr` times the mean over the nodes that reached
    it, divided by 1 - p_l.

    - `deadline`: seconds, None (for methods that wait), or "auto", which adapts the deadline so
      that nodes reach 70 % of their layers on average ("auto:0.8" for 80 %).
    - `method`: "salf", "drop" (only nodes that finished count), "fedavg" (waits for all nodes),
      another name, a `salf.Method` or its import path.
    - `momentum`: that of the server. `optimiser` replaces it: `salf.core.server.Adam()`,
      `Yogi()` or `Adagrad()`.
    - `robust`: how layers are combined so that `tolerate` bad nodes cannot control them: "mixed",
      "median", or "none" if all nodes are trusted. It needs at least 2 `tolerate` + 1
      nodes, and memory for as many models as there are nodes.
    - `local_steps`, `client_lr`, `unreached`, `max_norm`, `compress`: see
      `salf.live.server.ServerSettings`.
    - `layers`, `example`: the layers, if the default is not what you want (see `Layers.of`); or
      pass a `salf.Problem` in place of the model.
    - `state`: a file that stores every closed round; a new start continues after the last one.
    - `record`: a file that gets a line of JSON per round.
    - `evaluate_timeout`: the maximum duration of federated evaluation, in seconds.

    The other settings are those of FedAvg: `fraction_train` (sampled with `seed`),
    `min_available_nodes`, ...
    """

    def __init__(
        self,
        model: nn.Module | Problem,
        *,
        lr: float | Schedule,
        deadline: float | str | Deadline | None,
        state: str | Path | None = None,
        record: str | Path | None = None,
        **settings: Any,
    ) -> None:
        if isinstance(deadline, str):
            deadline = deadlines.parse(deadline)
        own = [each.name for each in fields(FlowerSettings) if each.name in settings]
        given = FlowerSettings(**{name: settings.pop(name) for name in own})
        if given.optimiser is None:
            given = replace(given, optimiser=SGD(given.momentum))
        super().__init__(**settings)
        if isinstance(model, nn.Module):
            layers = Layers.of(model, given.layers, given.example)
            model = Problem(model, layers, example=given.example)
        self.model, self.deadline = model.model, deadline
        self.state = None if state is None else Path(state)
        self.record = None if record is None else Path(record)
        self.settings, self.grace = given, grace_of(given.grace, given.tolerate)
        self.server = LiveServer(model, lr, given)
        robust = self.server.pipeline.stages.robust
        # With fewer there is no majority against a bad one, and no layer would ever move.
        self._needed = 0 if robust is None else robust.needed
        self.min_available_nodes = max(self.min_available_nodes, self._needed)

    def summary(self) -> None:
        server = self.server
        names = ", ".join(layer.name for layer in server.layers)
        robust = server.pipeline.stages.robust or "none, all nodes are trusted"
        log(INFO, "\t├──> Rounds: %s, deadline %s", server.method.name, self.deadline)
        log(INFO, "\t│\t├──Robust: %s", robust)
        log(INFO, "\t│\t└──Layers: %d (%s)", len(server.layers), names)
        super().summary()

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Evaluate | None = None,
    ) -> Result:
        """Train up to round `num_rounds`, and return the model and the metrics of the rounds.

        `timeout` limits the rounds of methods that wait; the others have a deadline.
        """
        link = GridLink(
            grid,
            self.server.layers,
            self.grace,
            compress=self.settings.compress,
            config=train_config,
            timeout=timeout,
        )
        rounds = Rounds(
            self.server,
            link,
            self.deadline,
            self.grace,
            cohort=None if self.fraction_train == 1 else self._cohort,
            seed=self.settings.seed,
            on_wait=lambda sentence: log(WARNING, "%s %s", WAITING, sentence),
        )
        log(INFO, "Starting %s strategy: %d rounds", type(self).__name__, num_rounds)
        self.summary()
        try:
            self.model.load_state_dict(initial_arrays.to_torch_state_dict())
        except RuntimeError as error:
            raise SalfError(f"the arrays do not belong to the strategy's model: {error}") from None
        self.server.resume(self.state, self.record)
        if self.server.t:
            log(INFO, "Continuing after round %d, from %s", self.server.t, self.state)
        result = Result(arrays=ArrayRecord(self.model.state_dict()))
        self._evaluate_here(result, evaluate_fn)
        fewer = " (robust='none' needs fewer.)" * (self.min_available_nodes == self._needed)
        say = lambda sentence: log(INFO, "%s%s", sentence, fewer)  # noqa: E731
        wait_for(self.min_available_nodes, link.users, say)
        while self.server.t < num_rounds:
            log(INFO, "[ROUND %s/%s]", self.server.t + 1, num_rounds)
            row = rounds.next()
            result.arrays = ArrayRecord(self.model.state_dict())
            result.train_metrics_clientapp[row.round] = metrics = _metrics(row)
            log(INFO, "\t└──> Aggregated MetricRecord: %s", metrics)
            self._evaluate_there(result, grid, link, evaluate_config or ConfigRecord())
            self._evaluate_here(result, evaluate_fn)
            measured = result.evaluate_metrics_serverapp.get(row.round, MetricRecord())
            known = {name: value for name, value in measured.items() if isinstance(value, float)}
            self.server.keep(with_metrics(row, known), self.state, self.record)
        self.server.end(self.state)
        log(INFO, "Strategy execution finished:\n%s", result)
        return result

    def _cohort(self, present: int) -> int:
        return max(int(self.fraction_train * present), self.min_train_nodes)

    def _evaluate_here(self, result: Result, evaluate_fn: Evaluate | None) -> None:
        t = self.server.t
        if evaluate_fn is None or (measured := evaluate_fn(t, result.arrays)) is None:
            return
        log(INFO, "Global evaluation after round %d: %s", t, measured)
        result.evaluate_metrics_serverapp[t] = measured

    def _evaluate_there(
        self, result: Result, grid: Grid, link: GridLink, config: ConfigRecord
    ) -> None:
        """Federated evaluation by nodes that are free, for as long as it may take."""
        t, seconds = self.server.t, self.settings.evaluate_timeout
        needed = max(self.min_available_nodes, self.min_evaluate_nodes)
        if not self.fraction_evaluate or len(link.users()) < needed:
            return  # FedAvg would wait for more
        mail, free, replies = Mail(grid), link.free(), list[Message]()
        messages = self.configure_evaluate(t, result.arrays, config, grid)
        messages = [each for each in messages if str(each.metadata.dst_node_id) in free]
        for message in messages:
            message.metadata.ttl = seconds
        mail.send(messages, round=0)
        while mail.unanswered():  # for no longer than their TTL
            replies += [reply for _, reply in mail.receive(1.0) if isinstance(reply, Message)]
        try:
            measured = self.aggregate_evaluate(t, replies)
        except Exception as error:  # whatever nodes' metrics make Flower's mean of them raise
            log(WARNING, "The nodes' evaluation cannot be used: %s", error)
            return
        if measured is not None:
            log(INFO, "\t└──> Aggregated MetricRecord: %s", measured)
            result.evaluate_metrics_clientapp[t] = measured


def _metrics(row: Row) -> MetricRecord:
    return MetricRecord(
        {
            "loss": row.train_loss,
            "reached": list(row.reached),
            "users": len(row.depths),
            "on-time": len(row.depths) - len(row.silent),
            "late": row.late,
            "rejected": len(row.rejected),
            "seconds": row.seconds,
        }
    )
