"""How a stage is carried out, by the DAG, the command line and the tests alike.

`perform(stage, run_dir)` calls the function of the same name in tasks/stages, keeps the lease alive while it works, and
leaves phases/<stage>.json: when it began and ended, and how. Stages that touch the engine refuse to work without a live
lease of their own attempt. A stage whose output exists does nothing.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from tasks import artifact, catalog, lease, run, stages

ORDER = ("claim", "deploy", "verify", "gate", "drive_gateway", "drive_agent", "release", "validate", "load", "judge")
NEEDS_LEASE = frozenset({"deploy", "verify", "gate", "drive_gateway", "drive_agent"})
AFTER_RELEASE = ("release", "validate", "load", "judge")  # done whatever became of the others


class StageFailed(RuntimeError):
    """A stage that could not do its work; the message is one a person can act on."""


class Stopped(BaseException):
    """SIGTERM arrived: unwinds like Ctrl-C, so that every `finally` runs."""


def function(name: str) -> Callable[[Path], Path]:
    """The function of a stage. drive_gateway and drive_agent are drive, once per tier. Raises UnknownName."""
    known = [*ORDER[1:]]
    if name not in known:
        raise catalog.UnknownName(f"no stage '{name}'; known: {', '.join(known)}")
    module, _, tier = name.partition("_")
    work = getattr(catalog.module_of(stages, module), module)
    return (lambda folder: work(folder, tier)) if tier else work


def perform(name: str, run_dir: Path) -> Path:
    """Carry out one stage. Raises LeaseLost, StageFailed, BrokenArtifact and what the stage raises."""
    work = function(name)
    if name not in NEEDS_LEASE:
        with _stop_on_sigterm(), _phase(name, run_dir):
            return work(run_dir)
    if (run_dir / "release.json").exists():
        lease.check(run_dir)  # an attempt that has ended, and may be stored: refused without a trace in its folder
    with _stop_on_sigterm(), _phase(name, run_dir):
        return _on_the_slot(name, work, run_dir)


def _on_the_slot(name: str, work: Callable[[Path], Path], run_dir: Path) -> Path:
    """A stage that touches the engine: with a live lease before, during and after."""
    lease.check(run_dir)
    if name != "deploy" and not (run_dir / "deployment.json").exists():
        raise StageFailed(
            f"{run_dir}: this attempt has no deployment; deploy comes first (in Airflow, clear from deploy)"
        )
    with lease.kept_alive(run_dir):
        try:
            output = work(run_dir)
        except Exception as error:
            if lost := lease.lost(run_dir):
                raise lost from error
            raise
    lease.check(run_dir)  # work that outlived its lease was done on a machine that may be another run's
    return output


def skipped(name: str, run_dir: Path) -> str | None:
    """Why a stage has nothing to do in this run, in words; None: it has. A gate that did not pass skips the load."""
    if not name.startswith("drive_") or run.read(run_dir).plan.gate.none_because:
        return None
    if not (run_dir / "gate.json").exists():
        return None  # not even gated: the stage refuses in its own words
    gate = artifact.read(run_dir / "gate.json")
    return None if gate["verdict"] == "PASS" else f"the gate said {gate['verdict']}: {gate['reason']}"


def done(name: str, run_dir: Path) -> bool:
    """Did this stage work to its end in this very attempt?"""
    notes = (artifact.read(path) for path in (run_dir / "phases").glob(f"{name}.*.json"))
    return any(note["state"] == "done" for note in notes)


def failure(run_dir: Path, states: Mapping[str, str | None]) -> str | None:
    """Why a run is no success, from the states that Airflow has of its stages; None: it is one."""
    failed = [name for name in ORDER if states.get(name) in ("failed", "upstream_failed")]
    if failed:
        return f"this run failed in {failed[0]}; all that did not work: {', '.join(failed)}"
    worked = [name for name in ORDER if name in NEEDS_LEASE and states.get(name) == "success"]
    earlier = [name for name in worked if not done(name, run_dir)]
    return f"{', '.join(earlier)} worked on an earlier attempt: clear from deploy" if earlier else None


@contextmanager
def _phase(name: str, run_dir: Path) -> Iterator[None]:
    """Note the stage's times and end. A later try of the same stage in the same attempt is noted beside the first."""
    began = time.time()
    begun: dict[str, Any] = {"stage": name, "began_at": began, "pid": os.getpid()}
    try:
        yield
    except BaseException as error:
        note(run_dir, begun | {"ended_at": time.time(), "state": "failed", "error": _words(error)})
        raise
    note(run_dir, begun | {"ended_at": time.time(), "state": "done", "error": None})


def note(run_dir: Path, content: dict[str, Any]) -> None:
    """Store how a stage went, beside its earlier tries."""
    folder = run_dir / "phases"
    tries = len(list(folder.glob(f"{content['stage']}.*.json"))) if folder.exists() else 0
    artifact.write(folder / f"{content['stage']}.{tries + 1}.json", content)


def _words(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        return "stopped by Ctrl-C"
    return str(error) or type(error).__name__


@contextmanager
def _stop_on_sigterm() -> Iterator[None]:
    """Turn SIGTERM into an exception while a stage works, so that it unwinds. Only the main thread may."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise Stopped("stopped by SIGTERM")

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
