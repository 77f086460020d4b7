"""The steady window of each level of a tier: what is counted, and whether it stood still. `<tier>/windows.json`.

From the rows and the plan alone, so that it can be found again from a stored run. Per level:

1. The floor. Nothing counts that was sent before the plan's `warmup_s` was over, and in a closed loop nothing that was
   sent before every user had finished one request.
2. Warm-up after the floor is found, not assumed: a change point in the time to the first token or in the time per
   token, whichever ends later (tasks/stats/steady.py).
3. What is left, up to the end of the load, is the window. A trend in either of the two says that it is not steady.

In a closed loop the throughput is users / e2e, and in an open one it is the arrival rate until the queue grows, which
the time to the first token shows; so throughput is no third series. Open loops are looked at from the intended time.

    steady            nothing in it changes by more than matters, as far as so many requests can show
    too_short         so few requests, or so dependent, that no test can tell. A short run is stated, and is no fault
    no_steady_state   it drifts. In an open loop that gets slower, the queue grows
    overload          declared by the plan: the queue grows on purpose, and its growth is the result. A sweep over rates
                      declares it too: it goes up until a queue grows, so where one does, that is what it looked for

`trend_per_minute` is the change of the median time to the first token per minute, as a share of the window's median,
with its two-sided 99.99 % interval; of a level that drifts in its time per token, the change of that.

windows.json format 1 (2026-11): the first.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from tasks import artifact, metrics, plan
from tasks.stats import series, steady
from tasks.stats.dependence import effective_n

FORMAT = 1
METHOD = "MSER-5 on ranks with a penalised change; Theil-Sen trend of batch medians"
WORDS = {
    "ttft_ms": "the time to the first token",
    "ttft_intended_ms": "the time from the intended send to the first token",
    "tpot_ms": "the time per token",
}
State = Literal["steady", "too_short", "no_steady_state", "overload"]
Row = Mapping[str, Any]
Document = dict[str, Any]


@dataclass(frozen=True)
class Window:
    """ns of the client's monotonic clock; None where the level sent nothing."""

    level: int
    state: State
    reason: str
    method: str = METHOD
    warmup_ends_ns: int | None = None
    window_start_ns: int | None = None
    window_end_ns: int | None = None
    window_s: float | None = None
    requests: int = 0
    effective_n: float = 0.0
    trend_per_minute: float | None = None
    trend_lower: float | None = None
    trend_upper: float | None = None

    def holds(self, at_ns: int | None) -> bool:
        """Was it sent in the window?"""
        if at_ns is None or self.window_start_ns is None or self.window_end_ns is None:
            return False
        return self.window_start_ns <= at_ns < self.window_end_ns


def write(folder: Path, requests: Sequence[Row], tier: plan.Tier) -> dict[int, Window]:
    """Find the windows of a tier's levels and write windows.json into its folder. Raises OSError."""
    found = of(requests, tier)
    artifact.write(folder / "windows.json", {"format": FORMAT, "levels": [vars(window) for window in found.values()]})
    return found


def read(folder: Path) -> dict[int, Window]:
    """By level; empty if the tier has none. Raises BrokenArtifact."""
    told = artifact.optional(folder, "windows").get("levels", [])
    try:
        return {level["level"]: Window(**level) for level in told}
    except (KeyError, TypeError) as error:
        raise artifact.BrokenArtifact(f"{folder / 'windows.json'}: {error}") from error


@dataclass(frozen=True)
class Level:
    """What a level offered, and what was sent in it, in order."""

    number: int
    offered: plan.Level
    rows: list[Row]
    drain_ms: float
    is_swept: bool = False

    @property
    def metrics(self) -> tuple[str, str]:
        """The two that are looked at."""
        return ("ttft_ms" if self.offered.rate_per_s is None else "ttft_intended_ms"), "tpot_ms"

    def series(self, window: Window, name: str) -> tuple[list[int], list[float]]:
        """When and what, of the requests of a window; a failure is +inf."""
        metric, at_ns, values = metrics.BY_NAME[name], [], []
        for row in self.rows:
            at = sent_ns(row)
            if at is not None and window.holds(at):
                value = series.value_of(row, metric, self.drain_ms)
                if value is not None:
                    at_ns.append(at)
                    values.append(value)
        return at_ns, values

    def trend(self, window: Window, name: str) -> steady.Trend | None:
        at_ns, values = self.series(window, name)
        return steady.trend(values, [at / 1e9 for at in at_ns])


def of(requests: Sequence[Row], tier: plan.Tier) -> dict[int, Window]:
    """The window of every planned level, by number."""
    by_level: dict[int, list[Row]] = {number: [] for number in range(1, 1 + len(tier.levels))}
    for row in requests:
        if row.get("level") in by_level and sent_ns(row) is not None:
            by_level[row["level"]].append(row)
    return {
        number: _of_level(
            Level(number, offered, sorted(by_level[number], key=_at), tier.drain_s * 1e3, tier.sweep is not None)
        )
        for number, offered in enumerate(tier.levels, start=1)
    }


def mark(row: Row, found: Mapping[int, Window]) -> Document:
    """The row with `is_warmup` as the windows say; as it was where they say nothing."""
    window, at_ns = found.get(row.get("level", 0)), sent_ns(row)
    if window is None or window.window_start_ns is None or at_ns is None:
        return dict(row)
    return dict(row) | {"is_warmup": at_ns < window.window_start_ns}


def sent_ns(row: Row) -> int | None:
    """When a request or task was wanted, which is hardly before it was sent; a late client must not move it."""
    for name in ("t_intended_ns", "t_send_ns", "t_start_ns"):
        if row.get(name) is not None:
            return int(row[name])
    return None


