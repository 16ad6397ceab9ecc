"""SALF on Flower: what nodes send is averaged or refused, and no node holds a round up."""

import json
import subprocess
import sys
import time
from collections import OrderedDict
from contextlib import nullcontext
from dataclasses import replace
from threading import Timer

import pytest
import torch
from torch import nn

pytest.importorskip("flwr", reason="needs salf[flower]")

from flower_nodes import (
    HANGS,
    FakeGrid,
    carrying,
    context,
    gradients,
    network,
    reply,
    sends,
    travelled,
)
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.clientapp.mod import LocalDpMod

from salf.common.errors import SalfError
from salf.core import rows as records
from salf.flower import SALF, train
from salf.live import rounds
from salf.live.flower import app as flower_app
from salf.live.flower import link, mail
from salf.live.flower.client import RESIDUALS, TIMES
from salf.live.flower.link import GridLink
from salf.live.launch import Nobody
from salf.live.tmax import FIRST
from salf.live.update import Update, decode, encode
from salf.runs.folder import RunFolder
from salf.runs.live_config import LiveConfig
from salf.worlds.fleet.deadlines import Auto, DeadlineSchedule

LR = 0.5


def salf(**settings):
    defaults = {
        "lr": LR,
        "deadline": 0.2,
        "grace": 0.2,
        "unreached": [0.0, 0.0, 0.0],
        "min_available_nodes": 1,
        "fraction_evaluate": 0.0,
        "robust": "none",
    }
    return SALF(network(), **{**defaults, **settings})


def start(strategy, grid, rounds=1, **settings):
    return strategy.start(grid, ArrayRecord(network().state_dict()), rounds, **settings)


def record_of(folder, nodes, rounds=1, **settings):
    """The rounds that the strategy records, and its result."""
    result = start(salf(record=folder / "rounds", **settings), FakeGrid(nodes), rounds)
    return records.read(folder / "rounds"), result


def stepped(updates, weights=None):
    """[salf_update_rule], the obvious way: each layer's mean over those who sent it."""
    weights = weights or network().state_dict()
    return {
        name: weight - LR * torch.stack(sent).mean(0)
        if (sent := [update[name] for update in updates if name in update])
        else weight
        for name, weight in weights.items()
    }


def assert_same(arrays, expected):
    actual = arrays.to_torch_state_dict()
    assert actual.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(actual[name], tensor)


# --- a round ---------------------------------------------------------------------------------


def test_partial_updates_are_averaged_layer_by_layer():
    grid = FakeGrid({1: sends(1, seed=1), 2: sends(3, seed=2), 3: sends(2, seed=3), 4: sends(4)})
    result = start(salf(deadline=10.0), grid)
    expected = stepped([gradients(1, 1), gradients(3, 2), gradients(2, 3)])
    assert_same(result.arrays, expected)
    metrics = result.train_metrics_clientapp[1]
    assert metrics["reached"] == [1, 2, 3]
    assert (metrics["users"], metrics["on-time"]) == (4, 4)
    assert (metrics["late"], metrics["rejected"]) == (0, 0)


def test_a_round_is_over_at_the_deadline_though_nodes_hang_or_stall():
    """Flower's pull waits inside for the rest of a reply; it must not be the server that waits."""
    nodes = {1: sends(1, seed=1), 2: lambda message: HANGS, 3: takes(4), 4: sends(2, seed=4)}
    grid = FakeGrid(nodes, after={4: 0.2})
    result = start(salf(deadline=0.6, grace=0.1), grid, rounds=2)
    first, second = (result.train_metrics_clientapp[t] for t in (1, 2))
    assert 0.6 <= first["seconds"] <= 3.0
    assert (first["users"], first["on-time"]) == (4, 2)
    assert second["seconds"] < 0.6  # nobody waits for nodes at work on an earlier round
    honest = [gradients(1, 1), gradients(2, 4)]
    assert_same(result.arrays, stepped(honest, stepped(honest)))


def takes(seconds, depth=1, seed=0):
    """A node whose reply takes so long to upload, or to download."""

    def node(message):
        return lambda: time.sleep(seconds) or travelled(reply(message, depth, seed))

    return node


