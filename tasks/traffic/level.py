"""One offered load while it runs: who takes part, until when, and what its rows are worth. No clock, no I/O.

A closed loop of `users`: each takes a seat, starts its next call or task when its last one ended, and starts none after
`end_ns`. What is in flight then may end until the drain is over; what is cut off is aborted.

Warm-up: what was sent before `warmup_s` passed, or before every user had finished one request. The second is known when
a row ends: if somebody is still missing then, somebody was missing when it was sent.
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
    seats: int = 0  # users that have taken part
    active: int = 0  # users that have not left yet
    is_cut: bool = False
    requests: int = 0
    delays_ms: list[float] = field(default_factory=list)
    lags_ms: list[float] = field(default_factory=list)
    finished: set[int] = field(default_factory=set)
    all_finished_ns: int | None = None

    @property
    def end_ns(self) -> int:
        return self.t_start_ns + int(self.offered.duration_s * 1e9)

    def enter(self) -> int:
        """Take the next seat, 0 and up."""
        seat, self.seats, self.active = self.seats, self.seats + 1, self.active + 1
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
        if self.all_finished_ns is None and len(self.finished) >= self.offered.users:
            self.all_finished_ns = now_ns

    def is_warmup(self, sent_ns: int) -> bool:
        """Of a row that has ended."""
        if sent_ns < self.t_start_ns + int(self.offered.warmup_s * 1e9):
            return True
        return self.all_finished_ns is None or sent_ns < self.all_finished_ns


def spread(name: str, values: list[float]) -> dict[str, float | None]:
    """`name`_p50, _p99 and _max by nearest rank; None where there is no value."""
    ordered = sorted(values)

    def at(percent: int) -> float | None:
        return round(ordered[max(0, -(-percent * len(ordered) // 100) - 1)], 3) if ordered else None

    return {f"{name}_p50": at(50), f"{name}_p99": at(99), f"{name}_max": at(100)}
