"""What users send that is no update: none of it gets past the check, and nothing of it is run."""

import logging
import pickle
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from malformed import NUMBERS, SAID, Runs, malformed
from torch import nn

from nets import mlp
from salf.live.flower.mail import SentMessage
from salf.live.inspection import Inspection
from salf.live.server import LiveServer, ServerSettings
from salf.live.update import Rejected, Update, encode
from salf.problem import Problem

MANY = 10_000
SIZES = 3, 4, 4, 2


def server(**settings):
    # A bound of its own, so that updates of any size are judged at once.
    return LiveServer(Problem.of(mlp(*SIZES)), 0.5, ServerSettings(max_norm=100.0, **settings))


def good(**said):
    model = mlp(*SIZES)
    return Update(1, {name: torch.ones_like(p) for name, p in model.named_parameters()}, **said)


def through(name):
    """A link whose every answer is made of the bytes that a user sent by way of this transport."""
    if name == "ray":
        return through_ray()
    pytest.importorskip("flwr", reason="needs salf[flower]")
    import flower_nodes  # noqa: F401  (which makes this process a ServerApp's)
    from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict

    from salf.live.flower.link import GridLink, grace_of

    link = GridLink(SimpleNamespace(), Problem.of(mlp(*SIZES)).layers, grace_of(None, 1))
    asked = Message(RecordDict({}), 7, "train")
    asked.metadata.__dict__["_message_id"] = "an id"
    records = (
        RecordDict({"metrics": MetricRecord({"update": 1.0})}),
        RecordDict({"arrays": ArrayRecord({"0.weight": torch.ones(4, 3)})}),
        RecordDict({"arrays": ArrayRecord({"update": torch.ones(4, 3)})}),
    )

    reused = Message(RecordDict({}), reply_to=asked)
    carried = lambda data: Array("uint8", (len(data),), "safetensors", data)  # noqa: E731

    def answer(number, data):
        odd = number % 20 < len(records)
        content = records[number % 20] if odd else None
        # Most by one message, because to make each takes Flower several times as long.
        if not odd:
            reused.content["arrays"] = ArrayRecord({"update": carried(data)})
        reply = Message(content, reply_to=asked) if odd else reused
        return link._answer(SentMessage(7, 1, 0.0), reply)

    return nullcontext(answer)


def through_ray():
    pytest.importorskip("ray", reason="needs salf[ray]")
    from salf.live import ray

    stored = {}
    core = SimpleNamespace(get_objects=lambda references, timeout: [stored[references[0]]])
    real = ray.ray._private.worker.global_worker
    link = object.__new__(ray.RayLink)
    link._asked, link._actors = {}, {}
    # As a user of Ray may mark what it returns: pickled, of another language, an error, nothing.
    marks = [b"PYTHON", b"XLANG", b"1", b"2", b"3", b"ACTOR_HANDLE", b"", None, b"7777777", b"x"]

    def answer(number, data):
        mark = marks[number % 50] if number % 50 < len(marks) else b"RAW"
        data = pickle.dumps(Runs()) if mark != b"RAW" else data
        stored[number] = SimpleNamespace(to_pybytes=lambda: data), mark, None
        link._asked[number] = "user", 1, 0.0
        return link._answer(number)

    class Faked:
        def __enter__(self):
            ray.ray._private.worker.global_worker = SimpleNamespace(core_worker=core)
            return answer

        def __exit__(self, *error):
            ray.ray._private.worker.global_worker = real

    return Faked()


@pytest.mark.parametrize("transport", ["ray", "flower"])
def test_of_10_000_malformed_updates_none_gets_past_the_check(transport, caplog):
    caplog.set_level(logging.CRITICAL, "salf.live")  # 10,000 lines of the log cost seconds
    live = server()
    before = {name: weight.detach().clone() for name, weight in live.weights.items()}
    live.open([*(f"u{number}" for number in range(MANY)), "honest"])
    with through(transport) as answer:
        for number, data in enumerate(malformed(mlp(*SIZES), MANY)):
            content = answer(number, data).content
            if isinstance(content, Rejected):
                live.refuse(f"u{number}", content)
            else:
                assert live.take(f"u{number}", content) is None, data
    assert not live.round.updates
    assert not Runs.ran
    reasons = {reason for _, reason in live.round.rejected}
    assert len(reasons) > 30
    assert all(reason.isprintable() and len(reason) < 500 for reason in reasons)
    # The control: the same server takes a good one, and moves by it alone.
    assert live.take("honest", encode(good())) is not None
    row = live.close()
    assert len(row.rejected) == MANY
    for name, weight in live.weights.items():
        torch.testing.assert_close(weight.detach(), before[name] - 0.5)


@pytest.mark.parametrize("key", [key for key in NUMBERS if key in ("rows", "loss", "pace")])
def test_numbers_that_users_say_of_themselves_are_bounded(key):
    live = server(equal_time=16)
    live.open(["a", "b"])
    most = {"rows": 64, "loss": 1e12, "pace": 1e8}[key]
    assert live.take("a", encode(good(**{key: most}))) is not None
    assert live.take("b", encode(good(**{key: most * 2}))) is None
    assert f"its {key}" in live.round.rejected[0][1] or "rows are more" in live.round.rejected[0][1]
    assert SAID.keys() >= {key}


def test_users_choose_no_batches_unless_they_are_asked_to():
    live = server()
    live.open(["a"])
    assert live.take("a", encode(good(rows=1))) is None


STRANGE = {
    "sparse": lambda t: t.to_sparse(),
    "compressed sparse": lambda t: torch.ones(4, 3).to_sparse_csr(),
    "meta": lambda t: t.to("meta"),
    "nested": lambda t: torch.nested.nested_tensor([torch.ones(3), torch.ones(2)]),
    "jagged": lambda t: torch.nested.nested_tensor(
        [torch.ones(3), torch.ones(2)], layout=torch.jagged
    ),
    "quantised": lambda t: torch.quantize_per_tensor(t, 0.1, 0, torch.qint8),
    "no tensor": lambda t: [1.0],
}


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("kind", STRANGE)
def test_no_kind_of_tensor_makes_the_server_raise(kind, monkeypatch):
    """safetensors brings dense ones only; another decoder, or one to come, may not."""
    live, name = server(), "0.weight"
    update = good()
    strange = {**update.tensors, name: STRANGE[kind](update.tensors[name])}
    monkeypatch.setattr("salf.live.server.decode", lambda data, most: Update(1, strange))
    live.open(["a"])
    assert live.take("a", b"") is None
    assert live.round.rejected[0][0] == "a"
    if kind in ("sparse", "meta", "nested"):
        with pytest.raises(Rejected, match="is not a dense tensor"):
            Inspection(live.layers, live.weights).check(Update(1, strange))


def test_what_is_not_bytes_is_refused():
    live = server()
    for number, thing in enumerate((None, "text", [1], good(), bytearray(8), nn.Linear(1, 1))):
        live.open([f"{number}"])
        assert live.take(f"{number}", thing) is None
        live.close()


def test_names_of_users_are_printed_in_one_line_of_printable_characters(caplog):
    caplog.set_level(logging.INFO, "salf.live")
    live, name = server(), "user-1\n\x1b[31mround 9: all is well"
    live.open([name])
    live.refuse(name, Rejected("no"))
    live.refuse(name, Rejected("no"), asked=0)
    assert len(caplog.messages) == 2
    assert all(message.isprintable() for message in caplog.messages)
