"""The levels of a tier, one after the other, carried out by a crew: this process alone, or Locust's workers.

Bring the users to the gate, have the level opened at one moment, wait for its end. client.json is written after each
level, never while one runs: it waits for the disk. A sweep ends after the first level that is over-saturated.

With workers (Locust's own distributed mode, over loopback) this process is the master and plays nothing itself. It
tells every worker a moment on the monotonic clock, which is one for all processes of a machine, and which seats are its
own; each worker opens the level at that moment, ends it by itself, and tells of it (tasks/traffic/hand.py).
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tasks import plan
from tasks.traffic import client, level, saturation
from tasks.traffic.conduct import CUT_WITHIN_S, Tier, one_level, wait

EXIT_FAULT, EXIT_STOPPED = 1, 143
SPAWN_WITHIN_S = 30.0
CREW_WITHIN_S = 60.0  # for all workers to have read the plan, on a busy machine
OPEN_IN_S = 0.3  # from telling the workers to the level's first moment
TELL_WITHIN_S = 10.0  # after a worker's level must have ended
HELLO, OPEN, STOP, ENDED = "armwise_hello", "armwise_open", "armwise_stop", "armwise_ended"
Note = dict[str, Any]


class Crew(Protocol):
    """Who plays a level."""

    def bring(self, users: int) -> None:
        """Until exactly so many of Locust's users wait at the gate. Raises RuntimeError."""

    def play(self, number: int) -> list[Note]:
        """Carry out a level; what each process says of it. Raises RuntimeError."""

    def stop(self) -> None:
        """End the level as if its drain were over."""


@dataclass
class Course:
    """A tier under way. `ended_early`: why a sweep stopped before its last level."""

    folder: Path
    plan: plan.Tier
    crew: Crew
    ended: list[Note] = field(default_factory=list)
    fault: str | None = None
    ended_early: str | None = None
    is_stopped: bool = False
    is_over: bool = False

    def stop(self) -> None:
        """End the level as if its drain were over, and start no other."""
        self.is_stopped = True
        self.crew.stop()

    def fail(self, fault: str) -> None:
        """A fault of the client itself ends the tier; the first one is told."""
        self.fault = self.fault or fault
        self.stop()


def lead(course: Course) -> int:
    """Carry out all levels. Returns the exit code; a fault is told in client.json."""
    started_at, before = time.time(), None
    try:
        for number, offered in enumerate(course.plan.levels, start=1):
            if course.is_stopped or course.ended_early:
                break
            course.crew.bring(level.crowd(offered, course.plan.processes))
            notes = course.crew.play(number)
            course.ended.append(client.merged(number, offered, notes))
            for fault in filter(None, (note["fault"] for note in notes)):
                course.fail(fault)
            before = _judge(course, client.flow(notes), before)
            _write(course, started_at)
    except Exception as error:  # noqa: BLE001 (whatever it is, it is told)
        course.fail(str(error) or type(error).__name__)
    course.is_over = True
    try:
        _write(course, started_at)
    except OSError as error:
        course.fail(str(error))
    return EXIT_FAULT if course.fault else EXIT_STOPPED if course.is_stopped else 0


def _judge(course: Course, found: saturation.Flow, before: saturation.Flow | None) -> saturation.Flow:
    """Say whether the last level was over-saturated; end a sweep there. Returns the level's flow."""
    last, sweep = course.ended[-1], course.plan.sweep
    closed = saturation.of_closed(found, before) if sweep else None  # only a sweep says that its users grow
    last["saturation"] = closed if last["users"] else saturation.of_open(found)
    if sweep and last["saturation"] and not course.is_stopped:
        left = len(course.plan.levels) - last["level"]
        course.ended_early = f"level {last['level']} is over-saturated: {last['saturation']}; {left} levels not run"
    return found


def _write(course: Course, started_at: float) -> None:
    told = {"fault": course.fault, "is_stopped": course.is_stopped, "ended_early": course.ended_early}
    client.write(course.folder, told, course.ended, started_at=started_at)


