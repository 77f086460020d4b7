import json
import shutil
import threading
from pathlib import Path
from typing import Any

import measured_run
import pytest
import sqlalchemy

from tasks import artifact, database, tables
from tasks import run as runs
from tasks.stage import StageFailed
from tasks.stages.load import load

pytestmark = pytest.mark.services  # a Postgres

STAGES = ("deploy", "verify", "gate", "drive_gateway", "drive_agent", "release", "validate")
COUNTED = ("run", "phase", "golden", "request", "agent_task", "engine_sample", "expectation", "percentile")


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    folder = measured_run.make(tmp_path / "runs")
    shutil.rmtree(folder / "phases", ignore_errors=True)
    for number, stage in enumerate(STAGES):
        note(folder, stage, began=10.0 * number)
    artifact.write(folder / "validation.json", {"format": 1, "is_valid": True, "reasons": [], "expectations": [RULE]})
    return folder


RULE = {"suite": "s", "rule": "r", "expectation": "e", "scope": "run", "success": True, "observed": 1, "expected": [1]}
JUDGEMENT: dict[str, Any] = {
    "format": 1,
    "percentiles": [
        {"tier": "agent", "level": 1, "steps": "later", "metric": "ttft_ms", "q": 0.95}
        | {"estimate": "inf", "lower": 50.0, "upper": "inf", "n": 72, "failed": 5, "effective_n": 36.0}
    ],
    "verdicts": [],
    "costs": [{"lens": "all_in", "usd_per_task": 0.0025, "tasks": 40, "gpu_s": 100.0, "is_nominal": True}],
}


def note(folder: Path, stage: str, *, began: float = 0.0, error: str | None = None, number: int = 1) -> Path:
    content = {"stage": stage, "pid": 1, "state": "failed" if error else "done", "error": error}
    times = {"began_at": measured_run.AT + began, "ended_at": measured_run.AT + began + 5}
    return artifact.write(folder / "phases" / f"{stage}.{number}.json", content | times)


def asked(statement: str) -> list[tuple[Any, ...]]:
    with database.engine().connect() as connection:
        return [tuple(row) for row in connection.execute(sqlalchemy.text(statement))]


def counts() -> dict[str, int]:
    return {table: asked(f"select count(*) from {table}")[0][0] for table in COUNTED}


def everything() -> list[tuple[Any, ...]]:
    """Every row with its place on disk: a row that was written again has another one."""
    return [row for table in COUNTED for row in asked(f"select ctid::text, t::text from {table} t order by 1")]


def test_every_row_of_the_folder_is_stored(postgres: str, run_dir: Path) -> None:
    load(run_dir)
    assert counts() == {
        "run": 1,
        "phase": 7,
        "golden": 41,
        "request": 100 + 120,
        "agent_task": 40,
        "engine_sample": 12,
        "expectation": 1,
        "percentile": 0,
    }


def test_values_arrive_as_they_were_measured(postgres: str, run_dir: Path) -> None:
    load(run_dir)
    asked_for = "ttft_ms, e2e_ms, tpot_ms, status, is_warmup, task_id, extract(epoch from sent_at)"
    row = asked(f"select {asked_for} from request where tier = 'agent' and request_id = 'agent-2'")
    assert [tuple(float(v) if i == 6 else v for i, v in enumerate(row[0]))] == [
        (50.0, 150.0, 10.0, 200, True, "t0", measured_run.AT + 70.6)
    ]
    assert asked("select state, failed_stage, is_valid, is_gated, gate_verdict, gpu_held_s, control from run") == [
        ("done", None, True, True, "PASS", 100.0, None)
    ]
    assert asked("select versions from run") == [({"armwise": "0.1", "vllm": "0.32.0"},)]


def test_loading_twice_writes_nothing_again(postgres: str, run_dir: Path) -> None:
    artifact.write(run_dir / "judgement.json", JUDGEMENT)
    load(run_dir)
    before = everything()
    note(run_dir, "load", began=90)
    note(run_dir, "judge", began=95)
    load(run_dir)
    load(run_dir)
    assert everything() == before


def test_two_loaders_at_once_store_it_once(postgres: str, run_dir: Path) -> None:
    faults: list[BaseException] = []

    def work() -> None:
        try:
            load(run_dir)
        except BaseException as error:  # noqa: BLE001 (handed to the test's own thread)
            faults.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults
    assert counts()["request"] == 220
    assert len({row[0] for row in asked("select xmin::text from run union select xmin::text from request")}) == 1


