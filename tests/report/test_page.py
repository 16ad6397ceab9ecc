import json
import re
from html.parser import HTMLParser

import pytest

from salf.common.figures import Axis, Figure, Line, Lines, Point
from salf.report.page import Chart, Code, Page, Section
from salf.report.tables import Bold, Table

HOSTILE = "<script>alert('&')</script>"


class Parsed(HTMLParser):
    """The start tags with their attributes, and the texts of the script elements."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.texts: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data):
        if self.tags and self.tags[-1][0] == "script" and self.cdata_elem == "script":
            self.scripts[-1] += data
        else:
            self.texts.append(data)

    def named(self, name: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.tags if tag == name]


def charted(name):
    lines = Lines(
        [Point(name, 1.0, 0.5, panel=name)], [Line(name, "#000000")], Axis("x"), Axis("y")
    )
    return Chart(Figure([lines], name), f"caption {HOSTILE}", f"described {HOSTILE}")


@pytest.fixture(scope="module")
def html() -> str:
    chart = charted(HOSTILE)
    blocks = [HOSTILE, chart, Code(HOSTILE), Code(HOSTILE, HOSTILE), chart]
    table = Table([HOSTILE, "b"], [[HOSTILE, Bold(HOSTILE)]], HOSTILE, own=[HOSTILE])
    sections = [Section(HOSTILE, blocks), Section("Tables", [table, table])]
    return Page(f"title {HOSTILE}", [HOSTILE], sections).html()


def test_nothing_is_fetched(html):
    parsed = Parsed(html)
    for _, attributes in parsed.tags:
        assert not {"src", "srcset", "data", "action"} & attributes.keys()
    assert [link["href"] for link in parsed.named("link")] == ["data:,"]  # no icon to look for
    assert "url(" not in html
    assert "@import" not in html
    assert set(re.findall(r"https?://\S+?\"", html)) == {'http://www.w3.org/2000/svg"'}  # a name
    # And should anything try, the browser refuses.
    (policy,) = (a["content"] for a in parsed.named("meta") if "http-equiv" in a)
    assert policy.startswith("default-src 'none';")
    assert not re.search(r"https?:|\*|eval|connect", policy)


def test_everything_given_is_there_and_escaped(html):
    parsed = Parsed(html)
    assert len(parsed.scripts) == 2 + 1  # the data of two charts, and what draws them
    assert parsed.texts.count(HOSTILE) == 6 + 2 * 4  # of the tables
    assert "alert" not in parsed.scripts[-1]
    spec = json.loads(parsed.scripts[0])
    assert spec["charts"][0]["points"] == {HOSTILE: {HOSTILE: [[1.0, 0.5]]}}
    described = [figure["aria-label"] for figure in parsed.named("figure")]
    assert described == [f"described {HOSTILE}"] * 2
    assert html.count('<div class="tables">') == 1  # tables in a row stand side by side
    assert html.count('<div class="table"') == html.count('<tr class="own">') == 2
    viewport = {"name": "viewport", "content": "width=device-width, initial-scale=1"}
    assert viewport in parsed.named("meta")
    assert parsed.named("html") == [{"lang": "en"}]
    assert parsed.texts.count(f"title {HOSTILE}") == 2  # in the tab, and on the page
    # Code with a summary is folded away.
    assert [len(parsed.named(tag)) for tag in ("details", "summary", "pre")] == [1, 1, 2]


def test_a_page_that_follows_asks_its_own_server_only():
    page = Page("Followed", ["only"], [])
    html = page.html(version="7")
    assert "connect-src 'self'" in html
    assert '<main data-version="7">' in html
    assert page.main().startswith("<h1>Followed</h1>")
