"""The shape of run_arm: what runs after what, what runs whatever happens, and what the form offers."""

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
WORK = ["deploy", "verify", "gate", "drive_gateway", "drive_agent"]
AFTER = ["release", "validate", "load", "judge"]


@pytest.fixture(scope="module")
def parsed():
    script = Path(__file__).with_name("shape.py")
    ended = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
    return json.loads(ended.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def run_arm(parsed):
    return parsed["dags"]["run_arm"]


def test_every_dag_is_imported_without_an_error(parsed):
    assert parsed["errors"] == {}
    files = {path.stem for path in (CHECKOUT / "dags").glob("*.py")}
    assert set(parsed["dags"]) == files


def test_parsing_does_no_work(parsed):
    assert parsed["seconds"] < 10  # on a loaded machine; the file itself takes a tenth of a second
    stages = [name for name in parsed["modules"] if name.startswith("tasks.stages.")]
    assert stages == [], "stages are imported when they run, not when Airflow parses"
    assert "tasks.database" not in parsed["modules"]


def test_the_stages_follow_each_other(run_arm):
    order = ["claim", *WORK, *AFTER]
    assert set(run_arm["tasks"]) == set(order)
    for before, after in pairwise(order):
        assert before in run_arm["tasks"][after]["upstream"]


def test_claim_is_the_setup_and_what_frees_and_stores_are_its_teardowns(run_arm):
    tasks = run_arm["tasks"]
    assert [name for name in tasks if tasks[name]["is_setup"]] == ["claim"]
    assert {name for name in tasks if tasks[name]["is_teardown"]} == set(AFTER)
    assert all("claim" in tasks[name]["upstream"] for name in AFTER)
    assert [name for name in tasks if tasks[name]["decides"]] == ["judge"]


def test_only_stages_that_are_safe_to_repeat_are_retried(run_arm):
    assert {name for name, task in run_arm["tasks"].items() if task["retries"]} == set(AFTER)


def test_every_stage_is_bounded_in_time_and_the_run_is_not(run_arm):
    """After dagrun_timeout no teardown runs; a claim may wait for a slot for days."""
    assert run_arm["dagrun_timeout"] is None
    unbounded = [name for name, task in run_arm["tasks"].items() if task["timeout_s"] is None]
    assert unbounded == ["claim"]


def test_nothing_runs_by_itself(run_arm):
    assert run_arm["schedule"] is None
    assert run_arm["catchup"] is False


def test_the_form_offers_what_the_folders_hold(run_arm):
    deploy = CHECKOUT / "deploy"
    held = {
        "arm": sorted(path.stem for path in (deploy / "arms").glob("*.yaml")),
        "plan": sorted(path.stem for path in (deploy / "plans").glob("*.yaml")),
        "target": sorted(path.parent.name for path in (deploy / "targets").glob("*/target.yaml")),
    }
    assert {name: run_arm["params"][name]["enum"] for name in held} == held
    assert run_arm["params"]["repeat"]["minimum"] == 1
    assert run_arm["defaults"] == {"arm": "cpu-baseline", "target": "local-cpu", "plan": "demo", "repeat": 1}