def test_a_reply_that_takes_long_to_download_counts(tmp_path):
    """The SuperLink tells whoever asks for it meanwhile that there is no such message."""
    nodes = {1: takes(0.4, seed=1), 2: sends(2, seed=2)}
    (row,), result = record_of(tmp_path, nodes, deadline=8.0)
    assert_same(result.arrays, stepped([gradients(1, 1), gradients(2, 2)]))
    assert row.rejected == ()
    assert row.seconds < 6.0  # it was over when both had come


def test_a_hundred_nodes_need_few_pulls_in_vain_and_are_heard_as_soon_as_they_answer():
    grid = FakeGrid({node: sends() for node in range(100)}, dict.fromkeys(range(100), 1.0))
    metrics = start(salf(deadline=20.0), grid).train_metrics_clientapp[1]
    assert metrics["on-time"] == 100
    assert grid.pulls - 100 <= metrics["seconds"] / mail.PACE + 1
    assert metrics["seconds"] < 15.0


def test_there_is_a_bound_to_pulls(monkeypatch):
    monkeypatch.setattr(mail, "MOST_PULLS", 3)
    grid = FakeGrid({**{node: takes(0.3) for node in range(1, 7)}, 7: sends()}, after={7: 0.1})
    result = start(salf(deadline=5.0), grid)
    assert grid.most_pulls == 3
    assert result.train_metrics_clientapp[1]["on-time"] == 7


def unreadable(message):
    return ValueError("Unexpected set of `children`")


def test_a_reply_that_flower_cannot_read_is_refused(tmp_path):
    nodes = {1: unreadable, 2: sends(1, seed=2)}
    (row,), result = record_of(tmp_path, nodes, deadline=1.0)
    assert row.rejected == (("1", "not a reply: Unexpected set of `children`"),)
    assert row.depths == {"1": 4, "2": 1}
    assert_same(result.arrays, stepped([gradients(1, 2)]))


def test_a_pull_that_fails_before_it_finds_anything_loses_nothing(monkeypatch, tmp_path):
    grid = FakeGrid({1: sends(1, seed=1)})
    pull, failures = grid.pull_messages, [OSError("connection reset")] * 2

    def failing(keys):
        if failures:
            raise failures.pop()
        return pull(keys)

    monkeypatch.setattr(grid, "pull_messages", failing)
    result = start(salf(deadline=2.0, record=tmp_path / "rounds"), grid)
    assert_same(result.arrays, stepped([gradients(1, 1)]))
    assert records.read(tmp_path / "rounds")[0].rejected == ()


def test_all_nodes_gone_is_waited_out_and_said(caplog, monkeypatch):
    monkeypatch.setattr(rounds, "SAY_WAITING", 0.1)
    grid = FakeGrid({})
    timer = Timer(0.5, lambda: grid.nodes.update({1: sends(1, seed=1)}))
    timer.daemon = True
    timer.start()
    result = start(salf(min_available_nodes=0, deadline=10.0), grid)
    assert "[WAITING] no users are connected; waiting for one." in caplog.text
    assert_same(result.arrays, stepped([gradients(1, 1)]))


def test_salf_live_says_why_its_flower_app_waits_and_shows_rounds(tmp_path, monkeypatch):
    folder, said, shown = RunFolder(tmp_path), [], []
    start(salf(record=folder.rounds), FakeGrid({1: sends()}), rounds=2)  # of a run that was stopped

    class Local(nullcontext):
        def node_id(self, number):
            return str(number)

        def run(self, app, settings):
            yield "INFO :      [ROUND 3/3]"
            records.append(folder.rounds, replace(records.read(folder.rounds)[0], round=3))
            yield "\x1b[93mWARNING\x1b[0m :   [WAITING] no users are connected; waiting for one."

    class Listener(Nobody):
        def say(self, text):
            said.append(text)

        def round(self, row):
            shown.append(row.round)

    monkeypatch.setattr(flower_app, "LocalFederation", lambda nodes: Local(Local()))
    config = LiveConfig(data="synthetic", users=2, deadline=1.0, backend="flower")
    with pytest.raises(SalfError, match="ended before all rounds were closed"):
        flower_app.run_here(config, folder, Listener())
    assert said == ["no users are connected; waiting for one."]
    assert shown == [3]


