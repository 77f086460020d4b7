"""The processes of a tier's client, as the stage that starts them sees them.

One process, or a master and the plan's `processes` workers, which talk over loopback. Each is in a session of its own:
Ctrl-C reaches the stage, which stops them in order; if the stage dies, the kernel kills them.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tasks
from tasks.drivers import _port
from tasks.run import Run
from tasks.traffic.level import crowd

READY_WITHIN_S = 60  # for Locust to import the agent in all workers, on a busy machine
STOP_S = 10.0
TELL_S = 5.0


@dataclass
class Processes:
    """`first` decides when the tier is over; the others are its workers."""

    first: subprocess.Popen[bytes]
    workers: list[subprocess.Popen[bytes]]
    ended_at: dict[int, float] = field(default_factory=dict)  # of workers that ended badly

    def lost(self) -> str | None:
        """Which worker ended badly although the tier is not over, in words.

        One that could tell the master its fault did, and the master ends too; TELL_S is the time it has for that.
        """
        for number, worker in enumerate(self.workers):
            code = worker.poll()
            if not code or self.first.poll() is not None:
                continue
            since = self.ended_at.setdefault(number, time.monotonic())
            if code < 0 or time.monotonic() - since > TELL_S:
                how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
                return f"client process {number} of {len(self.workers)} {how}; its rows up to then are kept"
        return None

    def stop(self) -> None:
        """The first one, which has its workers end their level and quit; who is left then; by force at last."""
        for some in ([self.first], self.workers):
            _told_to_end(some)
        for one in (self.first, *self.workers):
            one.kill()
            one.wait()


def _told_to_end(some: Sequence[subprocess.Popen[bytes]]) -> None:
    """SIGTERM, and STOP_S."""
    for one in some:
        if one.poll() is None:
            one.send_signal(signal.SIGTERM)
    until = time.monotonic() + STOP_S
    for one in some:
        with contextlib.suppress(subprocess.TimeoutExpired):
            one.wait(max(until - time.monotonic(), 0.1))


@contextlib.contextmanager
def running(this: Run, tier: str, log: Any) -> Iterator[Processes]:
    """Start the client of a tier; it is stopped when the block ends."""
    plan = getattr(this.plan.tiers, tier)
    users = crowd(plan.levels[0], plan.processes)
    argv = ["--headless", "--only-summary", "--users", str(users), "--spawn-rate", str(users)]
    workers: list[subprocess.Popen[bytes]] = []
    if plan.processes > 1:
        port = str(_port.free())
        argv += ["--master", "--master-bind-host", _port.HOST, "--master-bind-port", port]
        argv += ["--expect-workers", str(plan.processes), "--expect-workers-max-wait", str(READY_WITHIN_S)]
    found = Processes(_start(this, tier, argv, log), workers)
    try:
        for number in range(plan.processes if plan.processes > 1 else 0):
            place = ["--worker", "--master-host", _port.HOST, "--master-port", port, "--process", str(number)]
            workers.append(_start(this, tier, ["--only-summary", *place], log))
        yield found
    finally:
        found.stop()


def _start(this: Run, tier: str, argv: list[str], log: Any) -> subprocess.Popen[bytes]:
    locustfile = Path(tasks.__file__).parent / "traffic" / "locustfile.py"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LOCUST_")}
    path = [str(Path(tasks.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    about = ["--run-dir", str(this.folder.resolve()), "--tier", tier, "--parent", str(os.getpid())]
    return subprocess.Popen(
        [sys.executable, "-m", "locust", "-f", str(locustfile), *about, *argv],
        cwd=this.folder / tier,  # Locust would read settings from a project file in the current folder
        env=environment | {"PYTHONPATH": os.pathsep.join(path)},
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
