"""Reports of two runs known by construction (tests/measured_run.py), through the real database and its views."""

import json
import re
from dataclasses import replace
from datetime import datetime
from html.parser import HTMLParser
from pathlib import Path

import measured_run
import pytest
from measured_run import agent_rows, write_tier

from tasks import artifact, run, stage
from tasks.catalog import UnknownName
from tasks.cli import app
from tasks.report import charts, figures, of_pair, of_run, page, text

pytestmark = pytest.mark.services  # a Postgres

CONTROL, ARM = "cpu-baseline", "cpu-no-prefix-caching"


def stored_run(home, run_id: str, arm: str, *, later_ms: float = 50, spoil=None, **changes) -> str:
    """A whole run in the database. `changes` are fields of run.json."""
    run_dir = measured_run.make(home / "runs", run_id=run_id, arm=arm, later_ms=later_ms)
    artifact.write(run_dir / "run.json", artifact.read(run_dir / "run.json") | changes)
    if spoil:
        spoil(run_dir)
    else:  # what validate would say, without the seconds that it takes
        artifact.write(run_dir / "validation.json", {"format": 1, "is_valid": True, "reasons": [], "expectations": []})
    for name in ("validate", "load", "judge"):
        stage.perform(name, run_dir)
    return run_id


def two_runs(home) -> None:
    stored_run(home, "c1", CONTROL, later_ms=120)
    stored_run(home, "a1", ARM, later_ms=340, claimed_at=measured_run.AT + 1000)


def unproven(run_dir) -> None:
    path = run_dir / "release.json"
    artifact.write(path, artifact.read(path) | {"proof": {"processes_left": ["17 vllm"], "gateway_deregistered": True}})


def failing(run_dir) -> None:
    tasks, requests = agent_rows(ARM, 50)
    for task in tasks:
        task.update(is_success=False, failure="wrong_answer")
    write_tier(run_dir, "agent", requests, tasks)


def table(report: figures.Report, title: str) -> figures.Table:
    (found,) = [one for one in report.tables if one.title.startswith(title)]
    return found


def named(report: figures.Report, title: str) -> figures.Table:
    (found,) = [one for one in report.tables if one.title == title]
    return found


def texts(one: figures.Table) -> list[list[str]]:
    return [[cell.text for cell in row] for row in one.rows]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.00123, "0.00123"),
        (1.234, "1.23"),
        (123.4, "123"),
        (12300.0, "12,300"),
        (0, "0"),
        (None, "–"),
        (float("inf"), "∞"),
    ],
)
def test_numbers(value, expected):
    assert figures.number(value) == expected


def test_a_moment_is_in_utc_whatever_zone_the_database_speaks_in():
    assert figures.moment(datetime.fromisoformat("2026-11-30T01:30:00+02:00")) == "2026-11-29 23:30 UTC"


def test_bounds_say_what_is_not_known():
    row = {"estimate": 5.0, "lower": 1.0, "upper": None}
    assert figures.estimate(row).text == "5 [1 to ?]"
    assert figures.estimate(row | {"upper": float("inf")}).text == "5 [1 to ∞]"


@pytest.mark.parametrize(
    ("control", "arm", "words"),
    [
        ((1, 2), (3, 4), "differs within these two deployments"),
        ((3, 4), (1, 2), "differs within these two deployments"),
        ((1, 3), (2, 4), "bounds overlap"),
        ((1, 2), (2, 3), "bounds overlap"),
        ((1, None), (3, 4), "not known: n is too small for a bound"),
        ((1, 2), (3, None), "differs within these two deployments"),
    ],
)
def test_overlap(control, arm, words):
    rows = [{"lower": lower, "upper": upper} for lower, upper in (control, arm)]
    assert of_pair.overlap(*rows) == words


@pytest.mark.parametrize(
    ("control", "arm", "expected"), [(100.0, 250.0, "2.50x"), (0, 1, "–"), (1, None, "–"), (float("inf"), 1, "–")]
)
def test_times(control, arm, expected):
    assert of_pair.times(control, arm) == expected


