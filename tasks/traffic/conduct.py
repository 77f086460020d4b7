"""The levels of a tier, one after the other, as one greenlet of the Locust process carries them out.

Bring Locust's users to the level's number, open the level to all of them at once, wait for its end, let what is in
flight end, cut off what does not. Rows are written as they end; client.json after each level, never while one runs: it
waits for the disk.

The client says how far it can be trusted: its loop lag (how much later than asked a greenlet wakes up; sampled every
50 ms while a level is open), its delay in sending, and the share of a core that it used.
"""

import os
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gevent
from gevent.event import Event

from tasks import artifact, run
from tasks.agent import golden
from tasks.traffic import level, stream, work
from tasks.traffic.spool import Spool

FORMAT = 1
EXIT_FAULT, EXIT_STOPPED = 1, 143
LAG_EVERY_S = 0.05
SPAWN_WITHIN_S = 30.0
CUT_WITHIN_S = 3.0
FAILED_PAUSE_S = 0.1  # after a failed turn: a server that refuses at once must not be asked a thousand times a second


class Tier:
    """What the greenlets of the process share."""

    def __init__(self, run_dir: Path, tier: str) -> None:
        self.run = run.read(run_dir)
        self.name, self.folder = tier, run_dir / tier
        self.plan = getattr(self.run.plan.tiers, tier)
        deployment = artifact.read(run_dir / "deployment.json")
        self.url, self.model = deployment["gateway_url"], deployment["model"]
        self.cases = work.sendable(self.run.plan.gate.golden_set)
        self.turn = {"gateway": work.gateway, "agent": work.agent}[tier]
        golden.material(self.run.plan.gate.golden_set)
        if tier == "agent":
            work.rehearse(self.cases)
        self.requests = Spool(self.folder / "requests.jsonl")
        self.tasks = Spool(self.folder / "tasks.jsonl") if tier == "agent" else None
        self.running: level.Running | None = None
        self.gate = Event()  # of the next level
        self.waiting = 0  # users at the gate
        self.ended: list[dict[str, Any]] = []
        self.lags_ms: list[float] = []
        self.delays_ms: list[float] = []
        self.fault: str | None = None
        self.is_stopped = False
        self.is_over = False

    def stop(self) -> None:
        """End the level as if its drain were over, and start no other."""
        self.is_stopped = True
        if self.running:
            self.running.is_cut = True

    def fail(self, error: Exception) -> None:
        """A fault of the client itself ends the tier; the first one is told."""
        self.fault = self.fault or (str(error) or type(error).__name__)
        self.stop()

    def seat(self, running: level.Running, on_row: Callable[[str, work.Row], None]) -> work.Seat:
        number = running.enter()
        cases = work.endless(self.cases, self.run.rng(f"{self.name}/level {running.number}/user {number}"))
        endpoint = stream.Endpoint(self.url, self.run.technique, self.model)

        def on_request(row: work.Row) -> None:
            self.requests.append(row)
            on_row("call", row)

        def on_task(row: work.Row) -> None:
            assert self.tasks is not None
            self.tasks.append(row)
            on_row("task", row)

        return work.Seat(self.run, self.name, running, number, endpoint, cases, on_request, on_task)


def take_part(tier: Tier, on_row: Callable[[str, work.Row], None]) -> None:
    """One user in one level: wait for it to open, then one turn after the other until it is over."""
    gate = tier.gate
    tier.waiting += 1
    try:
        gate.wait()
    finally:
        tier.waiting -= 1
    running = tier.running
    assert running is not None
    seat = tier.seat(running, on_row)
    intended_ns = running.t_start_ns
    try:
        while running.is_open(time.monotonic_ns()):
            if not tier.turn(seat, t_intended_ns=intended_ns):
                gevent.sleep(FAILED_PAUSE_S)
            intended_ns = time.monotonic_ns()
    except Exception as error:  # noqa: BLE001 (whatever it is: Locust would log it and go on without rows)
        tier.fail(error)
    finally:
        running.leave()


