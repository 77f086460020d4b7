"""Was a level more than the server can do? What a sweep stops at.

Open loop. Calls arrive whatever is in flight, so what is not served piles up: achieved < offered and a growing queue
are one thing, seen twice. Cut the level into thirds, leave the first one to the warm-up, and let g be the mean number
in flight in the last third less that in the middle one, and A the arrivals per third. Where every arrival beyond the
capacity stays, g / A is the share of the load that is not served. Over-saturated:

    g >= 5 % of A        less than 95 % of the load is served (ours: a smaller lack needs a longer level to show)
    g >= 2 sqrt(2 A)     and no queue at just its capacity would wander so far: in a random walk of A arrivals and A
                         departures, each of them Poisson, that is two standard deviations

So a short level of few arrivals can hide a small lack, and never shows one that is not there at load 0.9 or less (there
the queue wanders less). A ramp is judged likewise, by its own arrivals.

Closed loop. The users wait, so nothing piles up at our side: a level is over-saturated if `users` grew and what was
done did not, by more than 5 %, since the level before.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

LEAST_SHARE = 0.05
DEVIATIONS = 2.0
LEAST_GAIN = 0.05


@dataclass(frozen=True)
class Flow:
    """Of calls or tasks, over a level's thirds. Flows of several processes add up."""

    arrived: int  # in the last two thirds
    completed: int  # in the last two thirds
    in_flight_middle: float  # mean number over the middle third
    in_flight_last: float
    seconds: float  # of the last two thirds

    def __add__(self, other: "Flow") -> "Flow":
        return Flow(
            self.arrived + other.arrived,
            self.completed + other.completed,
            self.in_flight_middle + other.in_flight_middle,
            self.in_flight_last + other.in_flight_last,
            max(self.seconds, other.seconds),
        )


def flow(begun_ns: Sequence[int], ended_ns: Sequence[int], *, t_start_ns: int, t_end_ns: int) -> Flow:
    """Of one process in one level. What has not ended by `t_end_ns` is in flight there."""
    begun, ended = sorted(begun_ns), sorted(ended_ns)
    third = (t_end_ns - t_start_ns) / 3
    middle, last = t_start_ns + third, t_start_ns + 2 * third
    return Flow(
        arrived=_between(begun, middle, t_end_ns),
        completed=_between(ended, middle, t_end_ns),
        in_flight_middle=_mean_in_flight(begun, ended, middle, last),
        in_flight_last=_mean_in_flight(begun, ended, last, t_end_ns),
        seconds=2 * third / 1e9,
    )


def of_open(found: Flow) -> str | None:
    """Why an open-loop level is over-saturated, in words; None if it is not, as far as it shows."""
    growth, arrivals = found.in_flight_last - found.in_flight_middle, found.arrived / 2
    if not arrivals or growth < max(LEAST_SHARE * arrivals, DEVIATIONS * math.sqrt(2 * arrivals)):
        return None
    return (
        f"the queue grew: {found.in_flight_middle:.1f} in flight in the middle third, {found.in_flight_last:.1f} in "
        f"the last; {found.completed / found.seconds:.3g}/s done of {found.arrived / found.seconds:.3g}/s offered"
    )


def of_closed(found: Flow, before: Flow | None) -> str | None:
    """Why a closed-loop level is over-saturated, against the level before it with fewer users."""
    if before is None or not before.completed or not found.seconds:
        return None
    now, then = found.completed / found.seconds, before.completed / before.seconds
    if now > then * (1 + LEAST_GAIN):
        return None
    return f"more users, no more done: {now:.3g}/s, {then:.3g}/s at the level before"


def _between(ordered: Sequence[int], after: float, until: float) -> int:
    return bisect_right(ordered, until) - bisect_right(ordered, after)


def _mean_in_flight(begun: Sequence[int], ended: Sequence[int], after: float, until: float) -> float:
    """The integral of (begun so far - ended so far) over the span, by its length."""
    if until <= after:
        return 0.0
    so_far = bisect_right(begun, after) - bisect_right(ended, after)
    area = sum(until - at for at in begun if after < at <= until)
    area -= sum(until - at for at in ended if after < at <= until)
    return so_far + area / (until - after)