def test_the_report_of_one_run(home):
    two_runs(home)
    report = of_run.build("a1")
    assert report.alarms == []
    slos = texts(table(report, "Does it keep"))
    assert slos[0][:4] == ["PASS", "agent-later-ttft-p50", "agent, 4 users, steps 2+", "p50 of ttft_ms ≤ 1,000 ms"]
    assert slos[0][4:6] == ["340 [340 to 340] ms", "72"]
    assert [row[0] for row in slos] == ["PASS", "INCONCLUSIVE", "PASS"]
    costs = texts(table(report, "What does one"))
    assert [row[:4] for row in costs] == [
        ["all-in", "0.00250 USD", "40", "100"],
        ["sustained", "0.000500 USD", "36", "18"],
    ]
    assert costs[0][4] == "3.60 USD (local-cpu, nominal: not a market price)"
    assert "SLO inconclusive at 4 users: agent-task-p95" in costs[1][5]
    latencies = texts(table(report, "How long"))
    assert ["agent, 4 users", "steps 2+", "ttft_ms (ms)", "340 [340 to 340]"] in [row[:4] for row in latencies]
    assert len(latencies) == 6 + 3 * 6 + 1
    assert [row[0] for row in texts(table(report, "Where did"))][:2] == ["claim", "deploy"]


def test_the_latest_run_is_the_default_and_an_unknown_one_is_answered(home):
    with pytest.raises(UnknownName, match="none yet: armwise run ARM"):
        of_run.build()
    two_runs(home)
    assert of_run.build().name == "a1"
    with pytest.raises(UnknownName, match="no run 'x9'; latest: a1, c1"):
        of_run.build("x9")


def test_compare_says_inconclusive_and_shows_the_effect_first(home):
    two_runs(home)
    report = of_pair.build(CONTROL, ARM)
    first = report.tables[0]
    assert first.title == "TTFT p50 of agent steps 2+"
    assert texts(first) == [
        [
            "p50 of ttft_ms (ms), agent, 4 users, steps 2+",
            "120 [120 to 120]",
            "340 [340 to 340]",
            "2.83x",
            "72",
            "72",
            "INCONCLUSIVE",
            "differs within these two deployments",
        ]
    ]
    assert "no noise floor in 1 deployment each" in first.note
    outcomes = {row[6] for one in report.tables if "outcome" in one.columns for row in texts(one)}
    assert outcomes == {"INCONCLUSIVE"}
    assert texts(table(report, "Cost of"))[0][:4] == ["all-in", "0.00250 USD", "0.00250 USD", "1.00x"]
    who = {row[0]: row[1:] for row in texts(table(report, "Which runs?"))}
    assert (who["validity"], who["golden gate"]) == (["valid", "valid"], ["PASS", "PASS"])
    assert [row[2] for row in texts(table(report, "SLO verdicts"))] == ["PASS", "INCONCLUSIVE", "PASS"]


def test_compare_takes_the_latest_valid_run(home):
    two_runs(home)
    stored_run(home, "c2", CONTROL, spoil=unproven, claimed_at=measured_run.AT + 2000)
    assert of_pair.build(CONTROL, ARM).name == "c1-against-a1"
    stored_run(home, "c3", CONTROL, claimed_at=measured_run.AT + 3000)
    assert of_pair.build(CONTROL, ARM).name == "c3-against-a1"


def test_what_must_not_differ_is_an_alarm(home):
    two_runs(home)
    assert of_pair.build(CONTROL, ARM).alarms == []

    def another(run_dir):
        for name, changes in (("effective", {"versions": {"vllm": "0.33.0"}}), ("gate", {"golden_sha256": "e" * 64})):
            artifact.write(run_dir / f"{name}.json", artifact.read(run_dir / f"{name}.json") | changes)
        told = artifact.read(run_dir / "run.json")
        told["plan"]["document"]["seed"] += 1
        artifact.write(run_dir / "run.json", told)

    stored_run(home, "c2", CONTROL, spoil=another)
    report = of_pair.build("c2", "a1")
    assert named(report, "Latency, agent tier").is_grey
    assert "rule 11: plan_digest: " in named(report, "Latency, agent tier").why
    alarms = "\n".join(report.alarms)
    for words in ("NOT ALIKE: plan_digest: ", "NOT ALIKE: golden_sha256: eeee", "version of vllm: 0.33.0 and 0.32.0"):
        assert words in alarms


def test_an_invalid_run_is_greyed_with_its_reasons(home):
    two_runs(home)
    stored_run(home, "c2", CONTROL, spoil=unproven)
    report = of_pair.build("c2", "a1")
    assert report.alarms[0].startswith("INVALID, not to be relied on: c2")
    assert "no process of the run is left" in report.alarms[0]
    graded = [one for one in report.tables if "outcome" in one.columns]
    assert all(one.is_grey for one in graded)
    assert {row[6] for one in graded for row in texts(one)} == {"INVALID"}
    assert "(INVALID: not to be relied on)" in text.render(report)
    alone = of_run.build("c2")
    assert table(alone, "How long").is_grey
    assert texts(alone.tables[0])[0][1] == "INVALID"


