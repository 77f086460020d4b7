"""run_arm through the real scheduler, triggerer and API server, on the stand-in engine and a real Postgres.

One stack for the whole file: it takes half a minute to start. The last tests kill and stop it, so the order matters.
What became of a run is asked of Airflow's API, of Postgres and of the machine itself, never of the DAG's own code.
"""

import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import yaml
from conftest import CHECKOUT, PLAN, TARGET, reachable_folder, write_yaml
from lifecycle import armwise, living, until

from tasks import artifact, database, run
from tasks.stack import local, process
from tasks.stack.api import Airflow, ApiFault
from tasks.stages.claim import run_id

pytestmark = [pytest.mark.services, pytest.mark.timeout(600)]

DAG = "run_arm"
RUN_WITHIN_S = 240
BUDGET = PLAN["budget"] | {"drive_s": 120, "grace_s": 30}  # between two tasks a loaded machine is silent for a while
SMOKE = PLAN | {"budget": BUDGET}
LONG = SMOKE | {"tiers": {**PLAN["tiers"], "agent": {"levels": [{"users": 2, "duration_s": 60}], "drain_s": 5}}}


@dataclass(frozen=True)
class Stack:
    home: Path
    client: Airflow

    def start(self, arm: str = "cpu-baseline", plan: str = "smoke") -> str:
        return self.client.trigger(DAG, {"arm": arm, "target": "stand-in", "plan": plan})

    def folder(self, dag_run: str, arm: str = "cpu-baseline") -> Path:
        return run.attempts(run_id(arm, dag_run))[-1]

    def until_task(self, dag_run: str, task: str, state: str) -> None:
        def reached() -> bool:
            return self.client.tasks(DAG, dag_run).get(task) == state

        until(reached, within_s=RUN_WITHIN_S)

    def ended(self, dag_run: str) -> str:
        return self.client.wait(DAG, dag_run, within_s=RUN_WITHIN_S)

    def states(self, dag_run: str) -> dict[str, str | None]:
        return self.client.tasks(DAG, dag_run)

    def clear(self, dag_run: str, task: str, *, downstream: bool) -> list[str]:
        body = {"dag_run_id": dag_run, "task_ids": [task], "include_downstream": downstream}
        cleared = self.client.call(
            "POST", f"/dags/{DAG}/clearTaskInstances", body | {"dry_run": False, "only_failed": False}
        )
        return [one["task_id"] for one in cleared["task_instances"]]

    def mark_failed(self, dag_run: str) -> None:
        self.client.call("PATCH", f"/dags/{DAG}/dagRuns/{dag_run}", {"state": "failed"})


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with pytest.MonkeyPatch.context() as patch, reachable_folder() as folder:
        patch.setenv("ARMWISE_HOME", str(folder / "home"))
        patch.setenv("ARMWISE_ROOT", str(checkout_of_its_own(folder / "root")))
        for name in ("ARMWISE_DB_URL", "ARMWISE_AIRFLOW_DB_URL", "ARMWISE_GATEWAY_URL"):
            patch.delenv(name, raising=False)
        address = local.up(port=local.free_port())
        yield Stack(address.home, address.client())
        assert local.down() == []


def checkout_of_its_own(root: Path) -> Path:
    """Real DAGs, plugins, golden set, SQL and model; arms, plans and targets to which the tests add their own."""
    for name in ("arms", "plans", "prices", "slos", "targets", "expectations"):
        for path in (CHECKOUT / "deploy" / name).rglob("*.yaml"):
            write_yaml(root / path.relative_to(CHECKOUT), yaml.safe_load(path.read_text()))
    (root / "deploy" / "models").symlink_to(CHECKOUT / "deploy" / "models")
    for name in ("dags", "plugins", "golden_set", "sql"):
        (root / name).symlink_to(CHECKOUT / name)
    write_yaml(root / "deploy" / "targets" / "stand-in" / "target.yaml", TARGET)
    write_yaml(root / "deploy" / "plans" / "smoke.yaml", SMOKE)
    write_yaml(root / "deploy" / "plans" / "long.yaml", LONG)
    wrong = yaml.safe_load((CHECKOUT / "deploy" / "arms" / "cpu-baseline.yaml").read_text())
    wrong["env"] = wrong.get("env", {}) | {"STAND_IN_FAULT": "wrong_answers"}
    write_yaml(root / "deploy" / "arms" / "wrong.yaml", wrong)
    return root


def rows(table: str, run_dir: Path, columns: str = "count(*)") -> Any:
    """From Postgres, of this very attempt."""
    import sqlalchemy

    asked = sqlalchemy.text(f"select {columns} from {table} where run_id = :run and attempt = :attempt")
    with database.engine().connect() as connection:
        return connection.execute(asked, {"run": run_dir.parent.name, "attempt": int(run_dir.name)}).first()


def is_freed(run_dir: Path) -> bool:
    return living(run_dir) == [] and artifact.read(run_dir / "lease.json")["given_back_at"] is not None


