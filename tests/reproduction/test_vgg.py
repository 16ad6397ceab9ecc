"""The VGG figures: verdicts on made-up courses, and the files they become."""

import pytest
from made_up_runs import found

from reproduction.curves import Course
from reproduction.sizes import MEDIUM, PAPER, QUICK
from reproduction.verdicts import Verdict
from reproduction.vgg import (
    AT_90,
    BY_SHARE,
    SHARES,
    NetCase,
    findings,
    findings_at_90,
)

HOLDS, IN_PART, FAILS = Verdict.HOLDS, Verdict.IN_PART, Verdict.FAILS
UNDECIDED = Verdict.UNDECIDED
NOISE = (-0.001, 0.0, 0.001)
NETS = ("vgg11", "vgg13", "vgg16", "vgg19")
IMAGES = 10_000
FALLING = (2.3, 2.0, 1.5)


def course(*accuracies, losses=FALLING):
    return Course(list(enumerate(accuracies, 1)), losses)


def like_the_paper(changes=None, noise=NOISE):
    """Slower with depth, and with VGG-19 better for more stragglers."""
    cases = {}
    for i, net in enumerate(NETS):
        cases[NetCase.waiting(net)] = 0.95 - 0.12 * i
        for j, share in enumerate(SHARES):
            gain = 0.08 * j - 0.16 if net == "vgg19" else -0.01 * j
            cases[NetCase(net, "salf", "reached", share)] = 0.92 - 0.12 * i + gain
        cases[NetCase(net, "salf", "reached", 0.9)] = 0.91 - 0.12 * i
        cases[NetCase(net, "drop", "reached", 0.9)] = 0.3
    cases |= changes or {}
    return {
        case: value
        if value is None or isinstance(value, list)
        else [course(0.2, value + off) for off in noise]
        for case, value in cases.items()
    }


def salf(net, share):
    return NetCase(net, "salf", "reached", share)


def by_share(changes=None, nets=NETS, noise=NOISE):
    return findings(like_the_paper(changes, noise), "reached", nets, IMAGES)


def at_90(changes=None, nets=NETS, noise=NOISE):
    return findings_at_90(like_the_paper(changes, noise), "reached", nets, IMAGES)


def test_every_word_of_the_paper_holds_for_figures_like_the_papers():
    assert {finding.verdict for finding in (*by_share(), *at_90())} == {HOLDS}


@pytest.mark.parametrize(
    "bad",
    [
        course(0.1, 0.108),  # chance, as far as 10,000 images can tell
        course(0.7, 0.6),  # far below its best
        course(0.2, 0.7, losses=(1.5, 1.6, 1.7)),
        course(0.2, 0.32),  # FedAvg is at 0.59 or above: less than half as far above chance
    ],
)
def test_a_training_that_does_not_converge_is_found(bad):
    (converges, *_) = by_share({salf("vgg13", 0.7): [bad, *[course(0.2, 0.7)] * 2]})
    assert converges.verdict is IN_PART
    assert "11 of 12 checks passed" in converges.reason
    assert "VGG-13 SALF (70 %)" in converges.reason
    everywhere = {salf(net, share): [bad] * 3 for net in NETS for share in SHARES}
    assert by_share(everywhere)[0].verdict is FAILS


def test_converging_is_next_to_fedavg_of_the_same_net():
    """At 0.3 all are above chance, settled and still learning; FedAvg is at 0.9, or at 0.4."""
    slow = {salf(net, share): 0.3 for net in NETS for share in SHARES}
    high, low = ({NetCase.waiting(net): end for net in NETS} for end in (0.9, 0.4))
    assert by_share(slow | high)[0].verdict is FAILS
    assert by_share(slow | low)[0].verdict is HOLDS
    assert "0.299 at the end (FedAvg 0.899)" in by_share(slow | high)[0].reason
    assert by_share(slow | dict.fromkeys(high))[0].verdict is UNDECIDED


def test_slower_with_depth_says_whether_fedavg_is_too():
    slower = by_share()[1]
    assert "For FedAvg, without any deadline, the same holds: VGG-11 FedAvg" in slower.reason
    assert "FedAvg less SALF: VGG-11 0.020 ±0.000, VGG-13 0.020 ±0.000" in slower.reason
    rising = {NetCase.waiting(net): 0.8 + 0.01 * i for i, net in enumerate(NETS)}
    slower = by_share(rising)[1]
    assert slower.verdict is HOLDS
    assert "For FedAvg, without any deadline, the same does not hold" in slower.reason