def late(run_dir) -> None:
    path = run_dir / "gateway" / "client.json"
    artifact.write(path, artifact.read(path) | {"loop_lag_ms_p99": 150.0})


def test_what_broke_one_tier_greys_its_own_numbers_with_the_reason_and_no_others(home):
    two_runs(home)
    stored_run(home, "c2", CONTROL, spoil=late)
    report = of_run.build("c2")
    assert report.alarms[0].startswith("INVALID in tier gateway, not to be relied on: c2")
    for title in ("How long", "Does it keep"):
        one = table(report, title)
        grey = {cell.text for number in one.grey_rows for cell in one.rows[number]}
        assert [number for number, row in enumerate(texts(one)) if "gateway" in " ".join(row)] == sorted(one.grey_rows)
        assert grey and not one.is_grey and "loop_lag_ms_p99 150" in one.why
    assert not table(report, "What does one").is_grey and not table(report, "What does one").grey_rows
    assert ["BROKEN", "6", "gateway"] in [row[:3] for row in texts(table(report, "Can the numbers"))]
    printed = text.render(report)
    assert "not to be relied on where marked !: rule 6 (gateway)" in printed and "\n  ! gateway, 4 users" in printed
    assert page.render(report).count('<tr class="grey">') == sum(len(one.grey_rows) for one in report.tables)
    pair = of_pair.build("c2", "a1")
    assert (named(pair, "Latency, gateway tier").is_grey, named(pair, "Latency, agent tier").is_grey) == (True, False)
    assert {row[6] for row in texts(named(pair, "Latency, gateway tier"))} == {"INVALID"}
    assert {row[6] for row in texts(named(pair, "Latency, agent tier"))} == {"INCONCLUSIVE"}


def test_what_cannot_be_compared_is_refused_in_words(home):
    stored_run(home, "c1", CONTROL, spoil=unproven)
    with pytest.raises(UnknownName, match=r"arm 'cpu-baseline' has no valid run to compare\. The latest, c1, broke: "):
        of_pair.build(CONTROL, "c1")
    with pytest.raises(UnknownName, match="no run of an arm 'nobody' and no such run id; arms with runs: cpu-baseline"):
        of_pair.build("nobody", "c1")
    with pytest.raises(UnknownName, match="are the same run c1"):
        of_pair.build("c1", "c1")


def test_failures_show_as_infinite_and_the_page_holds(home):
    stored_run(home, "a1", ARM, spoil=failing)
    report = of_run.build("a1")
    (task,) = [row for row in texts(table(report, "How long")) if row[2] == "task_ms (ms)"]
    assert task[3:6] == ["∞ [∞ to ∞]", "∞ [∞ to ?]", "∞ [∞ to ?]"]
    assert task[7] == "36"
    assert texts(table(report, "What does one"))[0][1] == "–"
    json.dumps([chart.spec for chart in report.charts], allow_nan=False)
    assert "2 infinite percentiles (failures) are not drawn" in report.charts[0].note


def test_a_run_without_any_row_has_a_report(home):
    def nothing(run_dir):
        for path in sorted(run_dir.rglob("*"), reverse=True):
            if path.is_file() and path.name != "run.json":
                path.unlink()

    stored_run(home, "a1", ARM, spoil=nothing)
    report = of_run.build("a1")
    assert report.alarms[0].startswith("INVALID")
    assert "nothing" in text.render(report)


def test_the_commands_print_and_write(home, capsys):
    two_runs(home)
    app()(["report", str(run.find("a1"))], standalone_mode=False)
    printed = capsys.readouterr().out
    assert "Does it keep the SLOs?" in printed
    app()(["compare", CONTROL, ARM], standalone_mode=False)
    printed += capsys.readouterr().out
    pages = re.findall(r"^page: (.*)$", printed, re.MULTILINE)
    assert [name.rpartition("/")[2] for name in pages] == ["a1.html", "c1-against-a1.html"]
    assert "1.2x" not in printed
    for name in pages:
        assert_self_contained(name)


