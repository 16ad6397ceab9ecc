"""Table I: verdicts on results made up by hand."""

import numpy as np

from reproduction import paper
from reproduction.sizes import AVERAGES, METHODS, RATIOS
from reproduction.table1 import _far_off
from reproduction.table1_claims import MODELS, Cells, findings
from reproduction.texts import TEXTS
from reproduction.verdicts import Verdict

REASONS = TEXTS["table1"]["reasons"]
NOISE = (-0.001, 0.0, 0.001)


def like_the_paper(**changes):
    """The paper's own numbers, with changes {(model, method, average, ratio): accuracy}."""
    values = {}
    for model in MODELS:
        for method in METHODS:
            for average in AVERAGES:
                for ratio in RATIOS:
                    told = paper.published(model, method, ratio)
                    values[model, method, average, ratio] = 0.5 if told is None else told
    values |= changes.get("cells", {})
    return Cells({key: [value + noise for noise in NOISE] for key, value in values.items()})


def verdict(cells, *words):
    """Of the one claim with all these words."""
    (found,) = [f for f in findings(cells) if all(word in f.claim for word in words)]
    return found


def test_the_papers_own_numbers_agree_with_every_word_of_the_paper():
    found = findings(like_the_paper())
    # With the paper's own SALF at 0.81 and FedAvg at 0.90, the gap is more than 0.03.
    near = verdict(like_the_paper(), "within 0.03")
    assert near.verdict is Verdict.FAILS
    assert {f.verdict for f in found if f != near} == {Verdict.HOLDS}
    assert [f.claim for f in found if f.ours] == [found[-1].claim]


def test_a_number_far_from_the_papers_is_named_with_both_numbers_and_a_reason():
    cells = like_the_paper(cells={("cnn", "heterofl", "all", 0.9): 0.91})
    found = verdict(cells, "The numbers of Table I", "CNN")
    assert found.verdict is Verdict.IN_PART
    assert "CNN HeteroFL at 90 %: ours 0.910, the paper's 0.43" in found.reason
    told = " ".join(str(block) for block in _far_off(cells))
    assert "CNN at 90 % 0.910 (0.43)" in told
    assert "the paper says only" in told.lower()
    assert "No number" in str(_far_off(like_the_paper())[0])


def test_only_the_published_convention_is_held_against_the_papers_numbers():
    cells = like_the_paper(cells={("cnn", "drop", "reached", 0.9): 0.93})
    assert verdict(cells, "The numbers of Table I", "CNN").verdict is Verdict.HOLDS


def test_salf_below_another_method_is_not_the_best():
    for average in AVERAGES:
        cells = like_the_paper(cells={("mlp", "asyncfl", average, 0.9): 0.85})
        convention = "As the equations say" if average == "reached" else "As published"
        found = verdict(cells, convention, "consistently achieving the best")
        assert found.verdict is Verdict.IN_PART
        assert "MLP at 90 %: SALF 0.810" in found.reason
        assert verdict(cells, convention, "the order of the methods").verdict is Verdict.IN_PART


def test_salf_worse_than_everything_everywhere_does_not_hold():
    bad = {(m, "salf", a, r): 0.1 for m in MODELS for a in AVERAGES for r in RATIOS}
    cells = like_the_paper(cells=bad)
    assert verdict(cells, "As published", "consistently").verdict is Verdict.FAILS
    assert verdict(cells, "at least as good as Drop").verdict is Verdict.FAILS
    assert verdict(cells, "within 0.03").verdict is Verdict.FAILS


def test_accuracy_that_rises_with_stragglers_is_reported():
    cells = like_the_paper(cells={("cnn", "drop", "all", 0.7): 0.99})
    found = verdict(cells, "As published", "the higher the percentage")
    assert found.verdict is Verdict.IN_PART
    assert "CNN Drop at 50 % 0.900, CNN Drop at 70 % 0.990 (−0.090 ±0.000)" in found.reason
    assert verdict(cells, "As the equations", "the higher the percentage").verdict is Verdict.HOLDS


def test_salf_that_falls_more_than_the_others_is_reported():
    cells = like_the_paper(cells={("cnn", "salf", "all", 0.9): 0.2})
    found = verdict(cells, "As published", "degradation of SALF")
    assert found.verdict is Verdict.IN_PART  # the MLP's is as it was
    assert "SALF falls by 0.740" in found.reason


def test_seeds_that_are_far_apart_make_nothing_hold():
    """The paper's means, with seeds that hide them all; then one seed, which hides everything."""
    rng = np.random.default_rng(0)
    wide = {
        key: [values[1] + off for off in rng.normal(0, 0.5, 3)]
        for key, values in like_the_paper().values.items()
    }
    means = [f for f in findings(Cells(wide)) if "The numbers of" not in f.claim and not f.ours]
    assert Verdict.HOLDS not in {f.verdict for f in means}
    one = Cells({key: values[1:2] for key, values in like_the_paper().values.items()})
    for found in findings(one):
        point = "The numbers of" in found.claim
        assert found.verdict is (Verdict.HOLDS if point else Verdict.UNDECIDED)
