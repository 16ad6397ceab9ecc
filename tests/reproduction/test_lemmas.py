"""Lemmas 1 to 3: measured against exact values, and verdicts on results that must fail."""

import json
from itertools import product

import numpy as np
import pytest
import torch
from made_up_runs import TINY, silent
from scipy import stats

from reference import gradients, unreached
from reproduction import lemma1, lemma2, lemma3, theorem
from reproduction.item import Found, label
from reproduction.lemmas import inner_products, rounds_of, weights_of
from reproduction.verdicts import Verdict
from salf.core.arrivals import Arrivals
from salf.core.draws import Unkeyed
from salf.data import split, synthetic
from salf.data.sampling import places
from salf.methods.drop import Drop
from salf.methods.salf import SALF
from salf.worlds.depth import Uniform


def verdicts(findings):
    return [finding.verdict for finding in findings]


def every_round(users, layers):
    """All (L+1)^U combinations of depths, once each: their mean is the expectation under AS4."""
    return [Arrivals(np.array(depth)) for depth in product(range(1, layers + 2), repeat=users)]


def random_gradients(layers, users, size=7, seed=0):
    """[L, U, size], with a common part so that their mean is not small."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(layers, users, size)) + 2 * rng.normal(size=(layers, 1, size))


def products_of(gradients):
    return gradients @ gradients.transpose(0, 2, 1)


# What the lemmas are measured on.


def test_inner_products_are_those_of_every_users_own_gradient():
    data = synthetic(3, train=60)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 5), torch.nn.Linear(5, 10))
    found = inner_products(model, data.train, 3, 4, np.random.default_rng(1))

    rng = np.random.default_rng(1)
    shares = split("iid", data.train.labels, 3, rng)
    by_user = []
    everybody = np.arange(3)
    drawn = places(Unkeyed(rng), everybody, shares.sizes(everybody), 4)
    for batch in shares.at(everybody, drawn):
        inputs, labels = data.train.rows(torch.from_numpy(batch))
        by_user.append(gradients(model.double(), inputs.double(), labels))
    for layer, names in enumerate([("1.weight", "1.bias"), ("2.weight", "2.bias")]):
        for u, v in product(range(3), repeat=2):
            wanted = sum((by_user[u][n] * by_user[v][n]).sum() for n in names)
            assert found[layer, u, v] == pytest.approx(wanted.item(), rel=1e-10)


# Lemma 1.


def findings1(measured, fresh=None):
    """With second draws that are like the first, if no others are given."""
    return lemma1.findings(measured, fresh or measured)


def counted(users, layers, draws=100_000, chance=lambda layer, layers: layer / (layers + 1)):
    """Counts as they are expected if a user reaches a layer with this chance."""
    k = np.arange(users + 1)
    counts = [
        np.round(draws * stats.binom.pmf(k, users, chance(layer, layers))).astype(int).tolist()
        for layer in range(1, layers + 1)
    ]
    return {"users": users, "layers": layers, "draws": draws, "counts": counts}


def suspicious():
    """Five layers that fit, and one with a p-value that 99 % would not accept."""
    fine, odd = counted(10, 3), counted(30, 3)
    row = np.array(odd["counts"][1])
    row[[14, 15]] += [-560, 560]
    odd["counts"][1] = row.tolist()
    return [fine, odd]


def test_a_layer_that_does_not_fit_is_drawn_again_and_the_page_says_both():
    measured = suspicious()
    smallest = min(lemma1._chances(measured[1]))
    assert smallest < 0.01 / 6
    (found, *_) = findings1(measured, fresh=[counted(10, 3), counted(30, 3)])
    assert found.verdict is Verdict.HOLDS
    assert f"That of layer 2 of U = 30, L = 3 did not, with p = {smallest:.2g}" in found.reason
    assert "fresh draws, at p = 0.01, it has p = 1." in found.reason
    (found, *_) = findings1(measured)  # the same again
    assert found.verdict is Verdict.IN_PART
    (found, *_) = findings1([counted(10, 3)])
    assert found.reason.endswith("All did at once.")


def test_chi_square_merges_what_is_rarely_due():
    law = np.array([0.01, 0.04, 0.45, 0.46, 0.04])
    counts = np.array([3.0, 3, 50, 40, 4])  # due: 1, 4, 45, 46, 4
    wanted = stats.chisquare([6, 50, 44], [5, 45, 50]).pvalue
    assert lemma1.chi_square(counts, law) == pytest.approx(wanted, rel=1e-12)


def test_depths_of_another_law_do_not_pass_as_lemma_1():
    """Users never beyond the last layer; and users that reach a layer all or none."""

    def too_deep(layer, layers):
        return layer / layers if layer < layers else 1.0

    together = counted(4, 1) | {"counts": [[50_000, 0, 0, 0, 50_000]]}
    for wrong in ([counted(10, 4, chance=too_deep)], [together]):
        assert verdicts(findings1(wrong))[:2] == [Verdict.FAILS] * 2


def test_one_layer_off_is_enough():
    one = counted(5, 3)
    one["counts"][1] = counted(5, 3, chance=lambda layer, layers: 0.45)["counts"][1]
    found = findings1([one])
    assert verdicts(found)[:2] == [Verdict.FAILS] * 2
    assert "(layer 2)" in found[0].reason
    assert "layer 2 0.05, by the formula 0.031" in found[1].reason


def test_a_chance_of_no_update_that_rises_with_users_or_layers_is_seen():
    fine = [counted(2, 2), counted(5, 2)]
    assert verdicts(findings1(fine))[2] is Verdict.HOLDS
    rising = [fine[0] | {"users": 5}, fine[1] | {"users": 2}]
    assert lemma1._falls_with_users(rising)[0].passed is False
    backwards = counted(3, 2, chance=lambda layer, layers: 1 - layer / (layers + 1))
    assert lemma1._falls_with_layer(backwards).passed is False


# Lemma 2.


def exact_comparison(rule, unreached, users, layers, gradients):
    moments = lemma2.Moments(layers, users)
    moments.add(weights_of(rule, every_round(users, layers), unreached) - 1 / users)
    return moments.compare(products_of(gradients))


@pytest.mark.parametrize(("users", "layers"), [(2, 3), (4, 2)])
def test_over_all_depths_salf_is_fedavg_exactly_and_the_controls_are_short_of_it(users, layers):
    g = random_gradients(layers, users)
    p = unreached(Uniform(users, layers))
    wanted = {
        (SALF(), "p"): np.ones(layers),
        (SALF(), "0"): 1 - p,
        (SALF(average="all"), "p"): np.arange(1, layers + 1) / (layers + 1),
        (Drop(), "p"): np.full(layers, 1 - p[0]),
    }
    for (rule, division), ratios in wanted.items():
        chances = p if division == "p" else np.zeros(layers)
        found = exact_comparison(rule, chances, users, layers, g)
        assert [layer["ratio"] for layer in found] == pytest.approx(ratios, rel=1e-12)
        t2 = [layer["t2"] for layer in found]
        assert (max(t2) < 1e-20) == (ratios == 1).all()


def test_the_ratio_and_its_error_are_those_of_the_steps_themselves():
    users, layers = 3, 2
    g = random_gradients(layers, users)
    law = Uniform(users, layers)
    (rounds,) = rounds_of(law, 200, np.random.default_rng(0))
    c = weights_of(SALF(), rounds, unreached(law))
    steps = np.einsum("nlu,lum->nlm", c, g)
    moments = lemma2.Moments(layers, users)
    for part in (c[:70], c[70:]):
        moments.add(part - 1 / users)
    for layer, found in enumerate(moments.compare(products_of(g))):
        fedavg = g[layer].mean(0)
        ratios = steps[:, layer] @ fedavg / (fedavg @ fedavg)
        assert found["ratio"] == pytest.approx(ratios.mean(), rel=1e-12)
        assert found["error"] == pytest.approx(ratios.std(ddof=1) / np.sqrt(200), rel=1e-10)
        # Hotelling's T^2, from its definition.
        off = c[:, layer].mean(0) - 1 / users
        t2 = 200 * off @ np.linalg.solve(np.cov(c[:, layer].T), off)
        assert found["t2"] == pytest.approx(t2, rel=1e-8)
        assert found["rank"] == users
        assert found["unvaried"] == 0


def test_a_direction_in_which_nothing_varied_is_told_apart():
    """Weights that always sum to 1.2: no variance along their sum, and off by 0.2 there."""
    contrasts = np.eye(3) - 1 / 3
    found = lemma2.hotelling(np.full(3, 0.2 / 3), 0.01 * contrasts)
    assert found["rank"] == 2
    assert found["t2"] == pytest.approx(0, abs=1e-20)
    assert found["unvaried"] == pytest.approx(0.2, rel=1e-12)


def layer(ratio=1.0, error=0.01, t2=3.0, rank=3, unvaried=0.0):
    return {"ratio": ratio, "error": error, "t2": t2, "rank": rank, "unvaried": unvaried}


def made_up(salf, law="uniform", users=4, p=0.3, **others):
    """Every variant with one layer; the controls are seen to be biased unless told otherwise."""
    controls = {name: layer(0.5) for name in ("undivided", "all", "drop")}
    variants = {"salf": [salf], **{name: [found] for name, found in (controls | others).items()}}
    return {"users": users, "law": law, "draws": 20_000, "unreached": [p], "variants": variants}


@pytest.mark.parametrize(
    "biased",
    [
        layer(ratio=0.9),
        layer(ratio=1.1),
        layer(t2=60.0),  # off across FedAvg's step, not along it
        layer(unvaried=0.01),
    ],
)
def test_a_biased_mean_does_not_pass_as_lemma_2(biased):
    assert verdicts(lemma2.findings([made_up(biased)]))[0] is Verdict.FAILS
    found = lemma2.findings([made_up(layer()), made_up(biased, "mixture", p=0.0)])
    assert verdicts(found)[0] is Verdict.HOLDS
    assert verdicts(found)[2] is Verdict.FAILS
    both = lemma2.findings([made_up(layer()), made_up(biased, users=30)])
    assert verdicts(both)[0] is Verdict.IN_PART


def test_what_happens_too_rarely_to_be_seen_is_no_bias():
    """p_1 = 1e-4 with 20,000 draws: none may show it, and the weights are off by p_1."""
    assert verdicts(lemma2.findings([made_up(layer(unvaried=1e-4))]))[0] is Verdict.HOLDS


def test_lemma_2_holds_for_the_librarys_weights_and_its_controls_are_found_out():
    measured = [
        lemma2.measure("synthetic", "", 4, users, law, 2000, 0, silent)
        for users, law in ((2, "uniform"), (10, "mixture"))
    ]
    assert json.loads(json.dumps(measured)) == measured
    assert verdicts(lemma2.findings(measured)) == [Verdict.HOLDS] * 3
    assert "undivided" not in measured[1]["variants"]  # p_l = 0: it would be SALF


# Lemma 3.


def exact_variance(products, users, layers):
    """Given |U^l| = K >= 1, U^l is a simple random sample of K users without replacement."""
    total, sizes = 0.0, np.arange(1, users + 1)
    for number, of_layer in enumerate(products, 1):
        mean2 = of_layer.mean()  # |mean g|^2
        spread = (np.trace(of_layer) - users * mean2) / (users - 1)
        chance = stats.binom.pmf(sizes, users, number / (layers + 1))
        p = (1 - number / (layers + 1)) ** users
        sampling = (chance * (1 / sizes - 1 / users)).sum() * spread / (1 - p) ** 2
        total += sampling + p / (1 - p) * mean2
    return total


@pytest.mark.parametrize(("users", "layers"), [(2, 1), (2, 4), (5, 2), (4, 3)])
def test_over_all_depths_the_variance_is_the_exact_one(users, layers):
    g = random_gradients(layers, users)
    weights = weights_of(SALF(), every_round(users, layers), unreached(Uniform(users, layers)))
    found = lemma3.squared_norms(weights - 1 / users, products_of(g)).mean()
    assert found == pytest.approx(exact_variance(products_of(g), users, layers), rel=1e-10)


def test_measured_variances_are_the_exact_ones_within_their_errors():
    found = lemma3.measure("synthetic", "", 4, 3, [2, 6], 2, 3000, 1, silent)
    assert json.loads(json.dumps(found)) == found
    assert len(found["points"]) == 2 * 2 * 2
    data = synthetic(0)
    for point in found["points"]:
        number = point["network"]
        model = lemma3.network(data.train.shape, 10, 3, point["start"], 1 + number)
        every = inner_products(model, data.train, 6, 4, np.random.default_rng([1, number]))
        products = every[:, : point["users"], : point["users"]]
        exact = exact_variance(products, point["users"], 3)
        assert abs(point["variance"] - exact) < 4.5 * point["error"]  # 8 in a million each
        assert point["error"] < 0.1 * exact
        assert point["G2"] == pytest.approx(max(np.einsum("luu->u", products)), rel=1e-12)
        assert exact < point["layerwise"] < lemma3._bound(3, point["users"]) * point["G2"]
        share = np.trace(products[0]) / np.einsum("luu->", products)
        assert point["first"] == pytest.approx(share, rel=1e-12)


def test_the_layerwise_bound_is_above_the_variance_whatever_the_gradients():
    for seed, (users, layers) in product(range(5), [(2, 1), (2, 6), (10, 3)]):
        products = products_of(random_gradients(layers, users, seed=seed))
        norms = np.einsum("luu->lu", products).max(1)
        bound = lemma3.layerwise_bound(norms, users, unreached(Uniform(users, layers)))
        assert exact_variance(products, users, layers) <= bound


def points(value, error=1e-6, spread=0.01, starts=("default", "he")):
    """Variances made up by layers and users, in three networks that differ by `spread`."""
    return lemma3.Points(
        [
            {
                "start": start,
                "network": number,
                "layers": layers,
                "users": users,
                "G2": 1.0,
                "variance": value(layers, users) * (1 + spread * (number - 1)),
                "error": error,
                "layerwise": 4.0,
                "first": 0.5,
            }
            for start in starts
            for layers in (1, 4)
            for users in (2, 10)
            for number in range(3)
        ]
    )


def test_lemma_3_holds_on_a_small_variance_that_grows_with_layers_and_falls_with_users():
    assert (
        verdicts(lemma3.findings(points(lambda layers, users: 1.1 * layers / users)))
        == [Verdict.HOLDS] * 4
    )


def test_a_variance_above_the_bound_does_not_pass_as_lemma_3():
    above = points(lambda layers, users: 1.02 * lemma3._bound(layers, users))
    assert verdicts(lemma3.findings(above))[0] is Verdict.FAILS
    at_one = points(lambda layers, users: 100.0 if (layers, users) == (4, 10) else 0.1)
    found = lemma3.findings(at_one)[0]
    assert found.verdict is Verdict.IN_PART
    assert "L = 4: at U = 10 the upper end is 101" in found.reason


@pytest.mark.parametrize(
    ("power", "verdict"),
    [(-1, Verdict.FAILS), (0, Verdict.FAILS), (0.9, Verdict.HOLDS)],
)
def test_whether_the_variance_grows_with_layers(power, verdict):
    found = lemma3.findings(points(lambda layers, users: layers**power / users))
    assert verdicts(found)[2] is verdict


def test_a_variance_that_does_not_fall_with_users_is_said():
    flat = lemma3.findings(points(lambda layers, users: 0.1 * layers))
    assert verdicts(flat)[3] is Verdict.FAILS
    # However much networks differ, what counts is what users do in each of them.
    falls = lemma3.findings(points(lambda layers, users: layers / users**0.1, spread=0.5))
    assert verdicts(falls)[3] is Verdict.HOLDS


# All of them, as the command makes them.


@pytest.mark.parametrize(
    "item", [lemma1.Lemma1(), lemma2.Lemma2(), lemma3.Lemma3(), theorem.Theorem()]
)
def test_an_item_comes_out_whole_from_results_as_they_are_stored(item, monkeypatch):
    monkeypatch.setattr(lemma3, "USERS", (2, 5))
    monkeypatch.setattr(lemma3, "LAYERS", (1, 2))
    tasks = item.tasks(TINY)
    assert len({label(task) for task in tasks}) == len(tasks)
    assert all(json.loads(json.dumps(task.arguments)) == task.arguments for task in tasks)
    found = Found({label(task): json.loads(json.dumps(task(silent))) for task in tasks})
    outcome = item.outcome(TINY, found)
    assert len({tuple(row) for row in outcome.rows}) == 1
    assert all(finding.reason for finding in outcome.findings)
    assert "size quick" in str(outcome.figure)
    assert ("300 " in str(outcome.figure)) == (item.name != "theorem")
