"""The page of a live run, from records made up by hand: no test has to train."""

import json
import sys

import pytest
from test_page import Parsed

from salf.cli import main
from salf.common.files import write_whole
from salf.core import rows
from salf.core.rows import Row
from salf.report.live import (
    LiveRun,
    curve,
    lanes,
    page,
    progress,
)
from salf.report.page import Chart
from salf.report.tables import Table
from salf.report.watch import write_page
from salf.runs.config import Config
from salf.runs.folder import CONFIG, ROUNDS, SUMMARY, RunFolder
from salf.runs.live_config import live
from salf.runs.run import run as simulate

SIMULATED = Config(data="synthetic", model="mlp", users=3, rounds=4, threads=1)
CONFIG_OF_ALL = live(SIMULATED, deadline=0.05, slow="0.34x8")  # user-1 of three
HOSTILE = "<script>alert('&')</script>"


def row(t, depths=None, **more):
    """A round of three layers."""
    depths = {"user-1": 4, "user-2": 1, "user-3": 2} if depths is None else depths
    given = {
        "train_loss": 2.0 / t,
        "late": 0,
        "seconds": 0.04,
        "limit": 0.06,
        "unreached": (0.5, 0, 0),
    }
    reached = tuple(sum(depth <= layer for depth in depths.values()) for layer in (1, 2, 3))
    return Row(t, depths=depths, **{"reached": reached, **given, **more})


def folder_of(path, records, config=CONFIG_OF_ALL, summary=None):
    write_whole(path / CONFIG, config.to_toml())
    if records:
        rows.rewrite(path / ROUNDS, records)
    if summary is not None:
        write_whole(path / SUMMARY, json.dumps(summary))
    return path


@pytest.fixture
def run_of():
    def of(records, config=CONFIG_OF_ALL, summary=None):
        return LiveRun(config, records, summary)

    return of


def page_of(run):
    return page(run, "runs/live")


def section(run, heading):
    (found,) = (s for s in page_of(run).sections if s.heading == heading)
    return found.blocks


def table(run, heading):
    (found,) = (block for block in section(run, heading) if isinstance(block, Table))
    return [list(line) for line in found.rows]


def test_accuracy_is_over_the_seconds_rounds_took_where_it_was_measured(run_of):
    run = run_of(
        [
            row(1, seconds=0.5),
            row(2, seconds=0.25, accuracy=0.3),
            row(3, seconds=0.25),
            row(4, seconds=1.0, accuracy=0.9),
        ]
    )
    points = [(p.x, p.mean) for p in curve(run).charts[0].points]
    assert points == [(0.75, 0.3), (2.0, 0.9)]


def test_an_accuracy_that_was_never_measured_is_not_shown(run_of):
    run = run_of([row(1), row(2, train_loss=float("nan"))])
    assert section(run, "Accuracy on held-out data over time") == ["Not measured."]


def test_how_far_a_user_got_is_the_share_of_the_layers_of_at_most_200_rounds():
    depths = [{"user-1": 4, "user-2": 1, "user-3": 1 + t % 2} for t in range(300)]
    records = [row(t, d) for t, d in enumerate(depths, 1)]
    cells = progress(LiveRun(CONFIG_OF_ALL, [*records, row(301, {"user-2": 3})], None))
    assert (cells.columns[0], cells.columns[-1], len(cells.columns)) == ("1", "301", 151)
    last = {user: values[-2:] for user, values in zip(cells.rows, cells.values, strict=True)}
    assert last == {
        "user-1, 8x slower": [0.0, None],  # which was not asked
        "user-2": [1.0, pytest.approx(1 / 3, abs=1e-4)],
        "user-3": [1.0, None],
    }


def test_lanes_show_when_updates_came_and_what_had_been_reached(run_of):
    records = [row(1, arrived={"user-2": 0.02, "user-3": 0.03}, deadline=0.05)]
    (chart,) = lanes(run_of(records)).charts
    (shown,) = chart.rounds
    by_user = dict(zip(shown["users"], shown["pieces"], strict=True))
    assert by_user == {
        "user-1": [[0, 0.04, 0]],  # nothing came
        "user-2": [[0, 0.02, 1]],
        "user-3": [[0, 0.03, 2]],
    }
    assert shown["deadline"] == 0.05


