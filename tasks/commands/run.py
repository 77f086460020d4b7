"""`armwise run`

All stages in order, without Airflow. Whatever happens to the others, release, validate, load and judge are carried out:
a signal that arrives while they work is noted, and obeyed when the machine is free and the run is stored. A second one
skips what is left of storing, but never the release.

Exit code: 0 the pipeline worked (what it found is in the report), 1 a stage failed (judge does where the plan's
`fail_on` holds), 2 wrong input or no slot, 130 Ctrl-C, 143 SIGTERM.
"""

import secrets
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import typer

from tasks import lease, stage

ASK_EVERY_S = 2.0
WORK = tuple(name for name in stage.ORDER[1:] if name not in stage.AFTER_RELEASE)
Signals = list[int]


def run(
    arm: str = typer.Argument(help="An arm: a file in deploy/arms"),
    target: str = typer.Option("local-cpu", help="Where: a folder in deploy/targets"),
    plan: str = typer.Option("standard", help="What is measured: a file in deploy/plans"),
    repeat: int = typer.Option(1, help="Index of this repetition"),
    wait: float = typer.Option(0, help="Seconds to wait for a slot that another run holds"),
) -> None:
    """Run one arm through all stages on this machine: claim, deploy, verify, gate, drive, release, store, judge."""
    signals: Signals = []
    run_dir = failure = None
    try:
        with _on_signals((signal.SIGTERM,), _raise_stopped):
            run_dir = _claim(arm, target, plan, repeat, wait)
            print(f"run folder: {run_dir}", flush=True)
            failure = _work(run_dir, signals)
    except (KeyboardInterrupt, stage.Stopped) as error:
        _note(error, signals)
    if run_dir is None:
        raise typer.Exit(128 + signals[0])
    with _on_signals((signal.SIGTERM, signal.SIGINT), lambda number, _frame: signals.append(number)):
        storing = _after(run_dir, signals)
    failure = failure or storing
    _say_end(run_dir, failure)
    raise typer.Exit(128 + signals[0] if signals else 1 if failure else 0)


def _claim(arm: str, target: str, plan: str, repeat: int, wait_s: float) -> Path:
    """Take a slot, or wait for one. Raises SlotBusy with the last answer."""
    from tasks.stages.claim import claim

    key = f"armwise run {secrets.token_hex(8)}" if wait_s > 0 else None
    deadline, said = time.monotonic() + wait_s, ""
    while True:
        try:
            return claim(arm=arm, target=target, plan=plan, repeat=repeat, key=key)
        except lease.SlotBusy as busy:
            if time.monotonic() > deadline:
                hint = "" if wait_s > 0 else ". To wait for it: --wait SECONDS"
                raise lease.SlotBusy(f"{busy}{hint}") from None
            if str(busy) != said:
                said = str(busy)
                print(f"waiting: {said}", flush=True)
            time.sleep(ASK_EVERY_S)


def _work(run_dir: Path, signals: Signals) -> str | None:
    """The stages up to the release. Returns the failure that ended them, in words."""
    for name in WORK:
        because = stage.skipped(name, run_dir)
        if because:
            print(f"{name}: skipped: {because}", flush=True)
            continue
        failure = _perform(name, run_dir, signals)
        if failure:
            return failure
    return None


def _after(run_dir: Path, signals: Signals) -> str | None:
    """Release, and store what there is. Returns the first failure."""
    failures = []
    for name in stage.AFTER_RELEASE:
        if len(signals) > 1 and name != "release":
            print(f"{name}: skipped, told twice to stop; later: armwise stage {name} {run_dir}", flush=True)
        elif lacks := _missing().get(name):
            print(f"{name}: skipped, {lacks}; where there is one: armwise load {run_dir}", flush=True)
        else:
            failures.append(_to_its_end(name, run_dir, signals))
    return next((failure for failure in failures if failure), None)


def _to_its_end(name: str, run_dir: Path, signals: Signals) -> str | None:
    """A stage after the work: broken off by a signal, it is begun again, unless the signal was not the first."""
    while True:
        heard = len(signals)
        failure = _perform(name, run_dir, signals)
        if len(signals) == heard or (len(signals) > 1 and name != "release"):
            return failure


def _perform(name: str, run_dir: Path, signals: Signals) -> str | None:
    """One stage, its begin and end said. Returns its failure in words."""
    print(f"{name} ...", flush=True)
    began = time.monotonic()
    try:
        stage.perform(name, run_dir)
    except (KeyboardInterrupt, stage.Stopped) as error:
        _note(error, signals)
        print(f"{name}: stopped after {time.monotonic() - began:.1f} s", flush=True)
        return f"{name}: {error or 'stopped by Ctrl-C'}"
    except Exception as error:  # noqa: BLE001 (any fault of a stage must still lead to the release)
        words = str(error) or type(error).__name__
        print(f"{name}: FAILED after {time.monotonic() - began:.1f} s: {words}", flush=True)
        return f"{name}: {words}"
    print(f"{name}: done in {time.monotonic() - began:.1f} s", flush=True)
    return None


def _say_end(run_dir: Path, failure: str | None) -> None:
    if failure:
        print(f"this run FAILED: {failure}", flush=True)
    print(f"run folder: {run_dir}")
    next_step = f"armwise report {run_dir.parent.name}" if _has_database() else f"armwise load {run_dir}"
    print(f"next: {next_step}", flush=True)


def _missing() -> dict[str, str]:
    """Stages that this machine lacks something for (a GPU host has no orchestrator packages), and what."""
    from importlib.util import find_spec

    missing = {} if _has_database() else {"load": "no database here"}
    if find_spec("great_expectations") is None:
        missing |= dict.fromkeys(("validate", "judge"), "no Great Expectations here")
    return missing


def _has_database() -> bool:
    from tasks import database

    return database.available()


def _note(error: BaseException, signals: Signals) -> None:
    signals.append(signal.SIGINT if isinstance(error, KeyboardInterrupt) else signal.SIGTERM)


def _raise_stopped(_number: int, _frame: FrameType | None) -> None:
    raise stage.Stopped("stopped by SIGTERM")


@contextmanager
def _on_signals(numbers: tuple[signal.Signals, ...], handler: Callable[[int, FrameType | None], Any]) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
