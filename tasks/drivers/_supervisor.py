"""The guard of a run's processes: `python -m tasks.drivers._supervisor RUN_DIR`. Works with everything else dead.

It detaches from whoever started it (a session of its own, no parent), so that SIGKILL of Airflow, the command line or
the shell leaves it alive. It starts what `processes/<name>.json` asks for, each in a process group of its own with
PR_SET_PDEATHSIG, and notes in `processes/<name>.state.json` its pid and how it ended. It reads lease.json a few times a
second; when the lease lapsed (expired, holder silent past its grace, given back), or on SIGTERM, it ends every process
of the run (tasks/drivers/_processes.py): SIGTERM, 5 s, SIGKILL. Then it writes `supervisor.json`: why, when, and what
is left.

If the supervisor itself is killed, the kernel kills what it started (PDEATHSIG), and its watcher, the process that
forked it and waits for it, inherits what those had started in turn, ends it and writes supervisor.json.

Only the standard library and our own few lines: it shares a machine with a measurement, and stays small and idle.
"""

import ctypes
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

from tasks import artifact, lease
from tasks.drivers import _processes

EVERY_S = 0.25
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
Children = dict[int, str]  # pid -> name


def main(run_dir: Path) -> None:
    """Detach; then watch a fork of ourselves that guards the run, and finish its work if it is killed."""
    if os.fork():
        os._exit(0)
    alone = (run_dir / _processes.FOLDER / "supervisor.lock").open("w")
    try:
        fcntl.flock(alone, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return  # another one guards this run
    _adopt_orphans()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it is for the guard, which ends well, and so do we
    guard = os.fork()
    if guard == 0:
        return _guard(run_dir)
    _, status = os.waitpid(guard, 0)
    if status != 0:
        why = "the supervisor was killed"
        _end_lease(run_dir, why)
        _end(run_dir, why, {})


def _guard(run_dir: Path) -> None:
    """Guard until there is a reason to stop; then end everything, and say how it ended."""
    _adopt_orphans()
    asked = _on_sigterm()
    children: Children = {}
    _write(run_dir / _processes.FOLDER / "supervisor.json", {"pid": os.getpid(), "started_at": time.time()})
    why = _serve(run_dir, asked, children)
    if not asked:
        _end_lease(run_dir, why)
    _end(run_dir, why, children)


def _serve(run_dir: Path, asked: list[str], children: Children) -> str:
    """Start what is asked for and note what ended, until there is a reason to stop. Returns the reason."""
    started = {"supervisor"}
    while True:
        _note_ended(run_dir, children)
        why = asked[0] if asked else lease.lapse(run_dir)
        if why:
            return why
        for path in sorted((run_dir / _processes.FOLDER).glob("*.json")):
            name = path.name.removesuffix(".json")
            if "." not in name and name not in started:
                started.add(name)
                _start(run_dir, name, children)
        time.sleep(EVERY_S)


def _start(run_dir: Path, name: str, children: Children) -> None:
    order = artifact.read(run_dir / _processes.FOLDER / f"{name}.json")
    environment = {k: v for k, v in os.environ.items() if k != _processes.SUPERVISOR} | order["env"]
    environment |= {key: (run_dir / file).read_text().strip() for key, file in order["secrets"].items()}
    state: dict[str, Any] = {"pid": None, "started_at": time.time(), "exit_code": None, "ended_at": None}
    try:
        with Path(order["log"]).open("ab") as log:
            child = subprocess.Popen(
                order["argv"],
                env=environment | _processes.marker(run_dir),
                cwd=order["cwd"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                process_group=0,
                preexec_fn=_die_with_parent(os.getpid()),
            )
    except (OSError, subprocess.SubprocessError) as error:
        _write(_state_path(run_dir, name), state | {"exit_code": 127, "ended_at": time.time(), "error": str(error)})
        return
    children[child.pid] = name
    child.returncode = 0  # waitpid below collects it; Popen must not
    _write(_state_path(run_dir, name), state | {"pid": child.pid, "pgid": child.pid, "sid": os.getsid(0)})


def _note_ended(run_dir: Path, children: Children) -> None:
    """Collect every child that ended, orphans of the engine included, and note how those that we started did."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        if pid in children:
            path = _state_path(run_dir, children.pop(pid))
            with suppress(artifact.BrokenArtifact):
                ended = {"exit_code": os.waitstatus_to_exitcode(status), "ended_at": time.time()}
                _write(path, artifact.read(path) | ended)


def _end(run_dir: Path, why: str, children: Children) -> None:
    """End every process of the run and store what came of it."""
    began = time.time()
    stopped, left = _processes.end(run_dir)
    _note_ended(run_dir, children)
    content = {
        "format": 1,
        "why": why,
        "began_at": began,
        "ended_at": time.time(),
        "stopped": [str(p) for p in stopped],
        "processes_left": [str(p) for p in left],
    }
    _write(run_dir / "supervisor.json", content)


def _end_lease(run_dir: Path, why: str) -> None:
    """For good: a holder that wakes up now must not renew it. A full disk must not keep us from killing the engine."""
    with suppress(OSError):
        lease.end(run_dir, why)


def _on_sigterm() -> list[str]:
    asked: list[str] = []

    def note(number: int, _frame: FrameType | None) -> None:
        asked.append(f"told to stop by {signal.Signals(number).name}")

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, note)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    return asked


def _die_with_parent(parent: int) -> Callable[[], None]:
    prctl = ctypes.CDLL(None, use_errno=True).prctl  # looked up before the fork

    def ask() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before we asked
            os._exit(1)

    return ask


def _adopt_orphans() -> None:
    """Lead a session of our own, and be the parent of every descendant whose own parent ends."""
    os.setsid()
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def _state_path(run_dir: Path, name: str) -> Path:
    return run_dir / _processes.FOLDER / f"{name}.state.json"


def _write(path: Path, content: dict[str, Any]) -> None:
    """A full disk, or a folder that is gone, must not keep the guard from its work."""
    try:
        artifact.write(path, content)
    except OSError as error:
        print(f"{path}: cannot be written: {error}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
