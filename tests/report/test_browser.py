"""Pages in headless Chromium, opened from disk with the network off; and `salf watch`."""

import re
import shutil
import signal
import subprocess
import threading
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest
from made_up import BASE, case, result, timed
from test_bench_page import SUITE, rows
from test_live_page import CONFIG_OF_ALL, row
from test_plan_page import planned as planned  # a fixture

from processes import started, wait_until
from salf.bench.suite import Entrant
from salf.cli.watch import WatchServer, board
from salf.report import comparison, live, watch
from salf.report import plan as plans
from salf.report.bench import Standings
from salf.runs.compare import Comparison
from salf.runs.config import Config

playwright = pytest.importorskip("playwright.sync_api", reason="needs pip install playwright")
axe = pytest.importorskip("axe_playwright_python.sync_playwright")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("browser"),
    pytest.mark.skipif(not CHROMIUM, reason="needs chromium, as in apt-get install chromium"),
]
SHOTS = Path(__file__).parents[2] / "screenshots"
HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>"
KINDS = ("compare", "run", "bench", "plan", "live")


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def opened(browser):
    """Open a file or an address; at the end, no error was written and nothing popped up."""
    contexts, wrong = [], []

    def bad(said):  # and not that a server which was ended does not answer
        return said.type == "error" and "ERR_CONNECTION_REFUSED" not in said.text

    def look(where, width=1000, scheme="light", offline=True, **more):
        size = {"width": width, "height": 900}
        context = browser.new_context(viewport=size, color_scheme=scheme, offline=offline, **more)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda said: wrong.append(said.text) if bad(said) else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("dialog", lambda dialog: (wrong.append("a dialog"), dialog.dismiss()))
        page.goto(where.as_uri() if isinstance(where, Path) else where)
        return page

    yield look
    for context in contexts:
        context.close()
    assert not wrong


LANES = [
    {
        "round": t,
        "seconds": 0.065,
        "deadline": 0.065,
        "users": [3, 1],
        "pieces": [[[0, 0.01, 0], [0.01, 0.03, 3], [0.03, 0.05, 2]], [[0, 0.065, -1]]],
    }
    for t in (1, 2, 3)
]
VOICE = {"users": [0.1, 0.2, 0.3, 0.4], "classes": [0.4, 0.6], "data": [0.5, 0.5]}
SUMMARY = {"lanes": LANES, "voice": VOICE, "data": "nowhere", "versions": {"salf": "0.2"}}
SUMMARY["round"] = {"links": 0.5, "fixed": 0.3, "rows": 0.2}


def clocked(method, levels, seed=0):
    spent = {"work": 4.0, "wasted_work": 1.0, "bytes": 10.0, "wasted_bytes": 5.0}
    found = timed(method, levels, levels[-1], seed=seed, every=4.0, **spent)
    found.summary.update({**SUMMARY, "method": method})
    return found