def test_users_are_in_order_of_slowness_and_then_of_their_numbers(run_of):
    config = CONFIG_OF_ALL.changed(users=12, slow="0.25x16,0.25x4")
    users = run_of([row(1, {"phone": 1})], config).users
    assert list(users) == [
        "phone",
        *(f"user-{n}" for n in (7, 8, 9, 10, 11, 12)),
        *(f"user-{n}" for n in (4, 5, 6)),
        *(f"user-{n}" for n in (1, 2, 3)),
    ]
    assert (users["user-3"], users["user-6"]) == ("user-3, 16x slower", "user-6, 4x slower")


def test_of_very_many_users_some_of_each_slowness_are_shown_and_the_page_says_so(run_of):
    users = {f"user-{n}": 1 for n in range(1, 1001)}
    run = run_of([row(1, users)], CONFIG_OF_ALL.changed(users=1000, slow="0.3x4"))
    shown = run.shown_users
    assert len(shown) == len(progress(run).rows) == 100
    assert sum("slower" in label for label in shown.values()) == 30
    (chart,) = (b for b in section(run, "How far each user got") if isinstance(b, Chart))
    assert chart.caption.startswith("100 of the 1,000 users are shown.")


def test_every_layer_has_the_mean_of_its_users_and_the_p_of_the_last_step(run_of):
    records = [row(1), row(2, {"user-1": 4, "user-2": 4}, unreached=(0.25, 0.125, 0.0))]
    summary = {"test_accuracy": 0.5, "layers": ["0", "2", "head"]}
    assert table(run_of(records, summary=summary), "Who takes part, and how far") == [
        ["SALF", "0.5", "1.0", "1.0"],
        ["p_l: nobody reaches it", "0.25", "0.12", "0"],
    ]


def test_what_was_not_used_is_together_by_user_and_reason(run_of):
    records = [
        row(1, rejected=[("user-2", "its process ended")]),
        row(2, rejected=[("user-3", "for round 1, in reply to round 2"), ("user-2", "rubbish")]),
        row(3, rejected=[("user-3", "of layer 2 ('b') is 3.2e+05, above the limit 7")]),
        row(9, rejected=[("user-3", "for round 10, in reply to round 9")]),
        row(10, rejected=[("user-3", "of layer 2 ('b') is 17.1, above the limit 8.5")]),
        row(11, rejected=[("user-3", "of layer 3 ('c') is 17.1, above the limit 8.5")]),
    ]
    assert table(run_of(records), "Rejected updates") == [
        ["for round …, in reply to round …", "user-3", "2", "2 to 9"],
        ["of layer 2 ('b') is …, above the limit …", "user-3", "2", "3 to 10"],
        ["its process ended", "user-2", "1", "1 to 1"],
        ["rubbish", "user-2", "1", "2 to 2"],
        ["of layer 3 ('c') is …, above the limit …", "user-3", "1", "11 to 11"],
    ]


def test_a_flood_of_reasons_is_cut_off_and_counted(run_of):
    flood = [(f"user-{n % 3 + 1}", f"reason {n} {'x ' * 200}") for n in range(50)]
    run = run_of([row(1, rejected=flood), row(2, rejected=flood)])
    lines = table(run, "Rejected updates")
    assert len(lines) == 30
    assert max(len(line[0]) for line in lines) <= 110
    assert section(run, "Rejected updates")[-1].startswith("20 more reasons")


def test_late_updates_are_told(run_of):
    found = section(run_of([row(1, late=2), row(2, late=1)]), "Rejected updates")
    assert found[0].startswith("3 updates came after the round had closed")
    assert "No update that arrived in time was rejected." in found


def test_the_first_words_say_what_came_of_a_run(run_of):
    records = [row(t, seconds=1.0) for t in range(1, 5)]
    (intro,) = page_of(run_of(records, summary={"test_accuracy": 0.98765})).intro
    assert intro == (
        "SALF trains the model mlp on synthetic with 3 users, with T_max = 50 ms per round. "
        "Its test accuracy is 0.9877 after 4 rounds in 4 s."
    )


def test_rounds_that_took_too_long_are_counted(run_of):
    run = run_of([row(1), row(2, seconds=0.0601), row(3, seconds=0.5, limit=1.0)])
    (text,) = section(run, "Round durations")
    assert text == (
        "2 of 3 rounds closed within T_max plus the grace period. The median is 60.1 ms, the "
        "longest 500 ms."
    )


def test_fedavg_has_no_limit_and_no_p(run_of):
    """Even if a deadline was given, which it does not keep."""
    records = [row(t, limit=None, unreached=(), seconds=9.0) for t in (1, 2)]
    run = run_of(records, CONFIG_OF_ALL.changed(method="fedavg"))
    assert "in rounds that wait for all users" in page_of(run).intro[0]
    (text,) = section(run, "Round durations")
    assert text == "No round had a limit. The median is 9 s, the longest 9 s."
    assert table(run, "Who takes part, and how far") == [["FedAvg", "1.0", "2.0", "2.0"]]


