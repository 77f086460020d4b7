"""One level in one process of the client: its users, or its share of the arrivals; and what the process says of itself.

Closed loop: the level opens to all waiting users at once. Open loop: one of Locust's users is the dispatcher, which
starts a greenlet for each arrival of this process at its moment, whatever is still in flight. At the end of the level's
time nothing new begins; what is in flight may end until the drain is over, and is cut off then. Rows are written as
they end.

More than MOST_IN_FLIGHT at once does no process: from there on an arrival waits for a place, its call counts from when
it was intended, `schedule_delay_ms` shows the wait, and arrivals that got none before the cut are `unsent`.

How far it can be trusted: its loop lag (how much later than asked a greenlet wakes up; sampled every 50 ms while a
level is open), its delay in sending, and the share of a core that it used.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import gevent
from gevent.event import Event
from gevent.pool import Pool

from tasks import run
from tasks.agent import golden
from tasks.traffic import level, replay, saturation, stream, work, workload
from tasks.traffic.spool import Spool

LAG_EVERY_S = 0.05
CUT_WITHIN_S = 3.0
FAILED_PAUSE_S = 0.1  # after a failed turn: a server that refuses at once must not be asked a thousand times a second
MOST_IN_FLIGHT = 4096  # ours: twice what a level of 100/s at twice the capacity leaves in flight after 40 s
OnRow = Callable[[str, work.Row], None]


class Tier:
    """What the greenlets of a process share. `process` is its number among `plan.processes`."""

    def __init__(self, run_dir: Path, tier: str, *, url: str, model: str, process: int = 0) -> None:
        self.run = run.read(run_dir)
        self.name, self.folder, self.process = tier, run_dir / tier, process
        self.plan = getattr(self.run.plan.tiers, tier)
        self.url, self.model = url, model
        self.cases = workload.cases(self.run, tier)
        self.turn = work.gateway if tier == "gateway" else replay.agent if self.plan.replay else work.agent
        golden.material(self.run.plan.gate.golden_set)
        if self.turn is work.agent:
            work.rehearse(self.cases)
        self.arrivals = [self._arrivals(number) for number in range(1, 1 + len(self.plan.levels))]
        self.requests = self._spool("requests")
        self.tasks = self._spool("tasks") if tier == "agent" else None
        self.idle: list[stream.Endpoint] = []  # of arrivals that have ended, with their connections
        self.running: level.Running | None = None
        self.gate = Event()  # of the next level
        self.waiting = 0  # users at the gate
        self.fault: str | None = None
        self.is_stopped = False

    def _arrivals(self, number: int) -> list[workload.Arrival]:
        return workload.of_level(self.run, self.name, self.cases, level=number)[self.process :: self.plan.processes]

    def _spool(self, kind: str) -> Spool:
        share = "" if self.plan.processes == 1 else f"-{self.process}"
        return Spool(self.folder / f"{kind}{share}.jsonl")

    def stop(self) -> None:
        """End the level as if its drain were over, and start no other."""
        self.is_stopped = True
        if self.running:
            self.running.is_cut = True

    def fail(self, error: Exception) -> None:
        """A fault of the client itself ends the tier; the first one is told."""
        self.fault = self.fault or (str(error) or type(error).__name__)
        self.stop()

    def endpoint(self) -> stream.Endpoint:
        """One that nobody uses."""
        if self.idle:
            return self.idle.pop()
        return stream.Endpoint(self.url, self.run.technique, self.model, run=self.run.owner)

    def seat(self, number: int, cases: Iterator[Any], sessions: Iterator[str], on_row: OnRow) -> work.Seat:
        assert self.running is not None

        def on_request(row: work.Row) -> None:
            self.requests.append(row)
            on_row("call", row)

        def on_task(row: work.Row) -> None:
            assert self.tasks is not None
            self.tasks.append(row)
            on_row("task", row)

        return work.Seat(
            self.run,
            self.name,
            self.running,
            number,
            self.endpoint(),
            cases,
            sessions,
            on_request,
            on_task,
            self.process,
        )


def take_part(tier: Tier, on_row: OnRow) -> None:
    """One of Locust's users in one level: wait for it to open, then play or dispatch until it is over."""
    gate = tier.gate
    tier.waiting += 1
    try:
        gate.wait()
    finally:
        tier.waiting -= 1
    running = tier.running
    assert running is not None
    number = running.enter()
    try:
        if running.users is None:
            _dispatch(tier, running, on_row)
        else:
            _play(tier, running, number, on_row)
    except Exception as error:  # noqa: BLE001 (whatever it is: Locust would log it and go on without rows)
        tier.fail(error)
    finally:
        running.leave()


def _play(tier: Tier, running: level.Running, number: int, on_row: OnRow) -> None:
    """A user of a closed loop: one turn after the other."""
    order, names = workload.of_user(tier.run, tier.name, tier.cases, level=running.number, user=number)
    seat = tier.seat(number, order, names, on_row)
    intended_ns = running.t_start_ns
    while running.is_open(time.monotonic_ns()):
        _one_turn(tier, running, seat, intended_ns)
        seat.pause(min(tier.plan.think_s, max(0.0, (running.end_ns - time.monotonic_ns()) / 1e9)))
        intended_ns = time.monotonic_ns()
    tier.idle.append(seat.endpoint)


