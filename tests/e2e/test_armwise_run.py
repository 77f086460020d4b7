"""Whole runs by `armwise run`, without Airflow: on a server that already runs, and to be stored elsewhere."""

import shutil
from pathlib import Path

import pytest
import sqlalchemy
from lifecycle import armwise as start
from lifecycle import living
from stand_in.launch import running

from tasks import artifact, database

pytestmark = pytest.mark.services


def armwise(*words: str) -> str:
    """What the command said. It ended well."""
    command = start(*words)
    said, _ = command.communicate(timeout=200)
    assert command.returncode == 0, said
    return said


def asked(statement: str) -> list[tuple]:
    with database.engine().connect() as connection:
        return [tuple(row) for row in connection.execute(sqlalchemy.text(statement))]


def folder_of(said: str) -> Path:
    return Path(
        next(line for line in said.splitlines() if line.startswith("run folder: ")).removeprefix("run folder: ")
    )


def test_a_server_that_already_runs(postgres, sandbox, tmp_path, monkeypatch):
    with running("--model", "m", "--served-model-name", "model", log=tmp_path / "engine.log") as server:
        monkeypatch.setenv("ARMWISE_ENDPOINT_URL", server.url)
        said = armwise("run", "endpoint", "--target", "endpoint", "--plan", "smoke")
        assert server.process.poll() is None, "nothing that we did not start is stopped"
    run_dir = folder_of(said)
    assert artifact.read(run_dir / "effective.json")["unverified"], "what cannot be read back is named"
    assert artifact.read(run_dir / "gate.json")["verdict"] == "PASS"
    assert living(run_dir) == []
    ((arm, engine, is_valid),) = asked("select arm, engine, is_valid from report.run")
    assert (arm, engine, is_valid) == ("endpoint", "openai", True), artifact.read(run_dir / "validation.json")[
        "reasons"
    ]
    assert {tier for (tier,) in asked("select distinct tier from request")} == {"gateway", "agent"}
    assert asked("select usd_per_task, reason from report.cost_per_task where lens = 'all_in'")[0][0] is None


def test_a_run_on_a_host_without_a_database_is_stored_elsewhere(postgres, sandbox, tmp_path, monkeypatch):
    with monkeypatch.context() as there:
        there.setenv("ARMWISE_DB_URL", "none")
        said = armwise("run", "cpu-baseline", "--target", "stand-in", "--plan", "smoke")
    assert "load: skipped, no database here" in said
    copy = tmp_path / "copied" / "1"
    shutil.copytree(folder_of(said), copy)
    shutil.rmtree(folder_of(said))

    armwise("load", str(copy))

    assert asked("select arm, state, invalid_reasons from report.run") == [("cpu-baseline", "done", "")]
    assert asked("select count(*) from report.latency where metric = 'ttft_ms'")[0][0] > 0
    armwise("load", str(copy))
    assert asked("select count(*) from run") == [(1,)]