def test_attempts_do_not_touch_each_other(postgres: str, run_dir: Path) -> None:
    load(run_dir)
    second = run_dir.parent / "2"
    shutil.copytree(run_dir, second)
    content = artifact.read(second / "run.json")
    artifact.write(second / "run.json", content | {"attempt": 2})
    (second / "agent" / "tasks.parquet").unlink()
    load(second)
    assert asked("select attempt, count(*) from agent_task group by 1") == [(1, 40)]
    assert asked("select attempt, count(*) from request group by 1 order by 1") == [(1, 220), (2, 220)]


def test_a_changed_folder_replaces_its_rows(postgres: str, run_dir: Path) -> None:
    load(run_dir)
    measured_run.write_tier(run_dir, "gateway", measured_run.gateway_requests("known")[:30])
    load(run_dir)
    assert counts()["request"] == 150


def test_an_older_copy_is_refused(postgres: str, run_dir: Path, tmp_path: Path) -> None:
    load(run_dir)
    older = tmp_path / "older" / "1"
    shutil.copytree(run_dir, older)
    (older / "phases" / "validate.1.json").unlink()
    with pytest.raises(StageFailed, match="an older copy is not stored over a newer one"):
        load(older)
    assert counts()["phase"] == 7


def test_judgement_is_stored_beside_the_rows(postgres: str, run_dir: Path) -> None:
    load(run_dir)
    rows = asked("select xmin::text from request limit 1")
    artifact.write(run_dir / "judgement.json", JUDGEMENT)
    load(run_dir)
    assert asked("select estimate, lower, upper, n, failed from percentile") == [
        (float("inf"), 50.0, float("inf"), 72, 5)
    ]
    assert asked("select usd_per_task, reason from cost") == [(0.0025, None)]
    assert asked("select xmin::text from request limit 1") == rows


def test_judgement_of_a_run_that_was_never_loaded_brings_its_rows(postgres: str, run_dir: Path) -> None:
    artifact.write(run_dir / "judgement.json", JUDGEMENT)
    load(run_dir)
    assert counts()["request"] == 220


def test_a_killed_run_is_stored_as_failed_with_its_partial_rows(postgres: str, run_dir: Path) -> None:
    for name in ("drive_agent", "validate"):
        (run_dir / "phases" / f"{name}.1.json").unlink()
    (run_dir / "validation.json").unlink()
    tasks, requests = measured_run.agent_rows("known", 50)
    for kind, rows in (("requests", requests[:10]), ("tasks", tasks[:3])):
        (run_dir / "agent" / f"{kind}.parquet").unlink()
        spool = "".join(json.dumps(row) + "\n" for row in rows) + '{"request_id": "torn'
        (run_dir / "agent" / f"{kind}.jsonl").write_text(spool)
    load(run_dir)
    assert counts()["request"] == 110
    assert counts()["agent_task"] == 3
    assert asked("select state, failed_stage, error, is_valid, invalid_reasons from run") == [
        (
            "failed",
            "drive_agent",
            "drive_agent left no note of its end: it was killed, or never begun",
            False,
            ["not validated: validation.json is missing"],
        )
    ]
    assert asked("select tpot_ms from request where request_id = 'agent-3'") == [(10.0,)]