# --- what is refused --------------------------------------------------------------------------


def with_content(**records):
    return lambda message: Message(RecordDict(records), reply_to=message)


BAD = {
    "bytes of anything": (lambda message: carrying(message, b"\0" * 99), "not an update"),
    "another shape": (
        lambda message: carrying(message, encode(Update(3, {"4.bias": torch.zeros(3)}))),
        "'4.weight' is missing",
    ),
    "too much": (lambda message: carrying(message, b"\0" * 100_000), "too large"),
    "nothing": (with_content(), "call it in the ClientApp"),
    "a model": (
        with_content(
            arrays=ArrayRecord(network().state_dict()),
            metrics=MetricRecord({"train_loss": 0.5, "num-examples": 3}),
        ),
        "not made by salf.flower.train; call it in the ClientApp",
    ),
    "an error": (
        lambda message: Message(Error(2, "ZeroDivisionError:\ndivision"), reply_to=message),
        "failed: ZeroDivisionError: division",
    ),
    "an error without a reason": (lambda message: Message(Error(5), reply_to=message), "error 5"),
}


@pytest.mark.parametrize(("node", "reason"), BAD.values(), ids=BAD.keys())
def test_a_bad_reply_costs_its_own_part_and_nothing_else(node, reason, tmp_path):
    (row,), result = record_of(tmp_path, {1: sends(1, seed=1), 2: node})
    assert_same(result.arrays, stepped([gradients(1, 1)]))
    ((user, why),) = row.rejected
    assert user == "2"
    assert reason in why
    assert row.depths == {"1": 1, "2": 4}


# --- one message at a time --------------------------------------------------------------------


def test_a_late_reply_is_counted_and_its_node_asked_again_only_then():
    grid = FakeGrid({1: sends(1, seed=1), 2: sends(1, seed=2)}, after={1: 0.3, 2: 0.8})
    result = start(salf(deadline=0.4), grid, rounds=3)
    metrics = result.train_metrics_clientapp
    assert [metrics[t]["late"] for t in (1, 2, 3)] == [0, 1, 0]
    assert [metrics[t]["on-time"] for t in (1, 2, 3)] == [1, 1, 1]
    assert (grid.asked(1), grid.asked(2)) == ([1, 2, 3], [1, 3])
    expected = None
    for _ in range(3):  # never mixed into another round
        expected = stepped([gradients(1, 1)], expected)
    assert_same(result.arrays, expected)


def deadline_of(message):
    return json.loads(message.content["config"]["task"])["deadline"]


def test_messages_live_as_long_as_their_reply_is_of_use():
    for settings, ttl in (
        ({"deadline": 0.3}, 0.3 + link.MOST_GRACE),
        ({"method": "fedavg", "deadline": None}, 70.0),  # waits for as long as it may
    ):
        grid = FakeGrid({1: sends(1, seed=1), 2: sends(1, seed=2)}, after={2: 0.1})
        result = start(salf(**settings), grid, timeout=70.0)
        assert {message.metadata.ttl for message in grid.pushed} == {ttl}
        assert grid.pushed[0].metadata.group_id == "1"
        assert deadline_of(grid.pushed[0]) == settings["deadline"]
        assert_same(result.arrays, stepped([gradients(1, 1), gradients(1, 2)]))


def test_a_node_that_never_replied_is_asked_again_when_its_message_is_over(monkeypatch):
    monkeypatch.setattr(link, "MOST_GRACE", 0.2)
    grid = FakeGrid({1: lambda message: HANGS, 2: sends()}, after={2: 0.02})
    start(salf(deadline=0.1, grace=0.1), grid, rounds=7)
    assert grid.asked(2) == list(range(1, 8))
    assert 1 < len(grid.asked(1)) < 7