def _dispatch(tier: Tier, running: level.Running, on_row: OnRow) -> None:
    """Start every arrival of this process at its moment."""
    pool = Pool(MOST_IN_FLIGHT)
    left = len(tier.arrivals[running.number - 1])
    for arrival in tier.arrivals[running.number - 1]:
        wait(lambda: running.is_cut, until_ns=running.t_start_ns + arrival.offset_ns)
        pool.wait_available()
        if running.is_cut:
            break
        running.active += 1
        pool.spawn(_arrive, tier, running, arrival, on_row)
        left -= 1
    running.unsent = left


def _arrive(tier: Tier, running: level.Running, arrival: workload.Arrival, on_row: OnRow) -> None:
    try:
        seat = tier.seat(arrival.number, iter([arrival.case]), iter([arrival.session]), on_row)
        _one_turn(tier, running, seat, running.t_start_ns + arrival.offset_ns, is_paced=True)
        tier.idle.append(seat.endpoint)
    except Exception as error:  # noqa: BLE001 (as above)
        tier.fail(error)
    finally:
        running.leave()


def _one_turn(tier: Tier, running: level.Running, seat: work.Seat, intended_ns: int, *, is_paced: bool = False) -> None:
    running.begun_ns.append(intended_ns)
    is_answered = tier.turn(seat, t_intended_ns=intended_ns)
    running.ended_ns.append(time.monotonic_ns())
    if not is_answered and not is_paced:
        gevent.sleep(FAILED_PAUSE_S)


def one_level(tier: Tier, number: int, *, t_start_ns: int, first_seat: int = 0) -> dict[str, Any]:
    """Open a level at that moment to all who wait, see it to its end, and tell of it."""
    offered = tier.plan.levels[number - 1]
    users = None if offered.users is None else tier.waiting
    started_at = time.time() + (t_start_ns - time.monotonic_ns()) / 1e9
    running = level.Running(number, offered, t_start_ns, started_at, first_seat=first_seat, users=users)
    running.is_cut = tier.is_stopped
    tier.running = running
    opened, tier.gate = tier.gate, Event()
    wait(lambda: running.is_cut, until_ns=t_start_ns)
    cpu = Cpu()
    with _lag_sampled(running.lags_ms):
        opened.set()
        wait(lambda: running.is_cut, until_ns=running.end_ns)
        t_load_end_ns, used = time.monotonic_ns(), {"cpu_share": cpu.share(), "cpu_wait_share": cpu.wait_share()}
    wait(lambda: not running.active or running.is_cut, until_ns=t_load_end_ns + int(tier.plan.drain_s * 1e9))
    running.is_cut = True
    wait(lambda: not running.active, until_ns=time.monotonic_ns() + int(CUT_WITHIN_S * 1e9))
    return _told(tier, running, t_load_end_ns) | used


def _told(tier: Tier, running: level.Running, t_load_end_ns: int) -> dict[str, Any]:
    """What a process says of a level; client.py makes one of several."""
    flow = saturation.flow(running.begun_ns, running.ended_ns, t_start_ns=running.t_start_ns, t_end_ns=t_load_end_ns)
    return {
        "process": tier.process,
        "pid": os.getpid(),
        "fault": tier.fault,
        "started_at": running.started_at,
        "t_start_ns": running.t_start_ns,
        "t_load_end_ns": t_load_end_ns,
        "t_end_ns": time.monotonic_ns(),
        "t_all_finished_one_ns": running.all_finished_ns,
        "requests": running.requests,
        "unsent": running.unsent,
        "flow": asdict(flow),
        **level.spread("loop_lag_ms", running.lags_ms),
        **level.spread("schedule_delay_ms", running.delays_ms),
    }


def wait(is_enough: Callable[[], bool], *, until_ns: int) -> bool:
    """Whether it was enough before the time was up. Exact at the end, else within 20 ms."""
    while not is_enough():
        left_ns = until_ns - time.monotonic_ns()
        if left_ns <= 0:
            return False
        gevent.sleep(min(left_ns / 1e9, 0.02))
    return True


@contextmanager
def _lag_sampled(lags_ms: list[float]) -> Iterator[None]:
    def sample() -> None:
        while True:
            asked_ns = time.monotonic_ns() + int(LAG_EVERY_S * 1e9)
            gevent.sleep(LAG_EVERY_S)
            lags_ms.append(max(0.0, (time.monotonic_ns() - asked_ns) / 1e6))

    sampler = gevent.spawn(sample)
    try:
        yield
    finally:
        sampler.kill()


class Cpu:
    """Share of one core that this process used since now, and how long its first thread, the loop's, waited for one."""

    def __init__(self) -> None:
        self.used_s, self.at_s = time.process_time(), time.monotonic()
        self.waited_ns = _waited_ns()

    def share(self) -> float:
        return round((time.process_time() - self.used_s) / max(time.monotonic() - self.at_s, 1e-9), 4)

    def wait_share(self) -> float | None:
        """Share of the time in which it could run and had no core. None where the kernel does not count it."""
        waited_ns = _waited_ns()
        if self.waited_ns is None or waited_ns is None:
            return None
        return round((waited_ns - self.waited_ns) * 1e-9 / max(time.monotonic() - self.at_s, 1e-9), 4)


def _waited_ns() -> int | None:
    """How long the process's first thread waited for a core. Linux: /proc/pid/schedstat."""
    try:
        _, waited, _ = Path(f"/proc/{os.getpid()}/schedstat").read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return None
    return int(waited)