class Links(HTMLParser):
    """Every attribute by which a page could ask for something else."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.found += [f"{tag} {name}={value}" for name, value in attrs if name in ("src", "href", "srcset", "data")]


def assert_self_contained(path: str) -> None:
    content = Path(path).read_text(encoding="utf-8")
    links = Links()
    links.feed(content)
    assert links.found == []
    assert "default-src 'none'" in content
    assert "vegaEmbed" in content


def test_no_text_of_a_run_can_become_markup(armwise_home):
    evil = "</script><script>alert(1)</script><img src=x>"
    cells = figures.Table("t", ["a"], [[figures.Cell(evil)]], note=evil)
    chart = figures.Chart(evil, {"data": {"values": [{"arm": evil}]}})
    report = figures.Report(evil, "evil", [cells], [chart], [evil])
    content = page.render(report)
    assert "<script>alert" not in content
    assert "<img src=x>" not in content
    assert page.render(replace(report, charts=[])).count("<script") == 0


def test_a_chart_of_nothing_is_none():
    assert charts.latency({"a": {"latency": []}}) is None
    assert charts.phases({"phase": []}) is None


def test_columns_line_up_in_the_terminal():
    rows = [[figures.Cell("é"), figures.cell(5)], [figures.Cell("日本"), figures.cell(12345)]]
    lines = text.render(figures.Report("t", "t", [figures.Table("x", ["who", "n"], rows)])).splitlines()
    assert lines[4:7] == ["    who        n", "    é          5", "    日本  12,345"]


def cells_of(one: figures.Table) -> dict[str, list[str]]:
    return {row[0]: row[1:] for row in texts(one)}


def test_what_the_client_itself_adds_stands_beside_the_numbers(home):
    two_runs(home)
    report = of_run.build("a1")
    alone = table(report, "What the client itself adds, agent tier")
    assert alone.columns == ["", "alone", "with the gateway", "under load"]
    assert "Enough: the client alone keeps the load of level 1 (4 streams, 200 chunks/s)." in alone.note
    assert not alone.is_grey
    cells = cells_of(alone)
    assert cells["least TTFT that it can report, ms"] == ["0.500 / 1 / 1.50", "2 / 4 / 6", "–"]
    assert cells["the same, all streams starting at once, ms"] == ["0.250 / 0.250 / 0.250"] * 2 + ["–"]
    assert cells["event loop late by, ms"] == ["0.250 / 0.250 / 0.250"] * 2 + ["1 / 3 / 4"]
    assert cells["sent late by, ms"][2] == "– / 0.500 / –"
    assert cells["share of one core, each process"] == ["0.100", "0.100", "0.200"]
    assert cells["calls, failed"] == ["54, 0", "54, 0", "120, 0"]
    shares = texts(table(report, "How much of the time"))
    gateway = [row for row in shares if row[0].startswith("gateway, level 1, p50")]
    assert gateway == [["gateway, level 1, p50", "50", "0.500", "1.50", "4 %", "100", "50"]]
    both = cells_of(table(of_pair.build(CONTROL, ARM), "What the client itself adds"))
    assert both["gateway: kept the planned rate alone"] == ["yes", "yes"]
    assert both["agent: event loop late under load by, ms"] == ["1 / 3 / 4", "1 / 3 / 4"]


@pytest.mark.parametrize(
    ("changes", "is_grey", "words"),
    [
        (
            {"is_enough": False, "reason": "direct: cpu_share is 0.9, and rule 6 allows 0.8"},
            True,
            "NOT ENOUGH, the client alone does not keep the planned load: direct: cpu_share is 0.9",
        ),
        (
            {"is_enough": None, "not_calibrated_because": "a test", "direct": None, "through_gateway": None},
            False,
            "NOT CALIBRATED: a test.",
        ),
        ({"fault": "the gateway was not brought to forget x"}, False, "The gateway was not brought to forget x."),
    ],
)
def test_a_calibration_that_says_nothing_says_so(home, changes, is_grey, words):
    def spoil(run_dir):
        path = run_dir / "gateway" / "calibration.json"
        artifact.write(path, artifact.read(path) | changes)

    stored_run(home, "a1", ARM, spoil=spoil)
    alone = table(of_run.build("a1"), "What the client itself adds, gateway tier")
    assert alone.is_grey == is_grey
    assert words.lower() in f"{alone.note} {alone.why}".lower()
    assert not table(of_run.build("a1"), "What the client itself adds, agent tier").is_grey


def test_a_run_without_any_calibration_says_that_nobody_knows(home):
    def spoil(run_dir):
        for tier in ("gateway", "agent"):
            (run_dir / tier / "calibration.json").unlink()

    stored_run(home, "a1", ARM, spoil=spoil)
    alone = table(of_run.build("a1"), "What the client itself adds, gateway tier")
    assert alone.note.startswith("NO CALIBRATION: nobody knows what the client adds.")
    assert "rule 6 (gateway): before the load, the client alone kept the planned rate" in of_run.build("a1").alarms[0]
