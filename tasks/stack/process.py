"""Processes of a stack: started detached, found and stopped by the marker in their environment.

SPT_NOENV keeps Airflow and vLLM from writing their process titles over that environment. A process that another user
owns cannot be read and does not count; a zombie has no environment left and does not either.
"""

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

STACK = "ARMWISE_STACK"  # the home folder of the stack that a process belongs to
PART = "ARMWISE_STACK_PART"  # the part that it, or the ancestor that started it, is
LEADER = "ARMWISE_STACK_LEADER"  # the pid of that ancestor
LEADS_WITHIN_S = 10.0  # a shell takes milliseconds, and longer on a busy machine
_EXEC = f'{LEADER}=$$ exec "$@"'  # the shell's own pid is the pid of what it becomes


def start(argv: Sequence[str], *, home: Path, part: str, environment: Mapping[str, str], log: Path) -> int:
    """Start one part in a session of its own, its output appended to log. Returns its pid, once `leader` finds it."""
    log.parent.mkdir(parents=True, exist_ok=True)
    marked = {**os.environ, **environment, STACK: str(home), PART: part, "SPT_NOENV": "1"}
    pid = os.posix_spawn(
        "/bin/sh",
        ["/bin/sh", "-c", _EXEC, "sh", *argv],
        marked,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
    )
    _until_it_leads(pid)
    return pid


def _until_it_leads(pid: int) -> None:
    """The shell has become the part, or has ended, or LEADS_WITHIN_S are over."""
    process, deadline = psutil.Process(pid), time.monotonic() + LEADS_WITHIN_S
    while is_alive(process) and _environment(process).get(LEADER) != str(pid) and time.monotonic() < deadline:
        time.sleep(0.005)


def members(home: Path, part: str | None = None) -> list[psutil.Process]:
    """Live processes of a stack (or of one of its parts), oldest first; this process is never one of them."""
    found = [p for p in psutil.process_iter() if p.pid != os.getpid() and _belongs(p, home, part)]
    return sorted(found, key=_age)


def leader(home: Path, part: str) -> psutil.Process | None:
    """The process that `start` made for a part, or None when it is gone, whatever of its children is left."""
    found = [p for p in members(home, part) if _environment(p).get(LEADER) == str(p.pid)]
    return found[0] if found else None


def stop_part(home: Path, part: str, *, within_s: float) -> None:
    """Let a part end by itself: its leader, and the tasks that the leader's workers wait for. Then end what is left.

    The workers between them are left alone: an idle one that is killed takes the lock of their queue with it, and the
    leader then waits for the others for ever.
    """
    head = leader(home, part)
    if head:
        ending = [head, *_grandchildren(head)]
        for process in ending:
            _quietly(process.terminate)
        gone(ending, within_s=within_s)
    stop(members(home, part), within_s=within_s)


def stop(processes: Iterable[psutil.Process], *, within_s: float) -> list[psutil.Process]:
    """SIGTERM, wait, SIGKILL what is left, wait again. Returns what even that left alive."""
    chosen = [p for p in processes if p.pid != os.getpid()]
    for process in chosen:
        _quietly(process.terminate)
    alive = gone(chosen, within_s=within_s)
    for process in alive:
        _quietly(process.kill)
    return gone(alive, within_s=5)


def gone(processes: Iterable[psutil.Process], *, within_s: float) -> list[psutil.Process]:
    """Wait until the processes have ended. Returns those that have not."""
    deadline = time.monotonic() + within_s
    alive = [p for p in processes if is_alive(p)]
    while alive and time.monotonic() < deadline:
        time.sleep(0.1)
        alive = [p for p in alive if is_alive(p)]
    return alive


def is_alive(process: psutil.Process) -> bool:
    """A zombie is dead: it holds nothing, its parent only has not asked yet."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def words(process: psutil.Process) -> str:
    """`pid name`, for messages."""
    try:
        return f"{process.pid} {' '.join(process.cmdline())[:100] or process.name()}"
    except psutil.Error:
        return str(process.pid)


def _belongs(process: psutil.Process, home: Path, part: str | None) -> bool:
    environment = _environment(process)
    return environment.get(STACK) == str(home) and part in (None, environment.get(PART))


def _environment(process: psutil.Process) -> dict[str, str]:
    try:
        return process.environ()
    except (psutil.Error, OSError):
        return {}


def _grandchildren(process: psutil.Process) -> list[psutil.Process]:
    found = []
    with suppress(psutil.NoSuchProcess):
        for child in process.children():
            with suppress(psutil.NoSuchProcess):
                found += child.children()
    return found


def _age(process: psutil.Process) -> float:
    try:
        return process.create_time()
    except psutil.NoSuchProcess:
        return 0


def _quietly(send: Callable[[], None]) -> None:
    with suppress(psutil.NoSuchProcess):
        send()
