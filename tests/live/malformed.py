"""Bytes that are no update: every kind of them is wrong by construction, whatever is drawn."""

import json
import pickle
import struct

import numpy as np

from salf.core.layers import Layers

DTYPES = {"F16": 2, "BF16": 2, "F64": 8, "I64": 8, "U8": 1, "BOOL": 1, "F8_E4M3": 1, "C64": 8}
NUMBERS = {
    "depth": [0, -1, 99, 1.5, "1", None, True, 2**61],
    "steps": [0, 2, 2**62, -1],
    "planned": [0, 10**6, None],
    "rows": [1, 2**61, -3, 0.5],
    "loss": [1e299, -1e13, "0", None, float("nan"), float("inf"), 10**400],
    "seconds": [1e299, float("-inf"), [1]],
    "pace": [1e12, {}],
}
SAID = {"depth": 1, "steps": 1, "planned": 1, "rows": 0, "loss": 0.5, "seconds": 0.1, "pace": 0.0}


class Runs:
    """Says so when it is unpickled."""

    ran = False

    def __reduce__(self):
        return setattr, (Runs, "ran", True)


def whole(header, data):
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def malformed(model, count, seed=0):
    """So many of them, of all kinds in turn."""
    rng = np.random.default_rng(seed)
    sizes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    last = Layers.of(model)[len(Layers.of(model)) - 1].parameters
    for number in range(count):
        yield KINDS[number % len(KINDS)](rng, sizes, last)


def good(rng, sizes, **said):
    header, data = {"__metadata__": {"update": json.dumps({**SAID, **said})}}, b""
    for name, shape in sizes.items():
        values = rng.standard_normal(shape).astype(np.float32).tobytes()
        offsets = [len(data), len(data) + len(values)]
        header[name] = {"dtype": "F32", "shape": [*shape], "data_offsets": offsets}
        data += values
    return header, data


def truncated(rng, sizes, last):
    data = whole(*good(rng, sizes))
    return data[: rng.integers(len(data))]


def noise(rng, sizes, last):
    return rng.bytes(int(rng.integers(0, 300)))


def another_length(rng, sizes, last):
    data = whole(*good(rng, sizes))
    (length,) = struct.unpack("<Q", data[:8])
    other = int(rng.choice([0, length - 1, length + 1, 2**40, 2**63]))
    return struct.pack("<Q", other) + data[8:]


def a_wrong_number(rng, sizes, last):
    key = str(rng.choice([*NUMBERS]))
    value = NUMBERS[key][rng.integers(len(NUMBERS[key]))]
    return whole(*good(rng, sizes, **{key: value}))


def a_wrong_header(rng, sizes, last):
    header, data = good(rng, sizes)
    said = ["", "[]", "null", "[" * 3000, json.dumps({"depth": 1}), "{"]
    header["__metadata__"] = {"update": said[rng.integers(len(said))]}
    if rng.random() < 0.3:
        del header["__metadata__"]
    return whole(header, data)


def other_layers(rng, sizes, last):
    """Of a depth that does not go with them, or of a name that is not in the model."""
    some = {name: shape for name, shape in sizes.items() if name not in last}
    if rng.random() < 0.5:
        some = {**sizes, f"{rng.integers(9)}.\n\x1b[31mweight": (2, 2)}
    return whole(*good(rng, some))


def another_shape(rng, sizes, last):
    name = str(rng.choice([*sizes]))
    header, data = good(rng, {**sizes, name: (*sizes[name], 2)})
    if rng.random() < 0.5:
        header[name]["shape"] = [2**40, 2**40]
    return whole(header, data)


def another_type(rng, sizes, last):
    header, data = good(rng, sizes)
    name, kind = str(rng.choice([*sizes])), str(rng.choice([*DTYPES]))
    size = int(np.prod(sizes[name])) * DTYPES[kind]
    header[name] |= {"dtype": kind, "data_offsets": [len(data), len(data) + size]}
    return whole(header, data + bytes(size))


def not_finite(rng, sizes, last):
    header, data = good(rng, sizes)
    values = np.frombuffer(data, np.float32).copy()
    values[rng.integers(len(values))] = rng.choice([np.nan, np.inf, -np.inf])
    return whole(header, values.tobytes())


def offsets(rng, sizes, last):
    header, data = good(rng, sizes)
    name = str(rng.choice([*sizes]))
    start, end = header[name]["data_offsets"]
    others = [[start + 1, end + 1], [end, start], [-4, end - start - 4], [0, 2**60]]
    header[name]["data_offsets"] = others[rng.integers(len(others))]
    return whole(header, data)


def too_large(rng, sizes, last):
    header, data = good(rng, sizes)
    scale = np.float32(10.0 ** rng.integers(4, 30))
    return whole(header, (np.frombuffer(data, np.float32) * scale).tobytes())


def pickled(rng, sizes, last):
    return pickle.dumps(Runs())


KINDS = (
    truncated, noise, another_length, a_wrong_number, a_wrong_header, other_layers, another_shape,
    another_type, not_finite, offsets, too_large, pickled,
)  # fmt: skip
