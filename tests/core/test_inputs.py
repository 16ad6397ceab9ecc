"""Models with several inputs: tuples, dictionaries, tokens and masks."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import salf

SETTINGS = {"users": 5, "rounds": 3, "batch_size": 4, "stragglers": 0.6, "lr": 0.1, "seed": 2}


class TwoInputs(nn.Module):
    """Numbers and a category."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(4, 3)
        self.first = nn.Linear(5, 6)
        self.last = nn.Linear(9, 3)

    def forward(self, numbers, category):
        hidden = torch.cat([torch.tanh(self.first(numbers)), self.embed(category)], 1)
        return self.last(hidden)


class Tagger(nn.Module):
    """A class for each token of a sentence with padding."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.last = nn.Linear(8, 3)

    def forward(self, tokens, padding):
        hidden = self.encoder(self.embed(tokens), src_key_padding_mask=padding)
        return self.last(hidden).transpose(1, 2)


def made(kind):
    torch.manual_seed(0)
    return kind().double()


@pytest.fixture
def pairs():
    torch.manual_seed(1)
    numbers, category = torch.randn(80, 5).double(), torch.randint(0, 4, (80,))
    return (numbers, category), (category + (numbers[:, 0] > 0)) % 3


@pytest.fixture
def sentences():
    torch.manual_seed(1)
    tokens = torch.randint(0, 20, (80, 6))
    padding = torch.arange(6) >= torch.randint(2, 7, (80, 1))
    return {"tokens": tokens, "padding": padding}, tokens % 3


def trained(model, data, **more):
    history = salf.train(model, data, **{**SETTINGS, **more})
    return history, {name: p.detach().clone() for name, p in model.named_parameters()}


@pytest.mark.parametrize("method", ["salf", "asyncfl", "mifa", "fedprox", "feddyn"])
@pytest.mark.parametrize(
    "work", [{}, {"cohort": 3, "weigh": "samples"}, {"local_steps": 3}], ids=str
)
def test_the_fast_engine_is_the_loop_on_two_inputs(pairs, method, work):
    if method == "feddyn":
        work = {**work, "momentum": 0.0}
    fast, found = trained(made(TwoInputs), pairs, method=method, **work)
    _, wanted = trained(made(TwoInputs), pairs, method=method, engine="loop", **work)
    assert fast.engine == ("loop" if work.get("local_steps") else "grouped")
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=1e-10)


def test_a_dictionary_of_tokens_and_masks_with_a_target_per_token(sentences):
    fast, found = trained(made(Tagger), sentences)
    loop, wanted = trained(made(Tagger), sentences, engine="loop")
    assert fast.engine == "grouped"
    assert fast.rows[-1].metrics["loss"] == pytest.approx(loop.rows[-1].metrics["loss"])
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=1e-10)


def test_the_loss_is_that_of_the_model_called_as_people_call_it(pairs):
    model = made(TwoInputs)
    (numbers, category), labels = pairs
    history, _ = trained(model, pairs, rounds=1, validation=0, test=pairs)
    with torch.no_grad():
        loss = F.cross_entropy(model.eval()(numbers, category), labels)
        assert model(category=category, numbers=numbers).shape == (80, 3)
    assert history.test["loss"] == pytest.approx(loss.item())


@pytest.mark.parametrize("part", [0, 1], ids=["numbers", "category"])
def test_the_probe_sees_rows_mixed_by_any_of_the_inputs(pairs, part):
    class Mixes(TwoInputs):
        def forward(self, numbers, category):
            mixed = (numbers if part == 0 else self.embed(category)).mean()
            return super().forward(numbers, category) + mixed

    history, _ = trained(made(Mixes), pairs)
    assert history.engine == "loop"
    assert "mixes the rows" in history.why


def test_every_user_may_bring_several_inputs(pairs):
    (numbers, category), labels = pairs
    sizes = [(0, 10), (10, 30), (30, 33), (33, 80)]
    of_users = [((numbers[a:b], category[a:b]), labels[a:b]) for a, b in sizes]
    split = [[*range(a, b)] for a, b in sizes]

    class Own(torch.utils.data.Dataset):
        def __init__(self, a, b):
            self.a, self.b = a, b

        def __len__(self):
            return self.b - self.a

        def __getitem__(self, place):
            at = self.a + place
            return (numbers[at], category[at]), labels[at]

    _, wanted = trained(made(TwoInputs), pairs, split=split, users=4)
    for data in (of_users, [Own(a, b) for a, b in sizes]):
        _, found = trained(made(TwoInputs), data, users=4)
        for name, value in wanted.items():
            torch.testing.assert_close(found[name], value, rtol=0, atol=1e-10)


def test_a_run_with_several_inputs_is_kept_and_not_continued_with_others(pairs, tmp_path):
    trained(made(TwoInputs), pairs, out=tmp_path)
    trained(made(TwoInputs), pairs, out=tmp_path, resume=True)
    (numbers, category), labels = pairs
    with pytest.raises(salf.SalfError, match="different config"):
        trained(made(TwoInputs), ((numbers, category.flip(0)), labels), out=tmp_path, resume=True)


def test_inputs_of_different_lengths_are_refused(pairs):
    (numbers, category), labels = pairs
    with pytest.raises(salf.SalfError, match="training inputs need one row per sample"):
        salf.train(made(TwoInputs), ((numbers, category[:5]), labels), **SETTINGS)
    with pytest.raises(salf.SalfError, match="does not fit a batch"):
        salf.train(made(TwoInputs), ({"numbers": numbers, "words": category}, labels), **SETTINGS)