def test_a_deadline_is_also_a_text_and_auto_begins_with_ample_time():
    assert salf(deadline="2s").deadline == DeadlineSchedule((2.0,))
    adapted = salf(deadline="auto:0.8")
    assert adapted.deadline == Auto(0.8)
    grid = FakeGrid({1: sends(), 2: sends()})
    start(adapted, grid, rounds=5)
    deadlines = [deadline_of(message) for message in grid.pushed]
    assert deadlines[0] == FIRST
    assert adapted.server.t_max > 0
    assert deadlines[-1] < 1


def test_a_part_of_the_nodes_is_sampled_also_after_a_restart(tmp_path):
    grid, kept = FakeGrid({node: sends() for node in range(1, 11)}), {"state": tmp_path / "state"}
    for until in (8, 16):
        strategy = salf(fraction_train=0.3, min_train_nodes=1, deadline=10.0, **kept)
        result = start(strategy, grid, rounds=until)
        assert {m["users"] for m in result.train_metrics_clientapp.values()} == {3}
    asked = [message.metadata.dst_node_id for message in grid.pushed]
    assert set(asked) == set(range(1, 11))
    assert asked[:24] != asked[24:]


def test_a_record_of_another_run_is_not_emptied(tmp_path):
    record_of(tmp_path, {1: sends()}, rounds=2, deadline=10.0)
    with pytest.raises(SalfError, match="Choose another folder"):
        record_of(tmp_path, {1: sends()}, deadline=10.0)
    assert len(records.read(tmp_path / "rounds")) == 2


# --- what a node does -------------------------------------------------------------------------


def the_message(salf_=None):
    grid, salf_ = FakeGrid({1: lambda message: HANGS}), salf_ or salf()
    server, seconds = salf_.server, salf_.deadline
    server.open(["1"], seconds)
    nodes = GridLink(grid, server.layers, salf_.grace, compress=salf_.settings.compress)
    nodes.send(server.task(seconds), ["1"])
    return travelled(grid.pushed[0])


def data_of(reply):
    """The update of a reply, as bytes."""
    return reply.content["arrays"]["update"].data


def depth_of(reply):
    return decode(data_of(reply), 10_000).depth


def closed(salf_, sent):
    """The round of `the_message`, with this reply."""
    salf_.server.take("1", data_of(sent))
    return salf_.server.close()


def batch():
    generator = torch.Generator().manual_seed(5)
    return torch.randn(8, 3, generator=generator), torch.arange(8) % 2


def full_gradients():
    model = network()
    nn.functional.cross_entropy(model(batch()[0]), batch()[1]).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def test_a_node_without_time_sends_nothing_and_that_arrives():
    salf_ = salf(deadline=1e-9)
    message = the_message(salf_)
    state = context()
    for _ in range(5):  # it believes that nothing fits after a few rounds
        sent = travelled(train(network(), batch(), message, state))
    assert depth_of(sent) == 4
    assert closed(salf_, sent).rejected == ()
    assert_same(ArrayRecord(salf_.model.state_dict()), network().state_dict())


def test_the_clients_reply_is_what_the_server_takes():
    states, sent = {1: context(), 2: context()}, []

    def node(number):
        def answer(message):
            other = network()
            with torch.no_grad():
                for parameter in other.parameters():
                    parameter.add_(1.0)  # the server's model is trained, not this
            sent.append(train(other, batch, message, states[number]))
            return train(other, batch(), message, states[number])

        return answer

    result = start(salf(deadline=60.0), FakeGrid({1: node(1), 2: node(2)}))
    assert result.train_metrics_clientapp[1]["reached"] == [2, 2, 2]
    assert_same(result.arrays, stepped([full_gradients()]))
    update = decode(data_of(sent[0]), 10_000)
    assert update.depth == 1
    assert update.seconds > 0


