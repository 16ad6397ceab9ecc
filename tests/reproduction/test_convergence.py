"""The convergence figures: verdicts on made-up curves, and the files they become."""

import pytest
from made_up_runs import found

from reproduction.convergence import CNN, MLP, findings
from reproduction.curves import Course
from reproduction.sizes import QUICK
from reproduction.verdicts import Verdict

HOLDS, IN_PART, FAILS = Verdict.HOLDS, Verdict.IN_PART, Verdict.FAILS
UNDECIDED = Verdict.UNDECIDED
AS_IN_THE_PAPER = {"fedavg": 0.95, "salf": 0.9, "asyncfl": 0.86, "heterofl": 0.43, "drop": 0.28}
NOISE = (-0.002, 0.0, 0.002)


def course(*accuracies):
    return Course(list(enumerate(accuracies, 1)))


def flat(accuracies, noise=NOISE):
    """The same accuracy all the time."""
    return {m: [course(a + n, a + n) for n in noise] for m, a in accuracies.items()}


def verdicts(courses):
    return [finding.verdict for finding in findings("all", courses)]


def test_the_papers_order_holds():
    assert verdicts(flat(AS_IN_THE_PAPER)) == [HOLDS, HOLDS, HOLDS]


def test_where_salf_is_worst_it_is_not_the_closest():
    closest, second, inferior = findings("all", flat(AS_IN_THE_PAPER | {"salf": 0.2}))
    assert closest.verdict is FAILS
    assert "SALF 0.750, AsyncFL 0.090 (+0.660 ±0.000)" in closest.reason
    assert "The paper leaves open" in closest.reason
    assert second.verdict is HOLDS
    assert inferior.verdict is IN_PART  # they are still below AsyncFL


def test_the_closest_is_a_matter_of_where_fedavg_is():
    """SALF is the best of them; a FedAvg that is near to AsyncFL, or below, is closer to others."""
    assert findings("all", flat(AS_IN_THE_PAPER))[0].verdict is HOLDS
    assert findings("all", flat(AS_IN_THE_PAPER | {"fedavg": 0.86}))[0].verdict is IN_PART
    assert findings("all", flat(AS_IN_THE_PAPER | {"fedavg": 0.1}))[0].verdict is FAILS


def test_the_whole_profile_counts_and_not_the_end_alone():
    courses = flat(AS_IN_THE_PAPER) | {"salf": [course(0.1, 0.9 + n) for n in NOISE]}
    closest = findings("all", courses)[0]
    assert closest.verdict is IN_PART
    assert "from FedAvg over all rounds: SALF 0.450, AsyncFL 0.090" in closest.reason
    assert "from FedAvg at the end" not in closest.reason


def test_training_that_diverged_speaks_against_the_method_said_to_be_good():
    closest, *_ = findings("all", flat(AS_IN_THE_PAPER) | {"salf": None})
    assert closest.verdict is FAILS
    assert "SALF: training diverged" in closest.reason
    closest, second, _ = findings("all", flat(AS_IN_THE_PAPER) | {"fedavg": None})
    assert (closest.verdict, second.verdict) == (UNDECIDED, HOLDS)


def curve(config):
    """The paper's numbers, a little more with every round."""
    end = AS_IN_THE_PAPER[config.method] + 0.001 * config.seed
    return [end - 0.02, end - 0.01, end]


@pytest.fixture(params=[MLP, CNN], ids=["mlp", "cnn"])
def item(request):
    return request.param


def outcome(item, size=QUICK, accuracies=curve):
    return item.outcome(size, found(item.tasks(size), accuracies))


def test_each_way_of_averaging_gets_its_verdicts(item):
    def worse_over_all(config):
        return [0.1] * 3 if (config.method, config.average) == ("salf", "all") else curve(config)

    made = outcome(item, accuracies=worse_over_all).findings
    closest = {f.claim.split(":")[0]: f.verdict for f in made if "the close[s]t" in f.claim}
    assert closest == {"As the equations say": HOLDS, "As published": FAILS}


def test_heterofl_is_not_judged_on_the_mlp_which_the_paper_leaves_out():
    def best(config):
        return [0.99] * 3 if config.method == "heterofl" else curve(config)

    mlp = outcome(MLP, accuracies=best)
    assert {finding.verdict for finding in mlp.findings} == {HOLDS}
    assert "HeteroFL is drawn but not judged" in mlp.intro
    cnn = outcome(CNN, accuracies=best)
    assert cnn.findings[0].verdict is IN_PART
    assert "not judged" not in cnn.intro