def conduct(tier: Tier, runner: Any) -> int:
    """Carry out all levels. Returns the exit code; a fault is told in client.json."""
    started_at, cpu = time.time(), _Cpu()
    try:
        for number, offered in enumerate(tier.plan.levels, start=1):
            if not tier.is_stopped:
                tier.ended.append(_one_level(tier, runner, number, offered))
                _note(tier, started_at, cpu)
    except Exception as error:  # noqa: BLE001 (whatever it is, it is told)
        tier.fail(error)
    tier.is_over = True
    try:
        _note(tier, started_at, cpu)
    except OSError as error:
        tier.fail(error)
    return EXIT_FAULT if tier.fault else EXIT_STOPPED if tier.is_stopped else 0


def _one_level(tier: Tier, runner: Any, number: int, offered: Any) -> dict[str, Any]:
    _bring_users(tier, runner, offered.users)
    cpu = _Cpu()
    running = level.Running(number, offered, t_start_ns=time.monotonic_ns(), started_at=time.time())
    if tier.is_stopped:
        running.is_cut = True
    tier.running = running
    opened, tier.gate = tier.gate, Event()
    with _lag_sampled(running.lags_ms):
        opened.set()
        _wait(lambda: running.is_cut, until_ns=running.end_ns)
        t_load_end_ns, cpu_share = time.monotonic_ns(), cpu.share()
    _wait(lambda: not running.active or running.is_cut, until_ns=t_load_end_ns + int(tier.plan.drain_s * 1e9))
    running.is_cut = True
    _wait(lambda: not running.active, until_ns=time.monotonic_ns() + int(CUT_WITHIN_S * 1e9))
    tier.lags_ms += running.lags_ms
    tier.delays_ms += running.delays_ms
    return {
        "level": number,
        **offered.model_dump(),
        "started_at": running.started_at,
        "ended_at": time.time(),
        "t_start_ns": running.t_start_ns,
        "t_load_end_ns": t_load_end_ns,
        "t_end_ns": time.monotonic_ns(),
        "t_all_finished_one_ns": running.all_finished_ns,
        "requests": running.requests,
        "cpu_share": cpu_share,
        **level.spread("loop_lag_ms", running.lags_ms),
        **level.spread("schedule_delay_ms", running.delays_ms),
    }


def _bring_users(tier: Tier, runner: Any, users: int) -> None:
    """Until exactly these users wait at the gate. Raises RuntimeError."""
    if runner.user_count != users:
        runner.start(users, spawn_rate=users)
    is_there = _wait(
        lambda: tier.is_stopped or runner.user_count == tier.waiting == users,
        until_ns=time.monotonic_ns() + int(SPAWN_WITHIN_S * 1e9),
    )
    if not is_there:
        raise RuntimeError(f"Locust has {runner.user_count} users after {SPAWN_WITHIN_S:g} s, wanted {users}")


def _wait(is_enough: Callable[[], bool], *, until_ns: int) -> bool:
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


class _Cpu:
    """Share of one core that this process used since now."""

    def __init__(self) -> None:
        self.used_s, self.at_s = time.process_time(), time.monotonic()

    def share(self) -> float:
        return round((time.process_time() - self.used_s) / max(time.monotonic() - self.at_s, 1e-9), 4)


def _note(tier: Tier, started_at: float, cpu: _Cpu) -> None:
    from locust import __version__ as locust_version

    content = {
        "format": FORMAT,
        "tier": tier.name,
        "fault": tier.fault,
        "is_stopped": tier.is_stopped,
        "locust": locust_version,
        "gevent": gevent.__version__,
        "python": platform.python_version(),
        "pid": os.getpid(),
        "parent_pid": os.getppid(),
        "started_at": started_at,
        "ended_at": time.time(),
        "cpu_share": cpu.share(),
        **level.spread("loop_lag_ms", tier.lags_ms),
        **level.spread("schedule_delay_ms", tier.delays_ms),
        "levels": tier.ended,
    }
    artifact.write(tier.folder / "client.json", content)
