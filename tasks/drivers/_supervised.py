"""The supervisor as a driver or a stage sees it: start it, have it start something, stop it and all.

The two talk by files in the run folder's `processes/`: `<name>.json` asks for a process, `<name>.state.json` answers.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tasks
from tasks import artifact
from tasks.drivers import _processes
from tasks.stage import StageFailed

START_S = 30.0  # for the supervisor to be there; it takes a fifth of a second on an idle machine
STOP_S = 20.0  # its own 5 s after SIGTERM and 10 s after SIGKILL, and some
# An engine must not read settings that its arm does not declare, nor secrets that it has no use for.
KEPT_OUT = ("VLLM_", "AIRFLOW", "PYTHON", "VIRTUAL_ENV", "LOCUST_", "ARMWISE_DB_URL", "ARMWISE_GATEWAY_")
SECRET = ("_KEY", "_TOKEN", "_SECRET", "_PASSWORD", "_CREDENTIALS")
HANDED_ON = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")  # without them, gated models cannot be read


def start(run_dir: Path) -> None:
    """Start the run's supervisor, unless it runs. Raises StageFailed."""
    folder = run_dir / _processes.FOLDER
    if _processes.supervisors(run_dir):
        return
    folder.mkdir(exist_ok=True)
    for path in [*folder.glob("*.json"), run_dir / "supervisor.json"]:
        path.unlink(missing_ok=True)  # of an earlier try of the same attempt
    environment = inherited(os.environ) | {_processes.SUPERVISOR: str(run_dir.resolve())}
    with (run_dir / "supervisor.log").open("ab") as log:
        subprocess.run(  # it forks and leaves us at once
            [sys.executable, "-m", "tasks.drivers._supervisor", str(run_dir)],
            env=environment,
            cwd=package_folder(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            timeout=START_S,
            check=False,
        )
    if _appears(folder / "supervisor.json") is None:
        raise StageFailed(f"the supervisor did not start within {START_S:g} s; see {run_dir / 'supervisor.log'}")


def launch(
    run_dir: Path,
    name: str,
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    secrets: Mapping[str, str],
    log: str,
    cwd: Path,
) -> dict[str, Any]:
    """Have the supervisor start one process; `secrets` maps variables to files of the run folder. Returns its state.

    A process that could not even be started has exit_code 127 and `error`. Raises StageFailed if nobody answers.
    """
    folder = run_dir / _processes.FOLDER
    order = {
        "argv": list(argv),
        "env": dict(env),
        "secrets": dict(secrets),
        "log": str(run_dir / log),
        "cwd": str(cwd),
    }
    artifact.write(folder / f"{name}.json", order)
    found = _appears(folder / f"{name}.state.json")
    if found is None:
        why = run_dir / "supervisor.json"
        ended = f": {artifact.read(why)['why']}" if why.exists() else f"; see {run_dir / 'supervisor.log'}"
        raise StageFailed(f"the supervisor has not started the {name}{ended}")
    return found


def state(run_dir: Path, name: str) -> dict[str, Any]:
    """What became of a process: pid, started_at, exit_code and ended_at (None while it runs)."""
    return artifact.read(run_dir / _processes.FOLDER / f"{name}.state.json")


def stop(run_dir: Path) -> dict[str, list[str]]:
    """End every process of a run, and its supervisor, with or without its help. Idempotent; several may at once.

    Returns `freed` and `processes_left`, in words. Nothing left is the proof that a release needs.
    """
    began = [str(p) for p in (*_processes.of(run_dir), *_processes.supervisors(run_dir))]
    if not began:
        return {"freed": [], "processes_left": []}
    _processes.send(signal.SIGTERM, _processes.supervisors(run_dir))
    deadline = time.monotonic() + STOP_S
    while _processes.supervisors(run_dir) and time.monotonic() < deadline:
        time.sleep(0.1)
    _processes.send(signal.SIGKILL, _processes.supervisors(run_dir))
    stopped, _ = _processes.end(run_dir)
    left = [str(p) for p in (*_processes.of(run_dir), *_processes.supervisors(run_dir))]
    freed = [words for words in dict.fromkeys([*began, *map(str, stopped)]) if words not in left]
    return {"freed": freed, "processes_left": left}


def inherited(environment: Mapping[str, str]) -> dict[str, str]:
    """What a supervised process may have of our environment."""
    return {
        name: value
        for name, value in environment.items()
        if name in HANDED_ON or not (name.startswith(KEPT_OUT) or name.endswith(SECRET))
    }


def package_folder() -> Path:
    """Where `python -m tasks...` finds us, installed or not."""
    return Path(tasks.__path__[0]).parent


def _appears(path: Path) -> dict[str, Any] | None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if path.exists():
            return artifact.read(path)
        if (path.parent.parent / "supervisor.json").exists():
            return None  # it has ended already
        time.sleep(0.05)
    return None