@pytest.mark.parametrize("name", ["run.json", "gate.json", "validation.json", "phases/gate.1.json"])
def test_a_torn_document_stores_nothing(postgres: str, run_dir: Path, name: str) -> None:
    whole = (run_dir / name).read_text()
    (run_dir / name).write_text(whole[: len(whole) // 2])
    with pytest.raises(artifact.BrokenArtifact, match=rf"{name}: cannot be read"):
        load(run_dir)
    assert set(counts().values()) == {0}


def test_a_corrupt_change_leaves_the_stored_rows_alone(postgres: str, run_dir: Path) -> None:
    load(run_dir)
    before = everything()
    path = run_dir / "agent" / "requests.parquet"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(artifact.BrokenArtifact, match=r"requests.parquet: cannot be read"):
        load(run_dir)
    assert everything() == before


def test_a_request_stored_twice_is_a_fault_in_words(postgres: str, run_dir: Path) -> None:
    rows = measured_run.gateway_requests("known")
    measured_run.write_tier(run_dir, "gateway", [*rows, rows[0]])
    with pytest.raises(artifact.BrokenArtifact, match=r"nothing was stored: .*gateway-0.* already exists"):
        load(run_dir)
    assert set(counts().values()) == {0}


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("status", "teapot", "table request, row 1: status: must be integer, found 'teapot'"),
        ("mood", "good", "table request has no column mood; known: run_id"),
    ],
)
def test_a_row_that_does_not_fit_is_a_fault_in_words(
    postgres: str, run_dir: Path, field: str, value: str, words: str
) -> None:
    (run_dir / "gateway" / "requests.parquet").unlink()
    row = measured_run.gateway_requests("known")[0] | {field: value}
    artifact.write_rows(run_dir / "gateway" / "requests.jsonl", [row])
    with pytest.raises(artifact.BrokenArtifact) as fault:
        load(run_dir)
    assert words in str(fault.value)


def test_text_that_copy_could_misread_arrives_whole(postgres: str, run_dir: Path) -> None:
    text = 'tab\there, \\N, "quoted", \\. and\r\nzwei Zeilen ü 💡'
    (run_dir / "gateway" / "requests.parquet").unlink()
    row = measured_run.gateway_requests("known")[0] | {"failure": "malformed", "failure_detail": text + "\0"}
    artifact.write_rows(run_dir / "gateway" / "requests.jsonl", [row])
    load(run_dir)
    assert asked("select failure_detail from request where tier = 'gateway'") == [(text + "\ufffd",)]


def test_a_database_that_is_away_costs_nothing(
    run_dir: Path, armwise_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ARMWISE_DB_URL", "postgresql://nobody@127.0.0.1:1/nothing")
    before = sorted(run_dir.rglob("*"))
    with pytest.raises(StageFailed, match=rf"armwise load {run_dir}") as fault:
        load(run_dir)
    assert "does not answer" in str(fault.value)
    assert sorted(run_dir.rglob("*")) == before


def test_a_database_that_goes_away_in_the_middle_costs_nothing(
    postgres: str, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(_run: runs.Run) -> tables.Tables:
        asked("select pg_terminate_backend(pid) from pg_stat_activity where state = 'idle in transaction'")
        return {"cost": JUDGEMENT["costs"]}

    with monkeypatch.context() as patch:
        patch.setattr(tables, "judged", cut)
        with pytest.raises(StageFailed, match=r"(?s)went away or refused: .*armwise load") as fault:
            load(run_dir)
    assert "nothing is lost" in str(fault.value)
    assert set(counts().values()) == {0}
    load(run_dir)
    assert counts()["request"] == 220


def test_without_a_database_the_words_say_what_to_do(run_dir: Path, armwise_home: Path) -> None:
    with pytest.raises(StageFailed, match=r"ARMWISE_DB_URL \(now: none\).*armwise load"):
        load(run_dir)


@pytest.mark.parametrize(
    ("notes", "verdict", "expected"),
    [
        ({}, "PASS", ("done", None, None)),
        ({"deploy": "no port"}, "PASS", ("failed", "deploy", "no port")),
        ({"release": "still there"}, "FAIL", ("failed", "release", "still there")),
        ({}, "FAIL", ("gate_failed", None, None)),
        ({}, "INVALID", ("gate_failed", None, None)),
    ],
)
def test_state_of_a_run(
    run_dir: Path, notes: dict[str, str], verdict: str, expected: tuple[str, str | None, str | None]
) -> None:
    gate = artifact.read(run_dir / "gate.json")
    artifact.write(run_dir / "gate.json", gate | {"verdict": verdict})
    if verdict != "PASS":
        for stage in ("drive_gateway", "drive_agent"):
            (run_dir / "phases" / f"{stage}.1.json").unlink()
    for stage, error in notes.items():
        note(run_dir, stage, error=error, number=2)
    row = tables.measured(runs.read(run_dir))["run"][0]
    assert (row["state"], row["failed_stage"], row["error"]) == expected


def test_a_later_try_that_worked_counts(run_dir: Path) -> None:
    note(run_dir, "verify", error="not yet", number=9)
    note(run_dir, "verify", number=10)
    assert tables.measured(runs.read(run_dir))["run"][0]["state"] == "done"