@pytest.fixture(scope="module")
def good(stack: Stack) -> str:
    """A run that nothing happened to."""
    dag_run = stack.start()
    stack.ended(dag_run)
    return dag_run


def test_a_good_run_is_green_and_stored(stack, good):
    assert set(stack.states(good).values()) == {"success"}, stack.states(good)
    assert stack.client.state(DAG, good) == "success"
    folder = stack.folder(good)
    for table in ("run", "phase", "golden", "request", "agent_task", "engine_sample", "percentile", "cost"):
        assert rows(table, folder)[0] > 0, f"no rows in {table}"
    assert {tier for tier in ("gateway", "agent") if list((folder / tier).glob("requests.*"))} == {"gateway", "agent"}
    assert is_freed(folder)


def test_only_the_path_of_the_run_folder_travels_between_tasks(stack, good):
    assert stack.client.xcom(DAG, good, "claim") == str(stack.folder(good))
    assert [task for task in stack.states(good) if stack.client.xcom(DAG, good, task) is not None] == ["claim"]


def test_each_task_links_to_the_page_of_its_run(stack, good):
    path = f"/dags/{DAG}/dagRuns/{good}/taskInstances/gate/links"
    link = stack.client.call("GET", path)["extra_links"]["armwise run"]
    login = {"Authorization": f"Bearer {stack.client._token}"}
    page = httpx.get(stack.client.url + link, headers=login, follow_redirects=True, timeout=30)
    assert page.status_code == 200
    assert stack.folder(good).parent.name in page.text
    assert httpx.get(stack.client.url + link, timeout=30).status_code == 401, "served to one who has not logged in"


@pytest.mark.parametrize("path", ["%2e%2e/stack.json", "..%2f..%2f..%2f..%2f..%2fetc%2fpasswd", "%2fetc%2fpasswd"])
def test_pages_serve_nothing_outside_the_run_folders(stack, good, path):
    login = {"Authorization": f"Bearer {stack.client._token}"}
    assert httpx.get(f"{stack.client.url}/armwise/runs/{path}", headers=login, timeout=30).status_code == 404


def test_pages_never_serve_a_key(stack, good):
    folder = stack.folder(good)
    (folder / "engine.key").write_text("secret")
    login = {"Authorization": f"Bearer {stack.client._token}"}
    base = f"{stack.client.url}/armwise/runs/{folder.parent.name}/{folder.name}"
    assert httpx.get(f"{base}/run.json", headers=login, timeout=30).status_code == 200
    assert httpx.get(f"{base}/engine.key", headers=login, timeout=30).status_code == 404
    assert "engine.key" not in httpx.get(base, headers=login, timeout=30).text


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ({"arm": "nope"}, r"param arm: 'nope' is not one of \[.*'cpu-baseline'"),
        ({"target": "mars"}, r"param target: 'mars' is not one of"),
        ({"plan": "nope"}, r"param plan: 'nope' is not one of"),
        ({"repeat": 0}, r"param repeat: 0 is less than the minimum of 1"),
        ({"repeat": "two"}, r"param repeat: 'two' is not of type 'integer'"),
    ],
)
def test_a_bad_value_in_the_form_is_refused_in_words(stack, form, said):
    with pytest.raises(ApiFault, match=said):
        stack.client.trigger(DAG, {"target": "stand-in", "plan": "smoke"} | form)


def test_a_field_that_the_form_does_not_have_fails_the_claim_in_words(stack):
    dag_run = stack.client.trigger(DAG, {"target": "stand-in", "plan": "smoke", "taget": "x"})
    assert stack.ended(dag_run) == "failed"
    assert "no field taget in the form" in stack.client.log(DAG, dag_run, "claim")


def test_a_gate_that_fails_skips_the_load_and_is_stored(stack):
    dag_run = stack.start("wrong")
    assert stack.ended(dag_run) == "success", "what the gate found is a row, not a fault of the pipeline"
    states, folder = stack.states(dag_run), stack.folder(dag_run, "wrong")
    assert [name for name, state in states.items() if state != "success"] == ["drive_gateway", "drive_agent"]
    assert {states["drive_gateway"], states["drive_agent"]} == {"skipped"}
    assert artifact.read(folder / "gate.json")["verdict"] == "FAIL"
    assert rows("golden", folder)[0] > 0
    assert rows("request", folder)[0] == 0
    assert is_freed(folder)


def test_an_engine_killed_in_the_middle_of_a_tier_fails_the_run_and_stores_what_there_was(stack):
    dag_run = stack.start(plan="long")
    folder = in_the_middle_of_the_agent_tier(stack, dag_run)
    psutil.Process(artifact.read(folder / "deployment.json")["engine_pid"]).kill()
    assert stack.ended(dag_run) == "failed"
    states = stack.states(dag_run)
    assert states["drive_agent"] == "failed"
    assert all(states[task] == "success" for task in ("release", "validate", "load"))
    assert rows("request", folder)[0] > 0
    assert rows("agent_task", folder)[0] > 0
    assert "this run failed in drive_agent" in stack.client.log(DAG, dag_run, "judge")
    assert is_freed(folder)


