"""Which processes of this machine belong to a run. Reads /proc; never goes by a name.

A process belongs to a run folder if one of these holds:

- its environment carries the marker ARMWISE_RUN_DIR, which children inherit (beside it, for people, ARMWISE_RUN with
  run id and attempt); the environment sets SPT_NOENV, so that setproctitle, which vLLM uses, does not write over it;
- it is in a process group that the run's supervisor started, inside that supervisor's session: both numbers together,
  so that a process id that was given out again does not match;
- it descends from a process that belongs, or from the supervisor, which as child subreaper inherits every orphan.

A zombie does not count: it holds nothing any more. A process of another user cannot be read and does not count.
"""

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tasks import artifact

RUN = "ARMWISE_RUN"
RUN_DIR = "ARMWISE_RUN_DIR"
SUPERVISOR = "ARMWISE_SUPERVISOR"  # the run folder, in the environment of its supervisor alone
FOLDER = "processes"  # in the run folder: what the supervisor was asked to start, and what became of it


@dataclass(frozen=True)
class Process:
    pid: int
    ppid: int
    pgid: int
    sid: int
    command: str
    run_dir: str | None
    supervises: str | None

    def __str__(self) -> str:
        return f"{self.pid} {self.command}"


def marker(run_dir: Path) -> dict[str, str]:
    """Environment variables that make a process, and all that it starts, one of the run's."""
    return {RUN: f"{run_dir.parent.name}/{run_dir.name}", RUN_DIR: str(run_dir.resolve()), "SPT_NOENV": "1"}


def everything() -> list[Process]:
    """All live processes that we may read, without ourselves."""
    found = (_read(entry) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return [p for p in found if p is not None and p.pid != os.getpid()]


def supervisors(run_dir: Path) -> list[Process]:
    """The supervisor of a run and its watcher."""
    return [p for p in everything() if p.supervises == str(run_dir.resolve())]


def of(run_dir: Path) -> list[Process]:
    """Live processes of a run, its supervisor apart."""
    name, groups, all_of_them = str(run_dir.resolve()), _groups(run_dir), everything()
    ours = {p.pid for p in all_of_them if name in (p.run_dir, p.supervises) or (p.pgid, p.sid) in groups}
    if os.environ.get(SUPERVISOR) == name:
        ours.add(os.getpid())
    grown = True
    while grown:
        children = {p.pid for p in all_of_them if p.ppid in ours} - ours
        ours, grown = ours | children, bool(children)
    return [p for p in all_of_them if p.pid in ours and p.supervises is None]


def end(run_dir: Path, *, term_s: float = 5, kill_s: float = 10) -> tuple[list[Process], list[Process]]:
    """SIGTERM to every process of a run, SIGKILL to what is left after term_s. Returns (those stopped, those left).

    What is left after another kill_s hangs in the kernel: no signal reaches it.
    """
    seen: dict[int, Process] = {}
    started = time.monotonic()
    while True:
        alive, elapsed = of(run_dir), time.monotonic() - started
        if not alive or elapsed > term_s + kill_s:
            left = {p.pid for p in alive}
            return [p for pid, p in seen.items() if pid not in left], alive
        new = [p for p in alive if p.pid not in seen]
        seen |= {p.pid: p for p in new}
        send(signal.SIGTERM, new)
        if elapsed > term_s:
            send(signal.SIGKILL, alive)
        time.sleep(0.1)


def send(number: signal.Signals, processes: Iterable[Process]) -> None:
    """Send a signal to each; one that has just ended is no error."""
    for process in processes:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(process.pid, number)


def _groups(run_dir: Path) -> set[tuple[int, int]]:
    """(process group, session) of what the run's supervisors have started."""
    states = [_content(path) for path in (run_dir / FOLDER).glob("*.state.json")]
    return {(s["pgid"], s["sid"]) for s in states if s.get("pgid") and s.get("sid")}


def _content(path: Path) -> dict[str, int]:
    try:
        return artifact.read(path)
    except artifact.BrokenArtifact:
        return {}


def _read(entry: Path) -> Process | None:
    try:
        stat = (entry / "stat").read_text(errors="replace")
        environment = _environment(entry / "environ")
        words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    name, fields = stat[stat.index("(") + 1 : stat.rindex(")")], stat[stat.rindex(")") + 2 :].split()
    if fields[0] in "ZX":
        return None
    return Process(
        pid=int(entry.name),
        ppid=int(fields[1]),
        pgid=int(fields[2]),
        sid=int(fields[3]),
        command=words[:120] or name,
        run_dir=environment.get(RUN_DIR),
        supervises=environment.get(SUPERVISOR),
    )


def _environment(path: Path) -> dict[str, str]:
    """Only what concerns us: environments hold secrets. One that may not be read says nothing."""
    try:
        content = path.read_bytes()
    except PermissionError:
        return {}
    if b"ARMWISE_" not in content:
        return {}  # nearly all; an environment may have hundreds of entries
    pairs = (entry.decode(errors="replace").partition("=") for entry in content.split(b"\0"))
    return {name: value for name, _, value in pairs if name in (RUN_DIR, SUPERVISOR)}