def test_the_page_of_one_round_is_whole_fetches_nothing_and_escapes_what_users_said(tmp_path):
    reasons = [(HOSTILE, f"failed: {HOSTILE}")]
    folder = folder_of(tmp_path / "a run", [row(1, {HOSTILE: 1}, rejected=reasons, accuracy=0.5)])
    written = write_page(folder)
    assert written == folder / "live.html"
    html = written.read_text(encoding="utf-8")
    parsed = Parsed(html)
    assert len(parsed.scripts) == 4 + 1  # charts, and what draws them
    assert "alert('&')" not in parsed.scripts[-1]
    assert parsed.texts.count(HOSTILE) == 2  # who it was that was refused, and in that round
    assert f"failed: {HOSTILE}" in parsed.texts
    assert f"salf replay '{folder}'" in parsed.texts
    assert any('model = "mlp"' in text for text in parsed.texts)
    assert any('slow = "0.34x8"' in text for text in parsed.texts)


def test_a_run_at_work_can_be_looked_at(tmp_path, monkeypatch, capsys):
    """Its folder is locked, and its last line half written."""
    folder = folder_of(tmp_path, [row(1), row(2)])
    with (folder / ROUNDS).open("a") as stream:
        stream.write('{"round": 3, "dep')
    with RunFolder(folder).locked():
        assert salf(monkeypatch, "page", folder) == 0
    assert capsys.readouterr().out == f"wrote {folder / 'live.html'}\n"
    assert "Not finished: 2 of 4 rounds" in (folder / "live.html").read_text(encoding="utf-8")


def salf(monkeypatch, *arguments):
    """The command, here; returns its exit code."""
    monkeypatch.setattr(sys, "argv", ["salf", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code or 0


def test_a_folder_without_rounds_is_told_in_a_sentence(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("")
    folder_of(tmp_path / "young", [])
    for name in ("nowhere", "file", "young"):
        assert salf(monkeypatch, "page", tmp_path / name) == 2
        errors = capsys.readouterr().err
        assert "has no saved round of a run; try again after the first one." in errors
        assert errors.count("\n") == 1
    assert not list(tmp_path.rglob("*.html"))


def test_the_page_of_a_simulated_run_imports_nothing_that_its_config_names(
    tmp_path, monkeypatch, capsys
):
    simulate(SIMULATED.changed(rounds=2), tmp_path)
    config = (tmp_path / CONFIG).read_text().replace('method = "salf"', 'method = "evil:Method"')
    write_whole(tmp_path / CONFIG, config)
    (tmp_path / "evil.py").write_text("raise SystemExit('imported')")
    monkeypatch.chdir(tmp_path)
    assert salf(monkeypatch, "page", tmp_path) == 0
    html = (tmp_path / "report.html").read_text()
    assert "Method has a test accuracy of" in html
    assert "evil:Method" in html  # among the settings


def test_a_run_that_is_finished_leaves_its_page_when_it_is_asked_for_again(
    tmp_path, monkeypatch, capsys
):
    assert salf(monkeypatch, *finished(tmp_path)) == 0
    out = capsys.readouterr().out
    assert f"The run is in {tmp_path}\nwrote {tmp_path / 'live.html'}\n" in out
    assert salf(monkeypatch, *finished(tmp_path), "--json") == 0
    assert json.loads(capsys.readouterr().out)["test_accuracy"] == 0.5
    assert salf(monkeypatch, "page", tmp_path, "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"page": str(tmp_path / "live.html")}
    assert "Its test accuracy is 0.5000" in (tmp_path / "live.html").read_text(encoding="utf-8")


def finished(path):
    """A finished run in this folder, and the command that asks for it again."""
    summary = {
        **{
            "test_accuracy": 0.5,
            "test": {"accuracy": 0.5},
            "rounds": 1,
            "stopped": False,
            "seconds": 0.04,
        },
        **{"method": "salf", "engine": "ray", "why": "", "loss": ""},
        **{"finished": 0.5, "partial": 0.25, "nothing": 0.25, "empty": 0},
        **{"late": 0, "rejected": 0, "rounds_in_time": 1.0, "bytes": 1000},
    }
    folder_of(path, [row(1)], CONFIG_OF_ALL.changed(rounds=1, robust="none"), summary=summary)
    RunFolder(path).write_metrics([row(1)])
    return ["live", path / CONFIG, "--users", 3, "--out", path, "--resume"]
