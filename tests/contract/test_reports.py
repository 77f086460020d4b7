"""Every file of sql/report, on a database with one run known by construction."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import measured_run
import pytest
import sqlalchemy
from conftest import database_like

from tasks import artifact, catalog, database, metrics, settings
from tasks.stages.load import load

pytestmark = pytest.mark.services  # a Postgres

FOLDER = settings.root() / "sql" / "report"
VIEWS = catalog.names(FOLDER, ".sql")
SUFFIXES = ("_ms", "_s", "_at", "_j", "_w", "_mib", "usd_per_task", "usd_per_hour")
COUNTS = {"attempt", "repeat", "level", "users", "try", "steps", "tool_calls", "n", "failed", "effective_n"}
COUNTS |= {"number", "requests", "failed_requests", "tasks", "successful_tasks", "golden_passed", "golden_cases"}
COUNTS |= {
    "successes",
    "output_tokens",
    "process",
    "streams",
    "calls",
    "calls_after_burst",
    "floor_calls",
    "chunks",
    "stalls",
    "lost_chunks",
}
SHARES = {"q", "fraction", "cpu_share", "ours_share", "utilisation"}
STATISTICS = re.compile("_(p50|p99|max)$")  # after the unit
IN_UNIT = {"estimate", "lower", "upper", "objective"}  # in the unit of the row's own column `unit`
PERCENTILE = {"tier": "agent", "level": 1, "steps": "later", "metric": "ttft_ms", "q": 0.95}
FIGURES = {"estimate": "inf", "lower": 50.0, "upper": None, "n": 72, "effective_n": 36.0}
JUDGEMENT = {
    "format": 1,
    "percentiles": [PERCENTILE | FIGURES | {"failed": 5}],
    "verdicts": [
        {"slo": "agent-later-ttft-p50", "tier": "agent", "level": 1, "steps": "later", "indicator": "ttft_ms"}
        | {"objective": 400.0, "unit": "ms", "fraction": 0.5, "verdict": "INCONCLUSIVE", "reason": "too few"}
        | FIGURES
    ],
    "costs": [
        {"lens": lens, "usd_per_task": usd, "tasks": 36, "gpu_s": 100.0, "price_usd_per_hour": 3.6}
        | {"price_key": "local-cpu", "is_nominal": True, "reason": None}
        for lens, usd in (("all_in", 0.1 / 36), ("sustained", None))
    ],
}
CHECKED = {"suite": "tier", "rule": 6, "expectation": "expect_x(loop)", "scope": "gateway", "kind": "fault"}
CHECKED |= {"success": False, "is_unverified": False, "observed": "loop 101", "expected": "at most 100"}
CHECKED |= {"examples": ["r1", "r2"], "says": "the loop was on time", "because": "ours", "source": ["a/b#1", "c/d#2"]}
VALIDATION = {
    "is_valid": False,
    "reasons": ["one", "two"],
    "invalid_scopes": ["gateway", "run"],
    "findings": ["three"],
    "expectations": [
        CHECKED,
        CHECKED | {"success": True, "examples": []},
        CHECKED | {"kind": "finding"},
        CHECKED | {"success": True, "is_unverified": True},
    ],
}


@pytest.fixture(scope="module")
def seeded(postgres_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One run: 220 calls, 40 tasks, all golden cases passed, found invalid by validate. Only read."""
    with database_like(postgres_server):
        yield _seed(tmp_path_factory.mktemp("runs"))


def _seed(runs: Path) -> Path:
    run_dir = measured_run.make(runs)
    shutil.rmtree(run_dir / "phases", ignore_errors=True)
    times = {"began_at": measured_run.AT + 95, "ended_at": measured_run.AT + 105}
    artifact.write(run_dir / "phases" / "release.1.json", {"stage": "release", "state": "done", "error": None} | times)
    artifact.write(run_dir / "validation.json", VALIDATION)
    artifact.write(run_dir / "judgement.json", JUDGEMENT)
    load(run_dir)
    return run_dir


def asked(statement: str) -> list[dict[str, Any]]:
    with database.engine().connect() as connection:
        return [dict(row) for row in connection.execute(sqlalchemy.text(statement)).mappings()]


def header(view: str) -> dict[str, list[str]]:
    """Words of the comment lines at the top of a view's file: title, question, panel, column."""
    found: dict[str, list[str]] = {}
    for line in (FOLDER / f"{view}.sql").read_text().splitlines():
        if not line.startswith("-- "):
            break
        key, _, words = line.removeprefix("-- ").partition(" " if line.startswith("-- column") else ":")
        found.setdefault(key, []).append(words.strip())
    return found


def test_there_are_reports() -> None:
    assert {"run", "latency", "slo_verdict", "cost_per_task", "golden", "phase"} <= set(VIEWS)


@pytest.mark.parametrize("view", VIEWS)
def test_header_says_what_it_is_for(view: str) -> None:
    found = header(view)
    assert len(found["title"]) == len(found["question"]) == len(found["panel"]) == 1
    assert found["question"][0].endswith("?")
    assert found["panel"][0].partition(" ")[0] in {"table", "line", "bar"}
    assert not set(re.findall(r"=(\w+)", found["panel"][0])) - {line.partition(":")[0] for line in found["column"]}


@pytest.mark.parametrize("view", VIEWS)
def test_header_columns_are_the_result_columns(view: str, seeded: Path) -> None:
    row = asked(f"select * from report.{view}")[0]
    assert [line.partition(": ")[0] for line in header(view)["column"]] == list(row)
    assert all(line.partition(": ")[2] for line in header(view)["column"])


