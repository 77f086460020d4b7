"""The demonstration: up, two runs of two arms through Airflow's API, their progress, their comparison, down."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from tasks import artifact, settings
from tasks import run as runs
from tasks.stack import StackFailed, local
from tasks.stack.api import ENDED, Airflow
from tasks.stack.follow import Tail
from tasks.stage import Stopped
from tasks.stages.claim import run_id

DAG = "run_arm"
LOOK_EVERY_S = 2.0
CLAIMED_WITHIN_S = 120.0
WITHIN_S = 1800.0  # both runs; far beyond the plan's own budgets
STOPPED_WITHIN_S = 120.0


@dataclass
class Started:
    """One of the runs, on its way."""

    arm: str
    dag_run: str
    state: str = "queued"

    @property
    def run_id(self) -> str:
        return run_id(self.arm, self.dag_run)

    @property
    def folder(self) -> Path | None:
        """Of its last attempt; None before it has a slot."""
        attempts = runs.attempts(self.run_id)
        return attempts[-1] if attempts else None


def show(control: str, arm: str, *, target: str, plan: str) -> int:
    """The whole of it. Returns the exit code: 0 if both runs succeeded, are valid and passed the gate."""
    was_up, faults = local.running() is not None, ["it did not get to its end"]
    with _signals():
        try:
            address = local.up()
            client = address.client()
            print(f"watch it at {address.airflow} as {client.user}, password {client.password}", flush=True)
            started = _run(client, (control, arm), target, plan)
            faults = [fault for one in started for fault in _faults(one)]
            _print_reports(started)
        finally:
            _ignore_signals()
            left = [] if was_up else local.down()
    faults += [f"CANNOT BE STOPPED {words}" for words in left]
    for fault in faults:
        print(f"demo: {fault}")
    print(f"demo: {'FAILED' if faults else 'both runs succeeded, are valid and passed the gate'}", flush=True)
    return 1 if faults else 0


def _run(client: Airflow, arms: tuple[str, ...], target: str, plan: str) -> list[Started]:
    """Ask for all runs, each as soon as the one before has its place, and follow them to their ends."""
    started: list[Started] = []
    try:
        for arm in arms:
            dag_run = client.trigger(DAG, {"arm": arm, "target": target, "plan": plan, "repeat": 1})
            started.append(Started(arm, dag_run))
            print(f"{arm}: asked for, run {started[-1].run_id}", flush=True)
            if arm != arms[-1]:
                _until_claimed(client, started[-1])
        _follow(client, started)
    except BaseException:
        _stop(client, started)
        raise
    return started


def _until_claimed(client: Airflow, one: Started) -> None:
    """So that the arms run in the order in which they were asked for."""
    deadline = time.monotonic() + CLAIMED_WITHIN_S
    while one.folder is None and client.state(DAG, one.dag_run) not in ENDED:
        if time.monotonic() > deadline:
            raise StackFailed(f"{one.arm}: no slot after {CLAIMED_WITHIN_S:g} s: {client.tasks(DAG, one.dag_run)}")
        time.sleep(0.5)


def _follow(client: Airflow, started: list[Started]) -> None:
    """Print what their tasks print until all have ended. Looks rarely: the machine is measuring."""
    began, logs = time.monotonic(), settings.home() / "logs" / "airflow"
    tails = {one.arm: Tail(logs, DAG, one.dag_run) for one in started}
    while any(one.state not in ENDED for one in started):
        for one in started:
            if one.state in ENDED:
                continue
            state = client.state(DAG, one.dag_run)
            for _task, line in tails[one.arm].news():
                print(f"[{_clock(time.monotonic() - began)}] {one.arm}: {line}", flush=True)
            if state in ENDED:
                print(f"[{_clock(time.monotonic() - began)}] {one.arm}: run {one.run_id}: {state}", flush=True)
            one.state = state
        if time.monotonic() - began > WITHIN_S:
            raise StackFailed(f"the runs have not ended after {WITHIN_S:g} s")
        time.sleep(LOOK_EVERY_S)


def _faults(one: Started) -> list[str]:
    """Why this run is not one to show, in words."""
    if one.folder is None:
        return [f"{one.arm}: {one.state}: it never had a slot"]
    gate, validation = (_content(one.folder / name) for name in ("gate.json", "validation.json"))
    reasons = validation.get("reasons", ["never validated"])
    found = [] if one.state == "success" else [f"{one.arm}: its run ended as {one.state}"]
    if gate.get("verdict") != "PASS":
        found.append(f"{one.arm}: gate {gate.get('verdict', 'never judged')}: {gate.get('reason', '')}")
    if validation.get("is_valid") is not True:
        found.append(f"{one.arm}: not valid: {'; '.join(reasons)}")
    return found


def _print_reports(started: list[Started]) -> None:
    from tasks.commands.compare import compare
    from tasks.commands.report import report

    stored = [one.run_id for one in started if one.folder is not None]
    for name in stored:
        report(name)
    if len(stored) == len(started):
        compare(*stored)


def _stop(client: Airflow, started: list[Started]) -> None:
    """Like a person who marks them failed: they release and store what there is. A second Ctrl-C does not wait."""
    print("stopping the runs; what was measured is stored", flush=True)
    for one in started:
        if client.state(DAG, one.dag_run) not in ENDED:
            client.call("PATCH", f"/dags/{DAG}/dagRuns/{one.dag_run}", {"state": "failed"})
    deadline = time.monotonic() + STOPPED_WITHIN_S
    while time.monotonic() < deadline:
        if all(_at_rest(client, one) for one in started):
            return
        time.sleep(1)


def _at_rest(client: Airflow, one: Started) -> bool:
    working = {"queued", "scheduled", "running", "restarting", "up_for_retry", "deferred"}
    return client.state(DAG, one.dag_run) in ENDED and not working & set(client.tasks(DAG, one.dag_run).values())


def _content(path: Path) -> dict[str, Any]:
    return artifact.read(path) if path.exists() else {}


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60:02d}:{int(seconds) % 60:02d}"


@contextmanager
def _signals() -> Iterator[None]:
    """SIGTERM unwinds like Ctrl-C; both are as they were afterwards."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise Stopped("stopped by SIGTERM")

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _ignore_signals() -> None:
    """From here on nothing keeps `down` from its end: it takes seconds and is bounded."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