@pytest.mark.parametrize(("asked", "own"), [(3, None), (5, 3)])
def test_nodes_take_the_local_steps_that_the_strategy_asks_for(asked, own):
    """FedAvg's model: the one that a node's own SGD gets to."""
    drawn = []

    def node(message):
        draw = lambda: drawn.append(1) or batch()  # noqa: E731
        return travelled(train(network(), draw, message, context(), steps=own))

    strategy = salf(lr=1.0, client_lr=0.2, local_steps=asked, deadline=60.0)
    result = start(strategy, FakeGrid({1: node}))
    assert len(drawn) == 3
    model, (inputs, labels) = network(), batch()
    optimiser = torch.optim.SGD(model.parameters(), 0.2)
    for _ in range(3):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimiser.step()
    for name, tensor in result.arrays.to_torch_state_dict().items():
        torch.testing.assert_close(tensor, model.state_dict()[name], rtol=1e-5, atol=1e-6)


def test_a_batch_is_drawn_within_the_deadline():
    state, message = context(), the_message(salf(deadline=0.02))
    draw = lambda: time.sleep(0.04) or batch()  # noqa: E731
    depths = [depth_of(train(network(), draw, message, state)) for _ in range(6)]
    assert depths[-1] == 4


def test_what_a_node_learns_is_there_for_its_next_process():
    state, message = context(), the_message(salf(deadline=60.0))
    train(network(), batch(), message, state)
    once = state.state[TIMES]
    kept = RecordDict({TIMES: ConfigRecord(dict(once))})
    assert len(once["0"]) == 1
    state.state = kept  # as another process gets it
    train(network(), batch(), message, state)
    assert len(state.state[TIMES]["0"]) == 2
    assert state.state[TIMES]["0"][0] == once["0"][0]


def test_learned_times_of_other_layers_are_not_used():
    state, message = context(), the_message(salf(deadline=60.0))
    train(network(), batch(), message, state)
    state.state[TIMES] = ConfigRecord({**state.state[TIMES], "9": [1.0]})
    assert depth_of(train(network(), batch(), message, state)) == 1
    assert len(state.state[TIMES]["0"]) == 1  # begun anew


@pytest.mark.parametrize("compress", ["fp16", "qsgd:4", "topk:0.3"])
def test_nodes_compress_what_they_send_and_keep_what_they_do_not(compress):
    salf_ = salf(compress=compress, deadline=60.0)
    state = context()
    sent = train(network(), batch(), the_message(salf_), state)
    whole = train(network(), batch(), the_message(salf(deadline=60.0)))

    tensors, plain = (decode(data_of(each), 10_000).tensors for each in (sent, whole))
    assert sum(t.nbytes for t in tensors.values()) < sum(t.nbytes for t in plain.values())
    assert (RESIDUALS in state.state) == compress.startswith("topk")
    row = closed(salf_, sent)
    assert (row.reached, row.rejected) == ((1, 1, 1), ())


def test_layers_are_the_servers():
    """Also where their names have spaces, and for a model whose layers were given by hand."""

    def named():
        torch.manual_seed(1)
        parts = {"my body": nn.Linear(3, 4), "head": nn.Linear(4, 2)}
        return nn.Sequential(OrderedDict(parts))

    salf_ = SALF(named(), lr=LR, deadline=60.0, layers=[["my body", "head"]], robust="none")
    sent = train(named(), batch(), the_message(salf_))
    assert depth_of(sent) == 1
    assert closed(salf_, sent).reached == (1,)


def test_flowers_privacy_mods_refuse_partial_updates():
    """So says docs/flower.md."""
    mod = LocalDpMod(clipping_norm=1.0, sensitivity=1.0, epsilon=1.0, delta=0.1)
    sent = mod(the_message(), context(), lambda message, _: reply(message, depth=3))
    assert "expects the keys in the ArrayRecord" in sent.error.reason


def test_another_model_is_a_sentence():
    with pytest.raises(SalfError, match="names no parameter"):
        train(nn.Sequential(nn.Linear(3, 2)), batch(), the_message())
    message = Message(RecordDict({"config": ConfigRecord({"lr": 0.1})}), 1, "train")
    with pytest.raises(SalfError, match=r"must be salf\.flower\.SALF"):
        train(network(), batch(), message)
    with pytest.raises(SalfError, match="do not belong to the strategy's model"):
        salf().start(FakeGrid({1: sends()}), ArrayRecord(nn.Linear(2, 2).state_dict()))


