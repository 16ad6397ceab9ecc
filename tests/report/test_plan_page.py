"""The plan in words, as a figure and as a page."""

from dataclasses import replace

import pytest

from reproduction.markdown import markdown
from salf.report.plan import constants, disagreement, figure, page, table, write_plan
from salf.runs.config import Config
from salf.runs.federation import problem_of
from salf.runs.plan import plan
from salf.runs.plan_options import PlanOptions
from salf.runs.search import Tried

CONFIG = Config(
    data="synthetic", users=6, batch_size=8, threads=1, fleet="slow-classes", seconds=30.0, lr=0.1
)


@pytest.fixture(scope="module")
def by_bound():
    return plan(CONFIG, problem_of, PlanOptions(seeds=0))


@pytest.fixture
def searched(by_bound):
    """A search whose accuracies are made up: the best deadline is twice the bound's."""
    offers = by_bound.offers
    tried = {offers["theorem"].deadline: (0.5, 0.6), offers["sharp"].deadline: (0.55, 0.6)}
    tried = {0.2: (0.1, None), **tried, 2 * offers["theorem"].deadline: (0.8, 0.7)}
    ordered = [Tried(deadline, tried[deadline]) for deadline in sorted(tried)]
    return replace(by_bound, tried=ordered, followed=Tried(0.0, (0.4, 0.4)))


def rows(found):
    return {row[0]: list(row[1:]) for row in table(found).rows}


def test_the_table_has_every_choice(searched):
    found = rows(searched)
    assert [*found] == [
        "Bound of the theorem",
        "Sharp bound",
        "Bound of the theorem, schedule",
        "Search by simulation",
    ]
    assert found["Bound of the theorem"][-1] == "0.550"
    assert found["Bound of the theorem, schedule"][-1] == "0.400"
    assert found["Search by simulation"][-1] == "0.750"


def test_without_a_search_there_is_no_accuracy(by_bound):
    assert "Accuracy" not in table(by_bound).columns
    assert "Search by simulation" not in rows(by_bound)
    assert disagreement(by_bound) == []


def test_the_disagreement_is_told_in_numbers(searched):
    told = disagreement(searched)
    assert "0.5 times the search's" in told[0]
    assert "costs 0.200 ± 0.100 of accuracy (0.550 instead of 0.750)" in told[0]
    assert "Rank correlation" in told[0]
    assert "diverged in some runs" in told[-1]
    assert any("the longest one it tried" in line for line in told)


def test_agreement_is_told_too(searched):
    best = searched.offers["theorem"].deadline
    tried = [
        Tried(each.deadline, (0.9, 0.9) if each.deadline == best else (0.1, 0.1))
        for each in searched.tried
    ]
    assert "also the search's best" in disagreement(replace(searched, tried=tried))[0]


def test_constants_say_where_they_come_from(by_bound):
    told = constants(by_bound)
    assert "assumed to be rho_s/10" in told
    assert "Gamma = 0 (assumed)" in told
    given = plan(CONFIG, problem_of, PlanOptions(seeds=0, g2=5.0))
    assert "G^2 = 5 (given)" in constants(given)


def test_the_figure_marks_each_choice(searched, by_bound):
    drawn = figure(searched, titled=True)
    assert len(drawn["vconcat"]) == 2
    marked = {
        value["x"]
        for panel in drawn["vconcat"]
        for layer in panel["layer"]
        if layer["mark"]["type"] == "rule" and "strokeDash" in layer["mark"]
        for value in drawn["datasets"].get(layer["data"].get("name", ""), [])
        or layer["data"].get("values", [])
    }
    assert marked == {
        searched.offers["theorem"].deadline,
        searched.offers["sharp"].deadline,
        searched.best.deadline,
    }
    assert "vconcat" not in figure(by_bound)


def test_the_page_and_the_files(searched, tmp_path):
    text = markdown(page(searched, ["plan", "--fleet", "slow-classes"]))
    assert "How far the bound and the simulation disagree" in text
    assert "salf plan --fleet slow-classes" in text
    assert "--deadline plan.csv" in text
    names = [path.name for path in write_plan(searched, tmp_path)]
    assert names == ["plan.csv", "curve.csv", "plan.png", "plan.svg", "plan.html"]
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")
    header = (tmp_path / "curve.csv").read_text().splitlines()[0]
    assert header.startswith("deadline,rounds,reach,p_1,bound_theorem,bound_sharp,accuracy")


def test_a_learning_rate_that_the_proof_does_not_allow_is_noted():
    from salf.report.plan import notes

    found = plan(CONFIG.changed(lr=0.5), problem_of, PlanOptions(seeds=0, rates="run"))
    assert any("not proven" in line for line in notes(found))