@pytest.mark.parametrize("view", VIEWS)
def test_nobody_can_take_an_invalid_or_simulated_row_for_a_measured_one(view: str, seeded: Path) -> None:
    assert {(row["is_valid"], row["engine"]) for row in asked(f"select * from report.{view}")} == {(False, "vllm")}


@pytest.mark.parametrize("view", VIEWS)
def test_every_number_has_a_known_unit(view: str, seeded: Path) -> None:
    columns = asked(
        "select column_name as name, data_type as type from information_schema.columns "
        f"where table_schema = 'report' and table_name = '{view}'"
    )
    numbers = {column["name"] for column in columns if column["type"] in ("integer", "bigint", "double precision")}
    has_unit = any(column["name"] == "unit" for column in columns)
    known = COUNTS | SHARES | (IN_UNIT if has_unit else set())
    assert not {name for name in numbers - known if not STATISTICS.sub("", name).endswith(SUFFIXES)}


def test_run_counts_what_is_there(seeded: Path) -> None:
    (row,) = asked("select * from report.run")
    assert row["invalid_reasons"] == "one; two"
    assert (row["requests"], row["failed_requests"], row["tasks"], row["successful_tasks"]) == (220, 0, 40, 40)
    assert (row["golden_passed"], row["golden_cases"], row["gate"]) == (41, 41, "PASS")
    assert (row["state"], row["failed_stage"]) == ("failed", "deploy")  # its folder has the note of release alone


def test_honesty_tells_what_was_kept_what_was_broken_and_what_nobody_knows(seeded: Path) -> None:
    rows = asked("select * from report.honesty order by number")
    assert [row["outcome"] for row in rows] == ["BROKEN", "kept", "finding", "unverified"]
    assert (rows[0]["rule"], rows[0]["scope"], rows[0]["observed"]) == ("6", "gateway", "loop 101")
    assert (rows[0]["bound"], rows[0]["examples"], rows[0]["source"]) == ("at most 100", "r1, r2", "a/b#1, c/d#2")
    assert rows[1]["examples"] is None


@pytest.mark.parametrize(
    ("scopes", "valid"),
    [([], {"gateway", "agent"}), (["gateway"], {"agent"}), (["agent"], {"gateway"}), (["run"], set())],
)
def test_what_is_broken_in_one_tier_takes_nothing_from_the_other(seeded: Path, scopes: list, valid: set) -> None:
    told = "{" + ",".join(scopes) + "}"
    found = asked(
        f"select tier from unnest(array['gateway', 'agent']) as tier where report.tier_is_valid('{told}', tier)"
    )
    assert {row["tier"] for row in found} == valid


def test_latency_shows_infinity_unit_and_users(seeded: Path) -> None:
    (row,) = asked("select * from report.latency")
    assert (row["estimate"], row["lower"], row["upper"]) == (float("inf"), 50.0, None)
    assert (row["unit"], row["better"], row["users"], row["n"], row["failed"]) == ("ms", "lower", 4, 72, 5)


def test_verdict_shows_objective_and_bound(seeded: Path) -> None:
    (row,) = asked("select * from report.slo_verdict")
    assert (row["objective"], row["unit"], row["verdict"], row["reason"]) == (400.0, "ms", "INCONCLUSIVE", "too few")


def test_both_lenses_of_cost_are_shown(seeded: Path) -> None:
    rows = asked("select * from report.cost_per_task order by lens")
    assert [(row["lens"], row["usd_per_task"]) for row in rows] == [
        ("all_in", pytest.approx(0.1 / 36)),
        ("sustained", None),
    ]


def test_energy_is_the_counters_growth_over_what_succeeded(postgres_server: str, tmp_path: Path) -> None:
    """Two GPUs of which each counts for itself; 40 tasks that ended right; the gateway tier had no reading."""
    readings = [(0, "0", 1000.0), (0, "1", 50.0), (10, "0", 5000.0), (10, "1", 50.0)]
    with database_like(postgres_server):
        _seed(tmp_path)
        with database.engine().begin() as connection:
            for second, gpu, energy in readings:
                for name, value in (("energy_j_total", energy), ("memory_used_mib", 70_000.0), ("utilisation", 0.5)):
                    connection.execute(
                        sqlalchemy.text(
                            "insert into engine_sample select run_id, attempt, 'agent', to_timestamp(:at), 'gpu',"
                            " :name, jsonb_build_object('gpu', cast(:gpu as text)), :value from run"
                        ),
                        {"at": measured_run.AT + second, "name": name, "gpu": gpu, "value": value},
                    )
        agent, gateway = asked("select * from report.energy order by tier")
    assert (agent["energy_j"], agent["seconds_s"], agent["power_w"]) == (4000.0, 10.0, 400.0)
    assert (agent["successes"], agent["per_success_j"], agent["memory_mib"]) == (40, 100.0, 140_000.0)
    assert (gateway["energy_j"], gateway["per_success_j"]) == (None, None)


def test_a_phase_is_billed_until_the_release_alone(seeded: Path) -> None:
    (row,) = asked("select * from report.phase")
    assert (row["stage"], row["seconds_s"], row["held_s"]) == ("release", 10.0, 5.0)


def test_metric_table_is_in_the_database(seeded: Path) -> None:
    stored = {row["name"]: (row["unit"], row["says"]) for row in asked("select * from metric")}
    assert stored == {metric.name: (metric.unit, metric.says) for metric in metrics.TABLE}