# --- the strategy -----------------------------------------------------------------------------


def test_config_records_and_summary(caplog):
    caplog.set_level("INFO")
    grid = FakeGrid({1: sends(), 2: sends()})
    start(salf(deadline=0.25), grid, train_config=ConfigRecord({"local-key": 3}))
    config = grid.pushed[0].content["config"]
    assert (config["server-round"], deadline_of(grid.pushed[0]), config["local-key"]) == (
        1,
        0.25,
        3,
    )
    for line in ("Rounds: salf, deadline 0.25", "Layers: 3 (0, 2, 4)"):
        assert line in caplog.text


def test_a_server_that_is_started_again_goes_on_after_the_last_round(tmp_path):
    kept = {"state": tmp_path / "state", "record": tmp_path / "rounds", "momentum": 0.5}

    def grid():
        return FakeGrid({1: sends(1, seed=1), 2: sends(2, seed=2)})

    whole = start(salf(momentum=0.5), grid(), rounds=4)
    start(salf(**kept), grid(), rounds=2)
    records.append(tmp_path / "rounds", _renumbered(tmp_path / "rounds", 3))  # of a round not kept
    again = grid()
    result = start(salf(**kept), again, rounds=4)
    assert again.asked(1) == [3, 4]
    assert sorted(result.train_metrics_clientapp) == [3, 4]
    assert_same(result.arrays, whole.arrays.to_torch_state_dict())
    assert [row.round for row in records.read(tmp_path / "rounds")] == [1, 2, 3, 4]


def _renumbered(path, round):
    return replace(records.read(path)[0], round=round)


def test_evaluation_at_the_server_is_in_result_and_record(tmp_path):
    seen = []

    def evaluate(t, arrays):
        seen.append((t, arrays.to_torch_state_dict()))
        return MetricRecord({"accuracy": 0.25 * t})

    salf_ = salf(record=tmp_path / "rounds")
    result = start(salf_, FakeGrid({1: sends(1, seed=1)}), rounds=2, evaluate_fn=evaluate)
    assert [t for t, _ in seen] == [0, 1, 2]
    assert_same(ArrayRecord(seen[1][1]), stepped([gradients(1, 1)]))
    assert result.evaluate_metrics_serverapp[2]["accuracy"] == 0.5
    assert [row.accuracy for row in records.read(tmp_path / "rounds")] == [0.25, 0.5]


def evaluating(metrics):
    """A node that also evaluates."""

    def node(message):
        if message.metadata.message_type == "train":
            return reply(message)
        return metrics if metrics is HANGS else with_content(metrics=MetricRecord(metrics))(message)

    return node


def test_federated_evaluation_holds_nothing_up():
    nodes = {
        1: evaluating({"num-examples": 1, "loss": 1.0}),
        2: evaluating({"num-examples": 3, "loss": 5.0}),
        3: evaluating(HANGS),
    }
    began = time.monotonic()
    result = start(salf(fraction_evaluate=1.0, evaluate_timeout=0.3), FakeGrid(nodes), rounds=2)
    assert time.monotonic() - began < 15.0
    assert [result.evaluate_metrics_clientapp[t]["loss"] for t in (1, 2)] == [4.0, 4.0]


def test_federated_evaluation_that_makes_no_sense_is_left_out(caplog):
    nodes = {1: evaluating({"num-examples": 1}), 2: evaluating({"loss": 1.0})}
    result = start(salf(fraction_evaluate=1.0), FakeGrid(nodes))
    assert result.evaluate_metrics_clientapp == {}
    assert "cannot be used" in caplog.text
    result = start(salf(fraction_evaluate=1.0, min_evaluate_nodes=5), FakeGrid(nodes))
    assert result.evaluate_metrics_clientapp == {}


def test_without_flower_a_sentence_says_what_to_install():
    code = "import sys; sys.modules['flwr'] = None\nimport salf.flower"
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300
    )
    assert ended.returncode == 1
    assert "SalfError: Flower is not installed: run pip install 'salf[flower]'." in ended.stderr
