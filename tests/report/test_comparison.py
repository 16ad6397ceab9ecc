import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from io import StringIO
from pathlib import Path

import pytest
from made_up import case, comparison
from rich.console import Console

from salf.common.errors import SalfError
from salf.report.comparison import page, print_tables, tables, write_report
from salf.report.extra import check_extra
from salf.report.tables import Bold
from salf.runs.config import Config


def texts(table):
    return [list(row) for row in table.rows]


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


def test_mean_and_spread_of_each_method_by_ratio(both):
    reached, _ = tables(both)
    assert reached.columns == ["Method", "30 %", "90 %"]
    assert texts(reached) == [
        ["FedAvg (waits)", "0.9300 ±0.0141", "0.9300 ±0.0141"],
        ["Drop", "0.9100 ±0.0141", "0.5500 ±0.0707"],
        ["SALF", "0.9000 ±0.0141", "0.8500 ±0.0707"],
    ]


def test_both_averages_are_shown_and_said_in_full(both):
    assert [table.caption for table in tables(both)] == [
        "i.i.d., averaged over the users that reached a layer, as the equations say",
        "i.i.d., averaged over all users, as the authors' script does",
    ]


def test_the_best_method_with_a_deadline_is_bold(both):
    assert bold(tables(both)[0]) == [[False, False], [True, False], [False, True]]


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


def test_tables_are_printed_whole_into_a_file(both):
    out = printed(both)
    assert out.startswith(
        "Test accuracy on MNIST after 3 rounds by ratio of stragglers, mean ± standard deviation "
        "over 2 seeds.\nFedAvg is the same however layers are averaged.\n\n"
        "i.i.d., averaged over the users that reached a layer, as the equations say\n"
        "Method                    30 %            90 %\n"
    )
    assert out.count("SALF            0.9000 ±0.0141  0.8500 ±0.0707") == 2
    assert "Bold" not in out  # there is none in a file


def test_the_best_is_bold_in_a_terminal(both, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    out = printed(both, terminal=True)
    assert "Bold: the best method with a deadline." in out
    assert "\x1b[1m0.8500 ±0.0707\x1b[0m" in out
    assert "\x1b[1m0.9300 ±0.0141\x1b[0m" not in out


@pytest.mark.slow
def test_a_report_is_two_pictures_and_a_page(both, tmp_path):
    out = tmp_path / "new" / "folder"
    written = write_report(both, out, ["compare", "--out", "my <folder>"])
    assert written == [out / "accuracy.png", out / "accuracy.svg", out / "report.html"]
    assert sorted(out.iterdir()) == sorted(written)  # and nothing half written
    png, svg, html = (path.read_bytes() for path in written)
    assert png.startswith(b"\x89PNG")
    assert ET.fromstring(svg).tag.endswith("svg")
    assert b"salf compare --out &#39;my &lt;folder&gt;&#39;" in html
    assert html.count(b"window.vegaEmbed=") == 1
    assert html.count(b'<script type="application/json">') == 2
    assert b"<td><strong>0.8500 \xc2\xb10.0707</strong></td>" in html
    assert b"rounds = 3" in html
    assert b"Made with salf 0.1.0 and torch 2.13.0." in html


def test_the_chart_over_ratios_needs_several():
    compared = comparison({case("drop"): [0.7], case("salf"): [0.8]})
    assert "over the ratio" not in page(compared, []).html()


@pytest.mark.slow
def test_without_accuracy_the_loss_is_shown(tmp_path):
    compared = comparison({case("salf"): [None]}, accuracies=[None, None, None])
    written = write_report(compared, tmp_path, [])
    assert [path.name for path in written] == ["loss.png", "loss.svg", "report.html"]
    html = written[2].read_text(encoding="utf-8")
    assert "Training loss over the rounds" in html
    assert html.count('<script type="application/json">') == 1


def test_names_from_data_are_escaped_on_the_page():
    hostile = "<img src=x onerror=alert(1)>"
    compared = comparison(
        {case("salf", split=hostile): [0.8]}, Config(users=5, rounds=3), data=hostile
    )
    html = page(compared, [hostile]).html()
    assert hostile not in html
    assert not re.search(r"<img", html.partition("<script>")[0])


@pytest.mark.parametrize("missing", ["altair", "jinja2", "vl_convert"])
def test_without_the_extra_a_report_says_how_to_get_it(both, tmp_path, monkeypatch, missing):
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(SalfError, match=r"pip install 'salf\[report\]'") as caught:
        write_report(both, tmp_path / "out", [])
    assert repr(missing) in str(caught.value)
    assert not (tmp_path / "out").exists()
    with pytest.raises(SalfError):
        check_extra()


@pytest.mark.slow
def test_tables_do_without_the_extra():
    code = (
        "import sys\n"
        "for name in ('altair', 'jinja2', 'vl_convert'):\n"
        "    sys.modules[name] = None  # not to be imported\n"
        "from rich.console import Console\n"
        "from made_up import case, comparison\n"
        "from salf.report.comparison import print_tables\n"
        "print_tables(comparison({case('salf'): [0.75]}), Console())\n"
    )
    here = Path(__file__).parent
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=here, capture_output=True, text=True, timeout=300
    )
    assert done.stderr == ""
    assert "0.7500" in done.stdout
