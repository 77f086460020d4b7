"""Planted fault 18: load client and burners share one core. `python -m tasks.engines.sim.starve 2 30`.

Burners on every core starve the server as well; it then gives the client little to do, and how long the client waits is
the scheduler's mood. So burners and client are held to one core, and the server keeps the others. All end after
their seconds, or when the process that started them is gone; a client is held for as long as it lives.

Each burner has a session of its own: Linux shares a core between sessions before it shares it between their processes
(sched_autogroup), so that a hundred burners in one session would leave a client in another its half.
"""

import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

import tasks

LOCUSTFILES = str(Path(tasks.__file__).parent / "traffic")  # what a client's command line names a file of
LOOK_EVERY_S = 0.1


def burn(seconds: float, core: int) -> None:
    """Keep one core busy. In a process that is nobody's leader."""
    os.setsid()
    os.sched_setaffinity(0, {core})
    parent, end = os.getppid(), time.monotonic() + seconds
    while time.monotonic() < end and os.getppid() == parent:
        for _ in range(100_000):
            pass


def hold(seconds: float, core: int) -> None:
    """Keep every client, those that start later too, to one core."""
    parent, end = os.getppid(), time.monotonic() + seconds
    while time.monotonic() < end and os.getppid() == parent:
        for process in psutil.process_iter(["cmdline"]):
            if any(word.startswith(LOCUSTFILES) for word in process.info["cmdline"] or ()):
                _hold(process, core)
        time.sleep(LOOK_EVERY_S)


def _hold(process: psutil.Process, core: int) -> None:
    """Every thread of it: on Linux each has a mask of its own."""
    with suppress(psutil.Error, OSError):
        for thread in process.threads():
            os.sched_setaffinity(thread.id, {core})


def start(processes: int, seconds: float) -> list[multiprocessing.process.BaseProcess]:
    """Burners and who holds the clients beside them: daemons of this process."""
    context, core = multiprocessing.get_context("spawn"), min(os.sched_getaffinity(0))
    work = [hold, *[burn] * processes]
    started = [context.Process(target=each, args=(seconds, core), daemon=True) for each in work]
    for process in started:
        process.start()
    return list(started)


def stop(started: list[multiprocessing.process.BaseProcess]) -> None:
    for process in started:
        process.terminate()
        process.join(timeout=5)


@contextmanager
def starved(processes: int, seconds: float = 600) -> Iterator[None]:
    """A starved client while the block runs."""
    started = start(processes, seconds)
    try:
        yield
    finally:
        stop(started)


if __name__ == "__main__":
    with starved(int(sys.argv[1]), float(sys.argv[2])):
        time.sleep(float(sys.argv[2]))
