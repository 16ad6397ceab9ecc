"""Users as they are: cohorts, weights and data of their own, from `salf.train` and configs."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import salf
from nets import mlp
from reference import ANY_WORLD
from salf.data import of_users
from salf.runs.federation import from_config

SIZES = (12, 3, 7, 1, 20)
SMALL = {"rounds": 4, "batch_size": 4, "threads": 1, "lr": 0.1, "momentum": 0.0}


net = partial(mlp, 6, 8, 3)


def pairs(dtype=torch.float32):
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(n, 6, generator=generator).to(dtype), torch.arange(n) % 3) for n in SIZES]


def trained(data, **settings):
    model = net()
    history = salf.train(model, data, **(SMALL | settings))
    return history, torch.cat([each.detach().flatten() for each in model.parameters()])


@pytest.mark.parametrize("method", ANY_WORLD)
def test_all_ways_to_give_users_their_data_train_the_same_model(method):
    own = pairs()
    inputs, labels = (torch.cat(half) for half in zip(*own, strict=True))
    indices = np.split(np.arange(sum(SIZES)), np.cumsum(SIZES)[:-1])
    settings = {"method": method, "cohort": 3, "weigh": "samples"}
    history, wanted = trained(own, **settings)
    assert len(history.rows) == 4
    arrays = [(x.double().numpy(), y.numpy()) for x, y in own]  # float64, as NumPy has it
    for data, more in (
        ([TensorDataset(*each) for each in own], {}),
        (lambda user: own[user], {"users": 5}),
        (lambda user: TensorDataset(*own[user]), {"users": 5}),
        (arrays, {}),
        (arrays.__getitem__, {"users": 5}),
        ((inputs, labels), {"split": indices}),
    ):
        _, found = trained(data, **settings, **more)
        assert torch.equal(found, wanted)


def test_a_list_of_inputs_and_labels_is_data_to_split():
    inputs, labels = (torch.cat(half) for half in zip(*pairs(), strict=True))
    _, wanted = trained((inputs, labels), users=4)
    for x, y in ((inputs, labels), (inputs.tolist(), labels.tolist())):
        assert torch.equal(trained([x, y], users=4)[1], wanted)


@pytest.mark.parametrize(
    ("data", "settings", "said"),
    [
        (lambda user: pairs()[user], {}, "pass the number of users as users="),
        (pairs(), {"users": 4}, "the data are for 5 users, but users is 4"),
        (pairs(), {"split": "shards:2"}, "split= does not apply"),
        (pairs(), {"validation": 0.2}, "validation data cannot be held out"),
        (pairs(), {"eval_every": 2}, "eval_every needs test="),
        (pairs(), {"cohort": 6}, "whole number from 1 to 5 .*not 6"),
        (pairs(), {"cohort": 0}, "whole number from 1 to 5 .*not 0"),
        (pairs(), {"cohort": 2.5}, "whole number from 1 to 5 .*not 2.5"),
        (pairs(), {"cohort": "some"}, "cohort"),
        (pairs(), {"weigh": "size"}, "weigh"),
        (pairs(), {"cohort_by": "samples"}, "cohort_by needs a cohort"),
        ([(["a"], [0])], {}, "user 0's inputs cannot be converted"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(data, settings, said):
    with pytest.raises(salf.SalfError, match=said):
        trained(data, **settings)


def test_a_user_with_too_few_samples_for_batch_norm_is_said_before_training():
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    with pytest.raises(salf.SalfError, match=r"does not fit a batch of shape 1x6"):
        salf.train(model, pairs(), **SMALL)
    enough = [pair for pair in pairs() if len(pair[0]) > 1]
    assert len(salf.train(model, enough, **SMALL).rows) == 4


@pytest.mark.parametrize(("cohort", "size"), [("all", 30), (7, 7), (1, 1), (0.1, 3), (0.01, 1)])
def test_a_cohort_is_a_number_or_a_share_of_the_users(cohort, size):
    config = salf.Config(cohort=cohort, data="digits", threads=1)
    assert config.cohort_size() == size
    assert from_config(config).simulation.cohort.size == size


def test_a_config_of_a_cohort_is_read_back_and_run(tmp_path):
    config = salf.Config(
        data="digits",
        users=20,
        cohort=0.25,
        cohort_by="samples",
        weigh="samples",
        rounds=3,
        batch_size=100,
        threads=1,
    )
    result = salf.run(config, tmp_path / "run")
    assert {row.reached[-1] for row in result.history.rows} <= {1, 2, 3, 4, 5}
    again = salf.run(config, tmp_path / "run", resume=True)
    assert [row.train_loss for row in again.history.rows] == [
        row.train_loss for row in result.history.rows
    ]


def test_users_may_outnumber_samples_if_they_share_them():
    config = salf.Config(data="digits", users=5000, cohort=10, rounds=2, threads=1)
    with pytest.raises(salf.SalfError, match=r"5000 users cannot share .* shared:K"):
        salf.run(config)
    history = salf.run(config.changed(split="shared:40", method="fedavg")).history
    assert [row.reached[0] for row in history.rows] == [10, 10]


def problem(**more):
    test = salf.Samples(*pairs()[4])
    return salf.Problem.of(net(), of_users(pairs(), None), test=test, source="clinics", **more)


def test_a_problem_takes_the_place_of_model_and_data(tmp_path):
    history, wanted = trained(pairs(), test=pairs()[4])
    found = problem()
    again = salf.train(found, **SMALL, out=tmp_path)
    weights = torch.cat([each.detach().flatten() for each in found.model.parameters()])
    assert torch.equal(weights, wanted)
    assert again.test == history.test
    assert again.curve == history.curve
    assert salf.train(problem(), **SMALL, out=tmp_path, resume=True).test == history.test
    assert 'data = "clinics"' in (tmp_path / "config.toml").read_text()


def test_a_problem_is_copied_for_every_run_of_a_comparison():
    given = problem()
    before = {name: each.clone() for name, each in given.model.state_dict().items()}
    compared = salf.compare(
        given,
        methods=["fedavg", "salf"],
        seeds=2,
        lr=[0.1, 0.2],
        **{name: each for name, each in SMALL.items() if name != "lr"},
    )
    assert len(compared.to_pandas()) == 8
    assert set(compared.to_pandas()["split"]) == {"own"}
    for name, each in given.model.state_dict().items():
        assert torch.equal(each, before[name])


@pytest.mark.parametrize(
    ("more", "name"), [({"data": pairs()}, "data"), ({"split": "shards:2"}, "split")]
)
def test_what_a_problem_has_is_not_given_twice(more, name):
    with pytest.raises(salf.SalfError, match=f"a problem has its own {name}: leave out {name}="):
        salf.train(problem(), **SMALL, **more)
