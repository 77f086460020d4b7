"""Airflow's public REST API, as much of it as `armwise demo` and the tests need. Timeouts in seconds.

Every fault is ApiFault in words: what was asked, the status, and Airflow's own detail (which names the param and the
allowed values when a trigger form is filled in wrongly).
"""

import time
from dataclasses import dataclass, field
from typing import Any

import httpx

from tasks.stack import StackFailed

ENDED = ("success", "failed")


class ApiFault(StackFailed):
    """A call that Airflow refused or did not answer."""


@dataclass
class Airflow:
    """One API server and a login. The token is fetched on the first call and after it expired."""

    url: str
    user: str
    password: str
    _token: str = field(default="", repr=False)

    def call(self, method: str, path: str, body: Any = None, *, timeout_s: float = 30) -> Any:
        """One call below /api/v2. Returns the parsed answer. Raises ApiFault."""
        self._token = self._token or self._login(timeout_s)
        answer = self._send(method, path, body, timeout_s)
        if answer.status_code == 401:
            self._token = self._login(timeout_s)
            answer = self._send(method, path, body, timeout_s)
        if answer.is_error:
            raise ApiFault(f"{method} {path}: {answer.status_code}: {_detail(answer)}")
        return answer.json() if answer.content else None

    def trigger(self, dag_id: str, conf: dict[str, Any]) -> str:
        """Start a DAG run with the values of its form. Returns its id. Raises ApiFault for a bad value."""
        body = {"logical_date": None, "conf": conf}
        return str(self.call("POST", f"/dags/{dag_id}/dagRuns", body)["dag_run_id"])

    def state(self, dag_id: str, run_id: str) -> str:
        """State of a DAG run: queued, running, success, failed."""
        return str(self.call("GET", f"/dags/{dag_id}/dagRuns/{run_id}")["state"])

    def tasks(self, dag_id: str, run_id: str) -> dict[str, str | None]:
        """Task id -> state (None: not yet scheduled)."""
        found = self.call("GET", f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances?limit=100")["task_instances"]
        return {task["task_id"]: task["state"] for task in found}

    def xcom(self, dag_id: str, run_id: str, task_id: str) -> Any:
        """What a task returned, or None while it has not."""
        try:
            path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/xcomEntries/return_value"
            return self.call("GET", path)["value"]
        except ApiFault as fault:
            if ": 404: " in str(fault):
                return None
            raise

    def log(self, dag_id: str, run_id: str, task_id: str, try_number: int = 1) -> str:
        """The log of one try of a task, one line per event."""
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/logs/{try_number}?full_content=true"
        lines = self.call("GET", path)["content"]
        return "\n".join(_event(line) for line in lines)

    def wait(self, dag_id: str, run_id: str, *, within_s: float) -> str:
        """Wait until a DAG run has ended; returns its state. Raises ApiFault with the task states if it does not."""
        deadline = time.monotonic() + within_s
        while (state := self.state(dag_id, run_id)) not in ENDED:
            if time.monotonic() > deadline:
                raise ApiFault(f"{run_id}: still {state} after {within_s:.0f} s: {self.tasks(dag_id, run_id)}")
            time.sleep(1)
        return state

    def _login(self, timeout_s: float) -> str:
        body = {"username": self.user, "password": self.password}
        try:
            answer = httpx.post(f"{self.url}/auth/token", json=body, timeout=timeout_s)
        except httpx.HTTPError as error:
            raise ApiFault(f"{self.url}: no answer to the login: {error or type(error).__name__}") from error
        if answer.is_error:
            raise ApiFault(f"{self.url}: login as {self.user}: {answer.status_code}: {_detail(answer)}")
        return str(answer.json()["access_token"])

    def _send(self, method: str, path: str, body: Any, timeout_s: float) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self._token}"}
        try:
            return httpx.request(method, f"{self.url}/api/v2{path}", json=body, headers=headers, timeout=timeout_s)
        except httpx.HTTPError as error:
            raise ApiFault(f"{method} {path}: no answer: {error or type(error).__name__}") from error


def _event(line: Any) -> str:
    if not isinstance(line, dict):
        return str(line)
    faults = [f"{fault['exc_type']}: {fault['exc_value']}" for fault in line.get("error_detail") or ()]
    return "\n".join([str(line.get("event", line)), *faults])


def _detail(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["detail"])
    except (ValueError, KeyError, TypeError):
        return answer.text[:300]
