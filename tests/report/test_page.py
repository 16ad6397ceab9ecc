import json
import re
from html.parser import HTMLParser

import pytest

from salf.report.page import Chart, Code, Page, Section
from salf.report.tables import Table

SPEC = {
    "data": {"values": [{"x": "</script><b>", "y": 1}]},
    "mark": "point",
    "encoding": {"x": {"field": "x", "type": "nominal"}},
}
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


@pytest.fixture(scope="module")
def html() -> str:
    chart = Chart(SPEC, f"caption {HOSTILE}", f"described {HOSTILE}")
    blocks = [HOSTILE, chart, Code(HOSTILE), Code(HOSTILE, HOSTILE), chart]
    table = Table([HOSTILE], [[HOSTILE]], HOSTILE)
    sections = [Section(HOSTILE, blocks), Section("Tables", [table, table])]
    return Page(f"title {HOSTILE}", [HOSTILE], sections).html()


def test_nothing_is_fetched(html):
    parsed = Parsed(html)
    for _, attributes in parsed.tags:
        assert not {"src", "href", "srcset", "data", "action"} & attributes.keys()
    assert not parsed.named("link")
    css = html[html.index("<style>") : html.index("</style>")]
    assert "url(" not in css
    assert "@import" not in css
    assert not re.search(r"https?://", "".join(parsed.scripts[:2]) + parsed.scripts[3])
    # And should anything try, the browser refuses.
    (policy,) = (a["content"] for a in parsed.named("meta") if "http-equiv" in a)
    assert policy.startswith("default-src 'none';")
    assert not re.search(r"https?:|\*", policy)


def test_everything_given_is_there_and_escaped(html):
    parsed = Parsed(html)
    # Two charts, the bundle, once for all of them, and what draws.
    assert [len(script) > 500_000 for script in parsed.scripts] == [False, False, True, False]
    assert html.count("window.vegaEmbed=") == 1
    assert parsed.texts.count(HOSTILE) == 6 + 2 * 3  # of the tables
    assert not any("alert" in script for script in parsed.scripts[2:])
    spec = json.loads(parsed.scripts[0])
    assert spec == {**SPEC, "description": f"described {HOSTILE}"}
    assert [figure["aria-label"] for figure in parsed.named("figure")] == [spec["description"]] * 2
    assert html.count('<div class="tables">') == 1  # tables in a row stand side by side
    assert html.count('<div class="table">') == 2
    viewport = {"name": "viewport", "content": "width=device-width, initial-scale=1"}
    assert viewport in parsed.named("meta")
    assert parsed.named("html") == [{"lang": "en"}]
    assert parsed.texts.count(f"title {HOSTILE}") == 2  # in the tab, and on the page
    # Code with a summary is folded away.
    assert [len(parsed.named(tag)) for tag in ("details", "summary", "pre")] == [1, 1, 2]


def test_a_page_without_charts_has_no_javascript():
    html = Page("Text", ["only"], [Section("Heading", ["words"])]).html()
    assert "<script" not in html
    assert "<p>words</p>" in html
