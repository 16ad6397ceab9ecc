"""FedRolex is HeteroFL on a network whose hidden units are numbered from another one on."""

import pytest
import torch

from nets import small_mlp, small_normed
from reference import (
    ANY_MODEL,
    Scripted,
    assert_close,
    copy_of,
    simulate,
    steps,
)
from salf.core.narrow import subnetwork
from salf.data.sampling import LocalWork


def renumbered(model, shift):
    """The same network with its hidden units moved on by so many, in place."""
    values = dict(model.state_dict())
    with torch.no_grad():
        if "5.weight" in values and values["0.weight"].dim() == 4:  # small_normed
            for layer, rows in (("0", ("0", "1")), ("4", ("4", "5"))):
                for module in rows:
                    for name, value in values.items():
                        if name.startswith(f"{module}.") and value.dim():
                            value.copy_(value.roll(shift, 0))
                following = {"0": "4.weight", "4": "8.weight"}[layer]
                value, units = values[following], len(values[f"{layer}.weight"])
                grouped = value.unflatten(1, (units, -1)).roll(shift, 1)
                value.copy_(grouped.reshape(value.shape))
        else:
            for layer, following in (("0", "2"), ("2", "4")):
                for name in (f"{layer}.weight", f"{layer}.bias"):
                    values[name].copy_(values[name].roll(shift, 0))
                value = values[f"{following}.weight"]
                value.copy_(value.roll(shift, 1))
    return model


MODELS = {"mlp": small_mlp, "batch norm": small_normed}
SCRIPT = [[1, 2, 1, 2]] * 8  # users 1 and 3 straggle


def run(name, net, rounds, engine="loop", script=SCRIPT, **more):
    return steps(
        simulate(net, name, Scripted(script, 3), size=3, batch=3, engine=engine, **more), rounds
    )


@pytest.mark.parametrize("engine", ANY_MODEL)
@pytest.mark.parametrize("model", MODELS)
def test_every_round_is_heterofls_with_other_units_first(model, engine):
    """Rounds 1 to 8, so that the windows of 6, 5 and 4 units go round the end. Batch = share."""
    make = MODELS[model]
    found = run("fedrolex", make(), 8, engine)
    before = make()
    for t, after in enumerate(found, 1):
        moved = renumbered(before, 1 - t)  # unit t - 1 comes first
        run("heterofl", moved, 1, engine)
        renumbered(moved, t - 1)
        assert_close(copy_of(moved), after, 1e-12)
        before.load_state_dict(after)


def test_the_windows_of_a_network_of_6_and_5_units():
    """Halves: 3 of 6 units, 3 of 5. In round 5 those from unit 4 on: 4, 5, 0 and 4, 0, 1."""
    held = subnetwork(small_mlp(), 0.5, 4).held
    rows, columns = held["2.weight"]
    assert held["0.bias"][0].tolist() == [4, 5, 0]
    assert (rows[:, 0].tolist(), columns.tolist()) == ([4, 0, 1], [4, 5, 0])
    assert held["0.weight"][1] == slice(4)  # the input is whole
    assert held["4.weight"][0] == slice(3)  # and so are the classes


def test_after_a_flatten_a_channel_is_several_inputs():
    held = subnetwork(small_normed(), 0.5, 5).held  # 4 and 6 channels, 4 inputs for each
    assert held["4.weight"][0].flatten().tolist() == [5, 0, 1]
    assert held["8.weight"][1].tolist() == [20, 21, 22, 23, 0, 1, 2, 3, 4, 5, 6, 7]


def test_stragglers_alone_train_all_units_in_turn():
    """With HeteroFL the last units of a hidden layer never move."""
    script = [[2, 2, 2, 2]] * 8
    for name, all_move in (("fedrolex", True), ("heterofl", False)):
        after = run(name, small_mlp(), 6, script=script)[-1]["0.weight"]
        moved = (after != copy_of(small_mlp())["0.weight"]).any(dim=1)
        assert moved.all().item() is all_move


def test_the_stacked_engine_agrees_with_local_steps():
    ends = [
        run("fedrolex", small_mlp(), 7, engine, local=LocalWork(3))[-1]
        for engine in ("loop", "stacked")
    ]
    assert_close(ends[1], ends[0], 1e-10)