def test_a_second_run_waits_without_a_worker_and_shows_its_place_and_a_person_may_stop_the_first(stack):
    first = stack.start(plan="long")
    folder = in_the_middle_of_the_agent_tier(stack, first)
    second = stack.start("cpu-no-prefix-caching")
    stack.until_task(second, "claim", "deferred")
    assert "place 1 in the queue" in stack.client.log(DAG, second, "claim")

    stack.mark_failed(first)
    stack.until_task(first, "judge", "failed")
    assert stack.ended(first) == "failed"
    assert stack.states(first)["load"] == "success"
    assert rows("request", folder)[0] > 0
    assert is_freed(folder)

    assert stack.ended(second) == "success"
    given_back = artifact.read(folder / "lease.json")["given_back_at"]
    assert artifact.read(stack.folder(second, "cpu-no-prefix-caching") / "lease.json")["acquired_at"] >= given_back


def test_clearing_any_task_works_or_says_clear_from_deploy(stack, good):
    cleared = stack.clear(good, "verify", downstream=False)
    assert {"claim", "verify", "release", "judge"} <= set(cleared)
    assert "deploy" not in cleared
    assert stack.ended(good) == "failed"
    assert "clear from deploy" in stack.client.log(DAG, good, "verify", 2)

    stack.clear(good, "claim", downstream=False)
    assert stack.ended(good) == "failed", "green, although this attempt never had an engine"

    stack.clear(good, "deploy", downstream=True)
    assert stack.ended(good) == "success"
    assert stack.folder(good).name == "4"
    assert rows("request", stack.folder(good))[0] > 0

    for task in ("load", "judge"):
        before = rows("request", stack.folder(good))[0]
        assert stack.clear(good, task, downstream=False) == [task]
        assert stack.ended(good) == "success"
        assert rows("request", stack.folder(good))[0] == before


def test_a_run_outlives_the_death_of_all_of_airflow_as_a_failed_run_with_its_rows(stack):
    dag_run = stack.start(plan="long")
    folder = in_the_middle_of_the_agent_tier(stack, dag_run)
    lease = artifact.read(folder / "lease.json")
    killed = [p for p in process.members(stack.home) if is_of_airflow(p)]
    assert len(killed) > 5
    for one in killed:
        one.kill()
    began = time.time()
    until(lambda: living(folder) == [], within_s=lease["grace_s"] + 20)
    assert time.time() < lease["expires_at"]
    print(f"the engine was gone {time.time() - began:.1f} s after Airflow, grace {lease['grace_s']} s")

    assert local.up().airflow == stack.client.url
    assert stack.ended(dag_run) == "failed"
    assert stack.states(dag_run)["load"] == "success"
    assert rows("request", folder)[0] > 0
    assert is_freed(folder)


def test_down_in_the_middle_of_a_run_leaves_nothing_and_the_run_is_stored_after_the_next_up(stack):
    dag_run = stack.start(plan="long")
    folder = in_the_middle_of_the_agent_tier(stack, dag_run)
    assert local.down() == []
    assert living(folder) == []
    assert process.members(stack.home) == []
    assert local.down() == []

    assert local.up().airflow == stack.client.url
    assert stack.ended(dag_run) == "failed"
    assert rows("request", folder)[0] > 0


def test_a_demo_that_ctrl_c_stops_stores_what_there_was_and_leaves_nothing_running(stack):
    assert local.down() == []
    said: list[str] = []
    with armwise("demo", "--target", "stand-in", "--plan", "long") as demo:
        for line in demo.stdout:
            if "cpu-baseline: drive_agent: level 1/1" in line and not any("drive_agent: level" in one for one in said):
                demo.send_signal(signal.SIGINT)
            said.append(line)
        assert demo.wait(timeout=60) == 130, "".join(said)
    assert process.members(stack.home) == []
    folder = run.attempts(next(line.split()[-1] for line in said if line.startswith("cpu-baseline: asked for")))[-1]
    assert is_freed(folder)
    assert [artifact.read(path)["state"] for path in (folder / "phases").glob("load.*.json")] == ["done"]


def in_the_middle_of_the_agent_tier(stack: Stack, dag_run: str) -> Path:
    """Wait until agent tasks have ended and others are under way."""
    stack.until_task(dag_run, "drive_agent", "running")
    folder = stack.folder(dag_run)
    until(lambda: len(artifact.read_rows(folder / "agent" / "tasks.jsonl")) > 5, within_s=60)
    return folder


def is_of_airflow(one: psutil.Process) -> bool:
    """Its parts, workers and tasks by their command lines; not the engine, its supervisor, the load or the gateway."""
    try:
        return "airflow" in " ".join(one.cmdline()) or "airflow" in one.name()
    except psutil.Error:
        return False
