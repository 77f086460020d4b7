"""Several workers behind one address: an event loop each, in a process each, so that the gateway can use several cores.

The parent listens once per worker on one port (SO_REUSEPORT: Linux spreads new connections over the sockets by a hash
of their addresses) and forks a worker for each. It keeps the sockets: while a worker is down, connections of its share
wait for its successor instead of being refused. Nobody else can listen on the port: the first socket takes it alone,
and only then are the others let in.

A worker that dies is replaced at once, the others notice nothing, and what it had in flight is broken off, which the
clients see. The log says so, and armwise_gateway_worker_deaths_total counts it. One worker after another dying is not a
gateway: after MOST_DEATHS within DEATHS_WITHIN_S all of it ends, in words. A worker whose parent is gone ends too.
"""

import contextlib
import os
import shutil
import signal
import socket
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import NoReturn, Protocol

from tasks.gateway import metrics, registry
from tasks.gateway.app import Shared
from tasks.gateway.log import Log

BACKLOG = 2048  # connections that wait to be accepted, per worker
MOST_DEATHS = 5
DEATHS_WITHIN_S = 60.0
STOP_WITHIN_S = 10.0  # more than a worker's own grace for answers in flight; then it is killed
STOPS = (signal.SIGTERM, signal.SIGINT)


class Server(Protocol):
    """uvicorn's, as far as it matters here."""

    should_exit: bool

    def run(self, sockets: list[socket.socket] | None = None) -> None: ...


class TooManyDeaths(Exception):
    """In words, for the one who started the gateway."""


def listeners(first: socket.socket, count: int) -> list[socket.socket]:
    """`count` listening sockets on the port that `first` is bound to, itself among them. Raises OSError."""
    first.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    found = [first]
    for _ in range(count - 1):
        sock = socket.socket(first.family, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind(first.getsockname())
        found.append(sock)
    for sock in found:
        sock.listen(BACKLOG)
    return found


class Workers:
    """The parent's side. `serve` returns when it was told to stop and all workers have ended."""

    def __init__(self, state: Path, sockets: list[socket.socket], make: Callable[[Shared], Server]) -> None:
        self.sockets = sockets
        self.make = make
        self.shared = Shared(registry.shared_number(), _emptied(state / "metrics"))
        self.counted = metrics.create(self.shared.metrics)
        self.log = Log(state / "requests.log")
        self.lifeline = os.pipe()  # only the parent holds its writing end
        self.slots: dict[int, int] = {}  # of a worker's pid
        self.deaths: deque[float] = deque(maxlen=MOST_DEATHS)
        self.is_stopping = False

    def serve(self) -> None:
        """Raises TooManyDeaths."""
        for number in STOPS:
            signal.signal(number, self._stop)
        signal.signal(signal.SIGALRM, self._kill)
        for slot in range(len(self.sockets)):
            self._start(slot)
        try:
            while self.slots:
                pid, status = os.wait()
                slot = self.slots.pop(pid)
                if not self.is_stopping:
                    self._died(pid, os.waitstatus_to_exitcode(status))
                    self._start(slot)
        except TooManyDeaths:
            self._stop()
            while self.slots:
                self.slots.pop(os.wait()[0], None)
            raise

    def _start(self, slot: int) -> None:
        with _signals_held():
            if self.is_stopping:
                return
            pid = os.fork()
            if pid == 0:
                self._work(slot)
            self.slots[pid] = slot

    def _work(self, slot: int) -> NoReturn:
        """The child's side; never returns."""
        code = 1
        try:
            os.close(self.lifeline[1])
            for other in self.sockets[:slot] + self.sockets[slot + 1 :]:
                other.close()
            server = self.make(self.shared)
            for number in STOPS:  # uvicorn catches them while it serves, and raises them again when it is done
                signal.signal(number, lambda *_: setattr(server, "should_exit", True))
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
            threading.Thread(target=self._end_with_parent, args=(server,), daemon=True).start()
            server.run(sockets=[self.sockets[slot]])
            code = 0
        except BaseException:  # noqa: BLE001 (whatever it is, this process must not go on as a second parent)
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def _end_with_parent(self, server: Server) -> None:
        os.read(self.lifeline[0], 1)  # returns when the parent is gone
        server.should_exit = True

    def _died(self, pid: int, code: int) -> None:
        """Account for a worker that nobody told to end. Raises TooManyDeaths."""
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        metrics.forget_gauges(self.shared.metrics, pid)
        self.counted.worker_deaths.inc()
        self.log.write("worker_died", pid=pid, how=how)
        print(f"gateway: worker {pid} died ({how}); what it had in flight is lost", file=sys.stderr, flush=True)
        self.deaths.append(time.monotonic())
        if len(self.deaths) == MOST_DEATHS and self.deaths[-1] - self.deaths[0] < DEATHS_WITHIN_S:
            raise TooManyDeaths(f"{MOST_DEATHS} workers died within {DEATHS_WITHIN_S:g} s, the last one {how}")

    def _stop(self, _number: int = 0, _frame: FrameType | None = None) -> None:
        self.is_stopping = True
        self._signal(signal.SIGTERM)
        signal.setitimer(signal.ITIMER_REAL, STOP_WITHIN_S)

    def _kill(self, _number: int, _frame: FrameType | None) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        for pid in self.slots:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


@contextlib.contextmanager
def _signals_held() -> Iterator[None]:
    """Between a fork and the note of its pid, nobody is told to stop."""
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)


def _emptied(folder: Path) -> Path:
    """What an earlier gateway counted there is over."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder
