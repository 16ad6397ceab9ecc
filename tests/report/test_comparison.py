"""A comparison in tables, words and on a page; with a fleet, by the simulated clock."""

import re
import sys
import xml.etree.ElementTree as ET
from io import StringIO

import pytest
from made_up import BASE, case, comparison, result, timed
from rich.console import Console

from salf.report.comparison import PAGE, page, print_tables, tables, to_target, write_report
from salf.report.tables import Bold
from salf.report.verdict import verdict
from salf.runs.compare import Clocked, Comparison
from salf.runs.config import Config


def texts(table):
    return [" | ".join(row) for row in table.rows]


def bold(table):
    return [[isinstance(cell, Bold) for cell in row[1:]] for row in table.rows]


def printed(compared, *, terminal=False):
    stream = StringIO()
    print_tables(compared, Console(file=stream, force_terminal=terminal, width=80))
    return stream.getvalue()


@pytest.fixture(scope="module")
def both():
    """Three methods, two ratios, two averages, two seeds."""
    accuracies = {
        ("fedavg", 0.3): [0.92, 0.94],
        ("fedavg", 0.9): [0.92, 0.94],
        ("drop", 0.3): [0.90, 0.92],
        ("drop", 0.9): [0.50, 0.60],
        ("salf", 0.3): [0.89, 0.91],
        ("salf", 0.9): [0.80, 0.90],
    }
    return comparison(
        {
            case(method, ratio, average): values
            for average in ("reached", "all")
            for (method, ratio), values in accuracies.items()
        }
    )


def test_mean_and_spread_of_each_method_by_ratio_with_the_best_in_bold(both):
    reached, every = tables(both)
    assert reached.columns == ["Method", "30 %", "90 %"]
    assert texts(reached) == [
        "FedAvg (waits) | 0.9300 ±0.0141 | 0.9300 ±0.0141",
        "Drop | 0.9100 ±0.0141 | 0.5500 ±0.0707",
        "SALF | 0.9000 ±0.0141 | 0.8500 ±0.0707",
    ]
    assert bold(reached) == [[False, False], [True, False], [False, True]]
    assert [reached.caption, every.caption] == [
        "i.i.d., averaged over the users that reached a layer",
        "i.i.d., averaged over all users, as the authors' script does",
    ]


@pytest.mark.parametrize(
    ("tests", "rows", "stand_out"),
    [
        # What looks the same is equally good, and a method alone is not the best.
        ({case("drop"): [0.90001], case("salf"): [0.90002]}, "Drop|0.9000 SALF|0.9000", [1, 1]),
        ({case("fedavg"): [0.9], case("salf"): [0.8]}, "FedAvg (waits)|0.9000 SALF|0.8000", [0, 0]),
        # What was not measured, or not run, is a dash.
        ({case("drop"): [None] * 2, case("salf"): [None] * 2}, "Drop|– SALF|–", [0, 0]),
        (
            {case("fedavg", 0.0): [0.9], case("salf", 0.9): [0.8]},
            "FedAvg (waits)|0.9000|– SALF|–|0.8000",
            [0, 0, 0, 0],
        ),
    ],
)
def test_a_cell_is_bold_if_it_is_the_best_and_a_dash_if_there_is_nothing(tests, rows, stand_out):
    compared = comparison(tests)
    (table,) = tables(compared)
    assert " ".join("|".join(row) for row in table.rows) == rows
    assert [cell for row in bold(table) for cell in row] == [bool(each) for each in stand_out]
    assert printed(compared)


def test_without_a_mixture_there_is_no_ratio():
    compared = comparison({case("salf"): [0.8]}, Config(depth="uniform"))
    assert tables(compared)[0].columns == ["Method", "uniform depths"]
    assert "ratio" not in printed(compared)


def test_the_verdict_comes_first_and_tables_are_printed_whole_into_a_file(both, monkeypatch):
    out = printed(both)
    assert out.startswith("Highest test accuracy of the methods with a deadline: Drop in 2 of 4")
    assert "Who is ahead: paired by seed" in out
    assert out.count("SALF            0.9000 ±0.0141  0.8500 ±0.0707") == 2
    assert out.endswith(
        "Test accuracy of the model mlp on MNIST with 5 users after 3 rounds, by ratio of "
        "stragglers: mean ± standard deviation over 2 seeds. FedAvg waits for all users in every "
        "round. Bold: the best method with a deadline.\n"
    )
    monkeypatch.setenv("TERM", "xterm")
    out = printed(both, terminal=True)
    assert "\x1b[1m0.8500 ±0.0707\x1b[0m" in out
    assert "\x1b[1m0.9300 ±0.0141\x1b[0m" not in out