@dataclass
class Alone:
    """The only process of the client is its own crew."""

    tier: Tier
    runner: Any

    def bring(self, users: int) -> None:
        if self.runner.user_count != users:
            self.runner.start(users, spawn_rate=users)

        def is_there() -> bool:
            return self.tier.is_stopped or self.runner.user_count == self.tier.waiting == users

        if not wait(is_there, until_ns=in_ns(SPAWN_WITHIN_S)):
            raise RuntimeError(_too_few(self.runner, users))

    def play(self, number: int) -> list[Note]:
        return [one_level(self.tier, number, t_start_ns=time.monotonic_ns())]

    def stop(self) -> None:
        self.tier.stop()


class Workers:
    """Locust's workers, as the master sees them."""

    def __init__(self, the_plan: plan.Tier, runner: Any) -> None:
        self.plan, self.runner = the_plan, runner
        self.number_of: dict[str, int] = {}  # Locust's name of a worker -> its number among the processes
        self.told: dict[int, Note] = {}  # by process, of the level that runs
        self.is_stopped = False
        runner.register_message(HELLO, self._hello)
        runner.register_message(ENDED, self._ended)

    def _hello(self, environment: Any, msg: Any, **_: Any) -> None:  # noqa: ARG002
        self.number_of[msg.node_id] = msg.data["process"]

    def _ended(self, environment: Any, msg: Any, **_: Any) -> None:  # noqa: ARG002
        self.told[msg.data["process"]] = msg.data

    def bring(self, users: int) -> None:
        count = self.plan.processes
        if not wait(lambda: self.is_stopped or len(self.number_of) == count, until_ns=in_ns(CREW_WITHIN_S)):
            raise RuntimeError(f"{len(self.number_of)} of {count} client processes are ready after {CREW_WITHIN_S:g} s")
        if self.runner.user_count != users:
            self.runner.start(users, spawn_rate=users)
        if not wait(lambda: self.is_stopped or self.runner.user_count == users, until_ns=in_ns(SPAWN_WITHIN_S)):
            raise RuntimeError(_too_few(self.runner, users))

    def play(self, number: int) -> list[Note]:
        self.told = {}
        t_start_ns = in_ns(OPEN_IN_S)
        for order in _orders(self._users(), number, t_start_ns):
            self.runner.send_message(OPEN, *order)
        offered = self.plan.levels[number - 1]
        within_s = OPEN_IN_S + offered.duration_s + self.plan.drain_s + CUT_WITHIN_S + TELL_WITHIN_S
        if not wait(lambda: len(self.told) == self.plan.processes or bool(self._gone()), until_ns=in_ns(within_s)):
            raise RuntimeError(f"level {number}: {len(self.told)} of {self.plan.processes} client processes ended it")
        if gone := self._gone():
            raise RuntimeError(f"level {number}: {gone}")
        return [self.told[process] for process in sorted(self.told)]

    def _users(self) -> list[tuple[str, int]]:
        """(Locust's name of a worker, its users at the gate), in the order of the processes."""
        names = sorted(self.number_of, key=lambda name: self.number_of[name])
        return [(name, self.runner.clients[name].user_count) for name in names]

    def _gone(self) -> str | None:
        silent = [n for name, n in self.number_of.items() if n not in self.told and not self._is_there(name)]
        return f"client process {silent[0]} is gone" if silent else None

    def _is_there(self, name: str) -> bool:
        return name in self.runner.clients and self.runner.clients[name].state != "missing"

    def stop(self) -> None:
        self.is_stopped = True
        self.runner.send_message(STOP)


def _orders(users: Sequence[tuple[str, int]], number: int, t_start_ns: int) -> list[tuple[Note, str]]:
    """What each worker is told: seats follow each other, so who plays what depends on the seat alone."""
    orders, first = [], 0
    for name, count in users:
        orders.append(({"level": number, "t_start_ns": t_start_ns, "first_seat": first, "users": count}, name))
        first += count
    return orders


def in_ns(seconds: float) -> int:
    return time.monotonic_ns() + int(seconds * 1e9)


def _too_few(runner: Any, users: int) -> str:
    return f"Locust has {runner.user_count} users after {SPAWN_WITHIN_S:g} s, wanted {users}"