def test_nets_that_are_not_slower_with_depth():
    faster = {salf(net, s): 0.3 + 0.15 * i for i, net in enumerate(NETS) for s in (*SHARES, 0.9)}
    assert by_share(faster)[1].verdict is FAILS
    assert at_90(faster)[2].verdict is FAILS
    one_faster = by_share({salf("vgg13", 0.5): 0.99})[1]
    assert one_faster.verdict is IN_PART
    assert "Failed: VGG-11 SALF (50 %) 0.555, VGG-13 SALF (50 %) 0.595" in one_faster.reason
    unclear = by_share({salf("vgg13", 0.5): [course(0.2, end) for end in (0.7, 0.99, 0.8)]})[1]
    assert unclear.verdict is IN_PART
    assert "Inconclusive: VGG-11 SALF (50 %) 0.555, VGG-13 SALF (50 %) 0.515" in unclear.reason


def test_vgg19_gains_from_stragglers_or_does_not_or_is_not_run():
    assert by_share({salf("vgg19", 0.3): 0.9})[2].verdict is FAILS
    assert by_share({salf("vgg19", 0.5): 0.1})[2].verdict is IN_PART
    alike = {salf("vgg19", share): 0.4 for share in SHARES}
    assert by_share(alike)[2].verdict is FAILS
    not_run = by_share(nets=("vgg11", "vgg13"))[2]
    assert not_run.verdict is Verdict.NOT_TESTED
    assert "VGG-19 is not run" in not_run.reason


def test_salf_has_to_be_above_drop_by_more_than_the_seeds_differ():
    worse = {salf(net, 0.9): 0.1 for net in NETS}
    assert at_90(worse)[0].verdict is FAILS
    assert "on i.i.d. data these represent all" in at_90(worse)[0].reason
    a_little = [course(0.2, end) for end in (0.95, 0.88, 0.885)]
    found_a_little = at_90({NetCase("vgg11", "drop", "reached", 0.9): a_little})[0]
    assert found_a_little.verdict is IN_PART
    assert "6 of 8 checks passed. Inconclusive" in found_a_little.reason
    assert "at the end: VGG-11 SALF (90 %) 0.910, VGG-11 Drop (90 %) 0.905" in found_a_little.reason


def test_approaching_fedavg_is_within_0_05():
    assert at_90({salf("vgg19", 0.9): 0.541})[1].verdict is HOLDS
    far = at_90({salf("vgg19", 0.9): 0.53})[1]
    assert far.verdict is IN_PART
    assert "at the end: VGG-19 SALF (90 %) 0.530, VGG-19 FedAvg 0.590" in far.reason
    assert at_90({salf(net, 0.9): 0.3 for net in NETS})[1].verdict is FAILS


def test_being_near_a_fedavg_that_has_learned_little_says_nothing():
    early = {case: 0.2 for net in NETS for case in (NetCase.waiting(net), salf(net, 0.9))}
    near = at_90(early)[1]
    assert near.verdict is UNDECIDED
    assert "(too early)" in near.reason


ITEMS = [BY_SHARE, AT_90]


def accuracies(config):
    """Enough rounds for the made-up losses to fall; worse with depth and stragglers."""
    end = 0.9 - int(config.model[3:]) / 50 - config.stragglers / 10 - 0.001 * config.seed
    end -= 0.2 * (config.method == "drop")
    return [0.2, end - 0.01, end]


def outcome(item, size=QUICK, numbers=accuracies):
    return item.outcome(size, found(item.tasks(size), numbers))


@pytest.mark.parametrize("item", ITEMS, ids=lambda item: item.name)
def test_what_was_run_is_on_the_figure_and_in_the_reasons(item):
    made = outcome(item)
    drawn = " ".join(made.figure.subtitle)
    for text in ("60 of the paper's 1,500 rounds", "VGG-16 and VGG-19 not run", "one seed"):
        assert text in drawn
    assert "size quick" in drawn
    assert "60 of the paper's 1,500 rounds" in made.intro
    for finding in made.findings:
        assert finding.verdict in (IN_PART, UNDECIDED, Verdict.NOT_TESTED)
        assert finding.verdict is not IN_PART or "1,500 rounds" in finding.reason
        assert finding.verdict is Verdict.NOT_TESTED or "One seed" in finding.reason
    full = outcome(item, PAPER)
    assert HOLDS in {finding.verdict for finding in full.findings}
    assert not any("1,500 rounds" in finding.reason for finding in full.findings)
    assert not any("One seed" in finding.reason for finding in full.findings)
    assert "not run" not in str(full.figure.subtitle)


def test_a_part_of_the_rounds_makes_a_claim_fail_once_fedavg_has_learned():
    """Drop as good as SALF at 300 rounds: not so, if FedAvg is past 0.5, and unknown before."""

    def verdict(ceiling):
        numbers = {"fedavg": ceiling, "salf": ceiling - 0.1, "drop": ceiling - 0.05}
        made = outcome(
            ITEMS[1],
            MEDIUM,
            lambda config: [numbers[config.method] + 0.001 * config.seed] * 5,
        )
        return next(one for one in made.findings if "significantly better" in one.claim)

    assert verdict(0.6).verdict is Verdict.FAILS
    assert "300 of the paper's 1,500 rounds" in verdict(0.6).reason
    assert verdict(0.4).verdict is UNDECIDED