def of_kind(kind, planned):
    if kind in ("compare", "run"):
        methods = ("fedavg", "salf", "drop") if kind == "compare" else ("salf",)
        levels = [0.2, 0.5, 0.6, 0.7, 0.75]
        runs = {
            case(method): [clocked(method, [v + 0.01 * s for v in levels], s) for s in range(2)]
            for method in methods
        }
        return comparison.page(Comparison(BASE, runs), ["compare", "digits-mlp"])
    if kind == "plan":
        return plans.page(planned, ["plan", "digits-mlp"])
    if kind == "bench":
        mine = replace(rows()[1], entrant=Entrant("drop", {}, {}, "Mine"))
        both = [*rows(), mine, replace(mine, entrant=Entrant("salf"))]
        return Standings(SUITE, both, ["Mine"]).page(["bench", "--method", "mine:Mine"])
    arrived = {"user-2": 0.02, "user-3": 0.03}
    records = [
        row(t, accuracy=1 - 1 / t, arrived=arrived, deadline=0.05, rejected=[("user-1", "late")])
        for t in range(1, 30)
    ]
    return live.page(live.LiveRun(CONFIG_OF_ALL, records, None), Path("runs/live"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_opens_from_disk_at_every_width_in_light_and_dark(kind, opened, planned, tmp_path):
    """No sideways scrolling, no serious finding of axe; screenshots are kept."""
    file = tmp_path / f"{kind}.html"
    file.write_text(of_kind(kind, planned).html(), encoding="utf-8")
    SHOTS.mkdir(exist_ok=True)
    papers = set()
    page = opened(file)
    for width, scheme in ((400, "light"), (400, "dark"), (1600, "light"), (1600, "dark")):
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=scheme)
        page.reload()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.locator("figure svg").count() >= 1
        papers.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        page.screenshot(path=SHOTS / f"{kind}-{width}-{scheme}.png", full_page=True)
        if (width, scheme) in ((400, "light"), (1600, "dark")):
            for table in page.locator("details").all():
                table.locator("summary").click()
            found = axe.Axe().run(page, options={"resultTypes": ["violations"]})
            serious = [
                (each["id"], each["nodes"][0]["html"])
                for each in found.response["violations"]
                if each["impact"] in ("serious", "critical")
            ]
            assert not serious
    assert len(papers) == 2
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not page.locator("#theme").is_visible()


def test_the_legend_hides_lines_and_values_are_told_to_pointer_and_keyboard(
    opened, planned, tmp_path
):
    (tmp_path / "page.html").write_text(of_kind("compare", planned).html(), encoding="utf-8")
    page = opened(tmp_path / "page.html")
    chart = page.locator("figure").first
    assert chart.locator("g[data-line=SALF]").count() == 1
    chart.get_by_role("button", name="SALF").click()
    assert chart.locator("g[data-line=SALF]").count() == 0
    assert chart.get_by_role("button", name="SALF").get_attribute("aria-pressed") == "false"
    page.keyboard.press("Enter")  # the button still has the focus
    assert chart.locator("g[data-line=SALF]").count() == 1
    chart.locator("svg").hover(position={"x": 60, "y": 100})
    assert "SALF: 0.205 (0.2 to 0.21)" in page.locator("#tip").inner_text()
    page.mouse.move(0, 0)
    assert not page.locator("#tip").is_visible()
    chart.locator("svg").focus()
    page.keyboard.press("End")
    assert "Simulated seconds: 20" in page.locator("#tip").inner_text()
    lanes = page.locator("figure").nth(1).locator("svg").first
    lanes.focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("#tip").inner_text() == "user 3, download, upload: 0 s to 10 ms"
    chart.locator("summary").click()
    assert "0.755" in chart.locator("table").inner_text()


def test_the_switch_chooses_a_scheme_and_remembers_it(opened, planned, tmp_path):
    (tmp_path / "page.html").write_text(of_kind("run", planned).html(), encoding="utf-8")
    page = opened(tmp_path / "page.html")
    paper = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(paper)
    page.locator("#theme").click(click_count=2)
    assert page.evaluate(paper) != light
    page.reload()
    assert page.evaluate(paper) != light
    assert page.locator("#theme").inner_text() == "Colours: dark"


def test_a_large_comparison_is_small_and_drawn_in_two_seconds(opened, tmp_path):
    """5 methods, 4 ratios, 5 seeds, 250 rounds."""
    runs = {
        case(method, ratio): [
            result([1 - (1 + seed) / (t + 2 + seed) for t in range(250)], 0.9 + seed / 100)
            for seed in range(5)
        ]
        for method in ("fedavg", "drop", "salf", "heterofl", "asyncfl")
        for ratio in (0.05, 0.3, 0.7, 0.9)
    }
    html = comparison.page(Comparison(Config(rounds=250), runs), []).html()
    assert len(html.encode()) < 1_500_000
    file = tmp_path / "large.html"
    file.write_text(html, encoding="utf-8")
    page = opened(file)
    drawn = "performance.timing.domComplete - performance.timing.responseEnd"
    took = [page.evaluate(drawn)]
    for _ in range(2):  # the machine may do something else
        page.reload()
        took.append(
            page.evaluate("performance.timing.domComplete - performance.timing.responseEnd")
        )
    assert min(took) < 2000
    first = page.locator("figure").first
    assert first.locator("svg").count() == 4
    assert first.locator("g.line").count() == 20
    titles = first.locator("svg text.panel").all_text_contents()
    assert [text.split()[0] for text in titles] == ["5", "30", "70", "90"]  # in their order


def test_hostile_names_are_text(opened, tmp_path):
    runs = {case("salf", split=HOSTILE): [result([0.5, 0.6], data=HOSTILE, layers=[HOSTILE] * 3)]}
    base = Config(rounds=2).changed(data=HOSTILE)
    (tmp_path / "page.html").write_text(
        comparison.page(Comparison(base, runs), [HOSTILE]).html(), encoding="utf-8"
    )
    page = opened(tmp_path / "page.html")
    assert HOSTILE in page.locator("h1").inner_text()
    assert HOSTILE in page.locator("th").all_inner_texts()[-4]
    assert page.locator("img").count() == 0
    hostile = {HOSTILE: 1, "user-2": 4}
    records = [row(1, hostile, arrived={HOSTILE: 0.01}, rejected=[(HOSTILE, HOSTILE)])]
    (tmp_path / "live.html").write_text(
        live.page(live.LiveRun(CONFIG_OF_ALL, records, None), tmp_path).html(), encoding="utf-8"
    )
    page = opened(tmp_path / "live.html")
    assert page.locator("img").count() == 0
    assert page.locator("td", has_text=HOSTILE).count() >= 1


# ---- salf watch -------------------------------------------------------------------------------


@pytest.fixture
def served(tmp_path, monkeypatch):
    monkeypatch.setattr(watch, "QUIET", 2.0)
    watched = watch.Watched(tmp_path / "run")
    with WatchServer(watched) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server, watched
        server.shutdown()


def run(folder, rounds):
    return started(
        "-m", "salf", "run", "digits-mlp", "--rounds", rounds, "--out", folder,
        "--checkpoint-every", 0.2, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def test_a_run_of_another_process_is_followed_to_its_end_and_survived(served, opened, tmp_path):
    server, watched = served
    page = opened(f"http://127.0.0.1:{server.server_port}/", offline=False)
    status = page.locator("#status")
    assert "No round has been saved yet." in page.locator("main").inner_text()
    main = page.locator("main")
    with run(tmp_path / "run", 1_000_000) as process:
        wait_until(lambda: page.locator("figure svg").count())
        rounds = re.search(r"begun have ([\d,]+)", page.locator("main").inner_text())[1]
        wait_until(lambda: f"have {rounds} rounds" not in main.inner_text())
        assert "Last new data" in status.inner_text()
        process.kill()
    wait_until(lambda: status.get_attribute("class") == "bad")
    assert status.inner_text().startswith("No new data for ")
    assert page.locator("figure svg").count() >= 1
    SHOTS.mkdir(exist_ok=True)
    page.screenshot(path=SHOTS / "watch-killed.png")
    assert "No new data for" in str(board(watched).renderables[0])
    shutil.rmtree(tmp_path / "run")  # and a copy of another run takes its place
    with run(tmp_path / "other", 50) as process:
        assert process.wait(240) == 0
    shutil.copytree(tmp_path / "other", tmp_path / "run")
    wait_until(lambda: status.get_attribute("class") == "good")
    assert "has a test accuracy of" in page.locator("main").inner_text()
    server.shutdown()
    server.server_close()
    wait_until(lambda: "ended" in status.inner_text())


def test_the_server_answers_to_this_machine_only_and_ends_with_ctrl_c(tmp_path):
    with started("-m", "salf", "watch", tmp_path, stdout=subprocess.PIPE) as process:
        address = re.search(r"http://127\.0\.0\.1:\d+/", process.stdout.readline())[0]

        def status(path="", **headers):
            try:
                asked = urllib.request.Request(address + path, headers=headers)
                return urllib.request.urlopen(asked, timeout=60).status
            except urllib.error.HTTPError as error:
                return error.code

        assert status() == status("data?") == status(Host="localhost:8000") == 200
        assert status(Host="evil.example") == status(Host="127.0.0.1.evil.example") == 403
        assert status("config.toml") == status("../../etc/passwd") == 404
        process.send_signal(signal.SIGINT)
        wait_until(lambda: process.poll() is not None)
        assert process.returncode == 0
