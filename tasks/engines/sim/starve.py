"""Planted fault 18: processes that burn CPU beside the client. `python -m tasks.engines.sim.starve 2 30`.

They end after their seconds, or when the process that started them is gone.
"""

import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager


def burn(seconds: float) -> None:
    """Keep one core busy."""
    parent, end = os.getppid(), time.monotonic() + seconds
    while time.monotonic() < end and os.getppid() == parent:
        for _ in range(100_000):
            pass


def start(processes: int, seconds: float) -> list[multiprocessing.process.BaseProcess]:
    """Burners of their own processes, daemons of this one."""
    context = multiprocessing.get_context("spawn")
    burners = [context.Process(target=burn, args=(seconds,), daemon=True) for _ in range(processes)]
    for burner in burners:
        burner.start()
    return list(burners)


def stop(burners: list[multiprocessing.process.BaseProcess]) -> None:
    for burner in burners:
        burner.terminate()
        burner.join(timeout=5)


@contextmanager
def starved(processes: int, seconds: float = 600) -> Iterator[None]:
    """Burners while the block runs."""
    burners = start(processes, seconds)
    try:
        yield
    finally:
        stop(burners)


if __name__ == "__main__":
    with starved(int(sys.argv[1]), float(sys.argv[2])):
        time.sleep(float(sys.argv[2]))