def _at(row: Row) -> int:
    return sent_ns(row) or 0


def _of_level(level: Level) -> Window:
    rows, offered = level.rows, level.offered
    if not rows:
        return Window(
            level.number, "too_short", "not begun: the sweep had ended" if level.is_swept else "nothing was sent"
        )
    began_ns = _at(rows[0])
    ends_ns = min(began_ns + int(offered.duration_s * 1e9), _at(rows[-1]) + 1)
    floor_ns = min(began_ns + int(offered.warmup_s * 1e9), ends_ns)
    if offered.overload:
        return _overload(level, _bounded(level.number, floor_ns, ends_ns))
    every_ns = _every_user_ns(level)
    if every_ns is None:
        reason = f"not each of the {offered.users} users had finished a request before the end"
        return replace(_bounded(level.number, ends_ns, ends_ns), state="too_short", reason=reason)
    return _settled(level, _bounded(level.number, min(max(floor_ns, every_ns), ends_ns), ends_ns))


def _every_user_ns(level: Level) -> int | None:
    """When every user of a closed loop had finished one request; 0 in an open loop. None: never."""
    if level.offered.users is None:
        return 0
    first: dict[tuple[Any, Any], int] = {}
    for row in level.rows:
        if row.get("t_end_ns") is not None and not row.get("is_aborted"):
            user = row.get("process"), row.get("user")
            first[user] = min(row["t_end_ns"], first.get(user, row["t_end_ns"]))
    return max(first.values()) if len(first) >= level.offered.users else None


def _bounded(number: int, start_ns: int, end_ns: int) -> Window:
    return Window(
        number,
        "steady",
        "",
        warmup_ends_ns=start_ns,
        window_start_ns=start_ns,
        window_end_ns=end_ns,
        window_s=(end_ns - start_ns) / 1e9,
    )


def _settled(level: Level, window: Window) -> Window:
    """Cut what is found to be warm-up, then test what is left."""
    start_ns, said = window.window_start_ns or 0, ""
    for name in level.metrics:
        at_ns, values = level.series(window, name)
        cut = steady.warmup(values)
        if cut and at_ns[cut] > start_ns:
            start_ns = at_ns[cut]
            more_s = (start_ns - (window.window_start_ns or 0)) / 1e9
            said = f"{more_s:.1f} s more of warm-up found in {WORDS[name]}; "
    tested = _tested(level, _bounded(window.level, start_ns, window.window_end_ns or start_ns))
    return replace(tested, reason=said + tested.reason)


def _tested(level: Level, window: Window) -> Window:
    """The window with its state, its reason and its trend."""
    window, length = _weighed(level, window)
    trends = [(name, level.trend(window, name)) for name in level.metrics]
    first = trends[0][1]
    if first is None:
        return replace(window, state="too_short", reason=_too_few(window, length))
    for name, found in trends:
        if found is not None and found.is_drift:
            return replace(_with(window, found), **_drifts(level, name, found))
    return replace(_with(window, first), state="steady", reason=f"no trend of {steady.MATTERS:.0%} or more is shown")


def _overload(level: Level, window: Window) -> Window:
    """No steady state by declaration: how fast the queue grew is the result."""
    window = replace(_weighed(level, window)[0], state="overload")
    end_ns = window.window_end_ns or 0
    sent = [row for row in level.rows if _at(row) < end_ns]
    left = sum(row.get("t_end_ns") is None or row["t_end_ns"] > end_ns for row in sent)
    reason = f"declared overload: of {len(sent)} requests {left} were not answered when the load ended"
    found = level.trend(window, level.metrics[0])
    if found is None:
        return replace(window, reason=f"{reason}; too few to tell how the waiting grew")
    grew = f"by {abs(found.per_minute):.0%} of its median per minute"
    shown = f"grew {grew}" if found.lower > 0 else "shows no growth"
    return replace(_with(window, found), reason=f"{reason}; the waiting {shown}")


def _weighed(level: Level, window: Window) -> tuple[Window, int]:
    """With its n and effective n; and how long a batch of it must be."""
    _, values = level.series(window, level.metrics[0])
    worth = effective_n(values, 0.5)
    return replace(window, requests=len(values), effective_n=round(worth, 1)), steady.batch_length(values)


def _with(window: Window, found: steady.Trend) -> Window:
    lower, upper = (bound if math.isfinite(bound) else None for bound in (found.lower, found.upper))
    return replace(window, trend_per_minute=found.per_minute, trend_lower=lower, trend_upper=upper)


def _too_few(window: Window, length: int) -> str:
    need = length * steady.LEAST_BATCHES
    return (
        f"{window.requests} requests in {window.window_s or 0:.1f} s are too few to tell whether it was steady: "
        f"{steady.LEAST_BATCHES} batches of {length}, longer than their correlation, are {need}"
    )


def _drifts(level: Level, name: str, found: steady.Trend) -> Document:
    """State and reason: what drifts, by how much, and how sure that is."""
    low, high = sorted((abs(found.lower), abs(found.upper)))
    way = "grew" if found.per_minute > 0 else "fell"
    reason = (
        f"{WORDS[name]} {way} by {abs(found.per_minute * found.minutes):.0%} of its median over the window "
        f"(99.99 % interval {low * found.minutes:.0%} to {high * found.minutes:.0%})"
    )
    is_queue = found.is_growth and level.offered.rate_per_s is not None
    if is_queue and level.is_swept:
        return {"state": "overload", "reason": f"the sweep looked for more than the server can do, and here {reason}"}
    queue = "; the queue grows, and the plan declares no overload" if is_queue and name != "tpot_ms" else ""
    return {"state": "no_steady_state", "reason": reason + queue}