def test_several_conditions_are_one_table_of_who_is_ahead_in_which_ties_are_ties():
    both = {("drop", 0.3): [0.90, 0.92], ("salf", 0.3): [0.88, 0.91]}
    both |= {("drop", 0.9): [0.60, 0.50], ("salf", 0.9): [0.79, 0.70], ("fedavg", 0.9): [0.99] * 2}
    said, (table,) = verdict(comparison({case(*each): values for each, values in both.items()}))
    assert [" | ".join(row) for row in table.rows] == [
        "30 % stragglers | Drop 0.910 | SALF 0.895 | +0.015 ±0.064 (tie)",
        "90 % stragglers | SALF 0.745 | Drop 0.550 | +0.195 ±0.064",
    ]
    assert said.endswith("in 1 of them a tie with the next.")
    _, (alone,) = verdict(comparison({case(*each): values[:1] for each, values in both.items()}))
    assert "tie" not in str(alone.rows)  # which one seed cannot tell


def test_a_page_begins_with_one_sentence_however_many_conditions_there_are(both):
    assert verdict(both)[0] == (
        "Highest test accuracy of the methods with a deadline: Drop in 2 of 4 conditions and SALF "
        "in 2 of 4 conditions."
    )
    alone = comparison({case("salf"): [0.8, 0.9]})
    assert verdict(alone) == ("SALF has a test accuracy of 0.850 ±0.071 after 3 rounds.", [])


@pytest.mark.slow
def test_a_report_is_two_pictures_and_a_page(both, tmp_path):
    out = tmp_path / "new" / "folder"
    written = write_report(both, out, ["compare", "--out", "my <folder>"])
    assert written == [out / "accuracy.svg", out / "accuracy.png", out / "report.html"]
    assert sorted(out.iterdir()) == sorted(written)  # and nothing half written
    svg, png, html = (path.read_bytes() for path in written)
    assert png.startswith(b"\x89PNG")
    assert ET.fromstring(svg).tag.endswith("svg")
    assert b"salf compare --out &#39;my &lt;folder&gt;&#39;" in html
    assert html.count(b'<script type="application/json">') == 2  # accuracy, and who takes part
    assert b'<td data-label="90 %"><strong>0.8500 \xc2\xb10.0707</strong></td>' in html
    assert b"rounds = 3" in html
    assert b"Made with salf 0.1.0 and torch 2.13.0." in html


@pytest.mark.slow
def test_without_accuracy_the_loss_is_shown(tmp_path):
    compared = comparison({case("salf"): [None]}, accuracies=[None, None, None])
    written = write_report(compared, tmp_path, [])
    assert [path.name for path in written] == ["loss.svg", "loss.png", "report.html"]
    assert "Training loss over rounds" in written[2].read_text(encoding="utf-8")


def test_names_from_data_are_escaped_on_the_page():
    hostile = "<img src=x onerror=alert(1)>"
    compared = comparison({case("salf", split=hostile): [0.8]}, data=hostile)
    html = page(compared, [hostile]).html()
    assert hostile not in html
    assert "<img" not in html


