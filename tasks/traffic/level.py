"""One offered load while it runs, in one process: who takes part, until when, what rows are worth. No clock, no I/O.

A closed loop of users: each takes a seat, starts its next call or task when its last one ended, and starts none after
`end_ns`. An open loop: each arrival takes a seat of its own. What is in flight at the end may end until the drain is
over; what is cut off is aborted.

Warm-up, as this process sees it (tasks/stages/drive.py finds where it really ends): what was sent before `warmup_s`
passed, and in a closed loop what was sent before every user of this process had finished one request. The latter is
known when a row ends: if somebody is still missing then, somebody was missing when it was sent.
"""

from dataclasses import dataclass, field

from tasks import plan


@dataclass
class Running:
    """A level from its start on. Times are ns of the monotonic clock."""

    number: int  # from 1, in the plan's order
    offered: plan.Level
    t_start_ns: int
    started_at: float  # seconds since the epoch
    first_seat: int = 0  # of this process
    users: int | None = None  # of a closed loop in this process; all of them if it is the only one
    seats: int = 0  # users that have taken part
    active: int = 0  # users that have not left yet, and calls or tasks of an open loop in flight
    is_cut: bool = False
    requests: int = 0
    delays_ms: list[float] = field(default_factory=list)
    lags_ms: list[float] = field(default_factory=list)
    begun_ns: list[int] = field(default_factory=list)  # of calls (gateway tier) or tasks (agent tier)
    ended_ns: list[int] = field(default_factory=list)
    unsent: int = 0  # arrivals that never became a call: the ceiling was reached until the level was cut
    finished: set[int] = field(default_factory=set)
    all_finished_ns: int | None = None

    def __post_init__(self) -> None:
        self.users = self.offered.users if self.users is None else self.users

    @property
    def end_ns(self) -> int:
        return self.t_start_ns + int(self.offered.duration_s * 1e9)

    def enter(self) -> int:
        """Take the next seat."""
        seat, self.seats, self.active = self.first_seat + self.seats, self.seats + 1, self.active + 1
        return seat

    def leave(self) -> None:
        self.active -= 1

    def is_open(self, now_ns: int) -> bool:
        return now_ns < self.end_ns and not self.is_cut

    def finish(self, seat: int, *, now_ns: int, delay_ms: float) -> None:
        """Note that a request of this seat ended, well or not."""
        self.requests += 1
        self.delays_ms.append(delay_ms)
        self.finished.add(seat)
        if self.all_finished_ns is None and self.users is not None and len(self.finished) >= self.users:
            self.all_finished_ns = now_ns

    def is_warmup(self, begun_ns: int) -> bool:
        """Of a row that has ended; `begun_ns` is when it was sent, in an open loop when it was wanted."""
        if begun_ns < self.t_start_ns + int(self.offered.warmup_s * 1e9):
            return True
        return self.users is not None and (self.all_finished_ns is None or begun_ns < self.all_finished_ns)


def crowd(offered: plan.Level, processes: int) -> int:
    """How many of Locust's users a level takes: its users, or one dispatcher per process."""
    return processes if offered.users is None else offered.users


def spread(name: str, values: list[float]) -> dict[str, float | None]:
    """`name`_p50, _p99 and _max by nearest rank; None where there is no value."""
    ordered = sorted(values)

    def at(percent: int) -> float | None:
        return round(ordered[max(0, -(-percent * len(ordered) // 100) - 1)], 3) if ordered else None

    return {f"{name}_p50": at(50), f"{name}_p99": at(99), f"{name}_max": at(100)}