def test_without_the_extra_a_report_has_no_png(both, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    written = write_report(both, tmp_path, [])
    assert [path.name for path in written] == ["accuracy.svg", PAGE]


def test_users_that_reached_a_layer_are_averaged_over_rounds_and_seeds():
    """For one split and average; layers whose name is a place in a sequence go by their number."""
    layers = ["0", "3", "head"]
    runs = [result([0.5], reached=r, layers=layers) for r in ((1, 2, 5), (2, 4, 5))]
    cases = [case("salf", ratio, average) for ratio in (0.3, 0.9) for average in ("reached", "all")]
    compared = Comparison(Config(users=5), dict.fromkeys(cases, runs))
    (section,) = (s for s in page(compared, []).sections if s.heading.startswith("Who takes part"))
    _, table = section.blocks
    assert table.columns == ["Method", "1", "2", "3 head"]
    counts = ["1.5", "3.0", "5.0"]
    assert table.rows == [[f"SALF, {ratio} % stragglers", *counts] for ratio in (30, 90)]


# ---- by the simulated clock -------------------------------------------------------------------


@pytest.fixture(scope="module")
def clocked():
    """FedAvg reaches its target after 40 s; SALF after 10 s and Drop never."""
    waste = {"waited": 8.0, "work": 4.0, "wasted_work": 1.0, "bytes": 10.0, "wasted_bytes": 5.0}
    equal_time = {"every": 20.0, "batches": "equal-time"}
    return Comparison(
        BASE,
        {
            case("fedavg"): [
                timed("fedavg", [0.5, 0.6, 0.7, 0.8], test, seed=seed, waited=20.0)
                for seed, test in enumerate((0.80, 0.82))
            ],
            case("salf"): [
                timed("salf", [0.6, 0.77, 0.78], test, 0.4, seed, every=5.0)
                for seed, test in enumerate((0.78, 0.79))
            ],
            case("salf", batches="equal-time"): [
                timed("salf", [0.6, 0.77], 0.85, 0.6, **equal_time),
                timed("salf", [0.6, 0.7], 0.81, 0.5, seed=1, **equal_time),
            ],
            case("drop"): [
                timed("drop", [0.3], 0.3, 0.1, seed, every=5.0, **waste) for seed in range(2)
            ],
        },
    )


def test_a_row_answers_what_a_method_has_at_the_budget_and_when_it_got_there(clocked):
    (table,) = tables(clocked)
    assert texts(table) == [
        "FedAvg (waits) | 0.810 ±0.014 | 0.500 ±0.000 | 4 | 40 ±0 | 20 | 0% | 0%",
        "SALF | 0.785 ±0.007 | 0.400 ±0.000 | 3 | 10 ±0 | 0 | 0% | 0%",
        "SALF, equal-time | 0.830 ±0.028 | 0.550 ±0.071 | 2 | 1 of 2 reached | 0 | 0% | 0%",
        "Drop | 0.300 ±0.000 | 0.100 ±0.000 | 1 | not reached | 2 | 25% | 50%",
    ]
    accuracy_and_time = [(row[0], row[3]) for row in bold(table)]
    assert accuracy_and_time == [(False, False), (False, True), (True, False), (False, False)]


def test_the_verdict_says_who_is_best_who_is_first_and_who_never_gets_there(clocked):
    best_and_first, _ = verdict(clocked)
    assert best_and_first == (
        "SALF, equal-time has the highest test accuracy, 0.830 ±0.028, ahead of FedAvg by +0.020 "
        "±0.381 (tie). SALF reaches 95 % of FedAvg's final accuracy (0.760) first, after 10 s. "
        "FedAvg had only 4 rounds: no speed-up is stated."
    )
    out = printed(clocked)
    assert out.startswith(best_and_first)
    assert "after 40 s of simulated time, phones, deadline 65 ms: mean" in out
    assert "stragglers" not in out


@pytest.mark.parametrize(
    ("run", "told"),
    [
        (timed("salf", [0.1] * 29 + [0.8], 0.8, every=5.0), "2 times as fast as FedAvg."),
        (timed("salf", [0.1] * 29 + [0.8], 0.8, every=9.9), "about as fast as FedAvg."),
        (timed("salf", [0.1] * 30 + [0.8], 0.8), "FedAvg reaches .* 300 s\\."),
    ],
)
def test_a_speed_up_is_stated_against_a_reference_of_enough_rounds(run, told):
    fedavg = [timed("fedavg", [0.1] * 29 + [0.8], 0.8)]
    compared = Comparison(BASE, {case("fedavg"): fedavg, case("salf"): [run]})
    assert re.search(told, verdict(compared)[0])
    fedavg[0].summary["voice"] = {"data": [0.5, 0.5], "users": [0.25] * 4, "classes": [0.5, 0.5]}
    assert "times as fast" not in verdict(compared)[0]  # 0.8 is no feat with two classes


def test_a_given_target_needs_no_fedavg():
    alone = {case("salf"): [timed("salf", [0.5, 0.7], 0.7)]}
    assert tables(Comparison(BASE, alone, goal=0.6))[0].rows[0][4] == "20"
    assert "at or above an accuracy of 0.6." in printed(Comparison(BASE, alone, goal=0.6))
    without = Comparison(BASE, alone)
    assert "Seconds to target" not in printed(without)
    other = {case("drop"): [timed("drop", [0.5, 0.7], 0.7)]}
    assert "needs fedavg among the methods, or a target" in printed(Comparison(BASE, alone | other))


@pytest.mark.slow
def test_the_page_and_the_picture_are_over_seconds(clocked, tmp_path):
    assert [section.heading for section in page(clocked, ["compare"]).sections] == [
        "Results",
        "Accuracy on held-out data over simulated seconds",
        "Who takes part, and how far",
        "Waste",
        "Settings",
        "Reproduce this page",
    ]
    written = write_report(clocked, tmp_path, ["compare"])
    assert [path.name for path in written] == ["accuracy.svg", "accuracy.png", "report.html"]
    assert "Simulated seconds" in written[0].read_text()


@pytest.mark.parametrize(
    ("times", "said"),
    [([337.0, 100.0, 570.0], "336 ±235"), ([10.0, 10.0, 250.0], "90 ±139"), ([1.5], "1.5")],
)
def test_numbers_of_a_table_are_plain(times, said):
    runs = [Clocked(1, 900.0, 0.9, time, 0.0, 0.0, 0.0, None) for time in times]
    assert to_target(runs) == said
