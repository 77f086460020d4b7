"""From rows to the values that are counted: which rows, in which order, and what a failure is worth.

Counted is what was sent in the steady window and not cut off by our own client. A failed row is +inf, whatever stamps
it has. A metric that a good row cannot have (time per token of a one-token answer) leaves that row out. How late our
own client was is no latency of the server: there a failed row counts with what was measured.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tasks.metrics import Metric
from tasks.stats import percentile as bounds
from tasks.stats.dependence import effective_n

Row = Mapping[str, Any]
Steps = Literal["all", "first", "later"]
CLIENT_SIDE = frozenset({"schedule_delay_ms"})


@dataclass(frozen=True)
class Series:
    """Values in order of sending; `clusters` names the task that each belongs to, where rows belong to tasks."""

    values: list[float]
    clusters: list[str] | None

    def quantile(self, q: float) -> bounds.Percentile:
        """With two-sided 95 % bounds, at what the values are worth."""
        worth = effective_n(self.values, q, clusters=self.clusters)
        return bounds.percentile(self.values, q, effective_n=worth)

    def judge(self, *, objective: float, fraction: float, unit: str) -> bounds.Judged:
        """Verdict with one-sided 95 % bounds, at what the values are worth."""
        worth = effective_n(self.values, fraction, clusters=self.clusters)
        return bounds.judge(self.values, objective=objective, fraction=fraction, effective_n=worth, unit=unit)


def is_counted(row: Row) -> bool:
    """In the steady window, and ended by the server or by a failure rather than by our own client."""
    return not row.get("is_warmup") and not row.get("is_aborted")


def of(rows: Iterable[Row], metric: Metric, *, steps: Steps = "all") -> Series:
    """The series of one metric over one level's rows. The first model call of a task is step 1."""
    counted = [row for row in rows if is_counted(row) and _is_step(row, steps)]
    counted.sort(key=lambda row: row.get("sent_at") or row.get("started_at") or 0.0)
    valued = [(row, value) for row in counted if (value := _value(row, metric)) is not None]
    in_tasks = metric.row == "request" and bool(valued) and all(row.get("task_id") for row, _ in valued)
    return Series([value for _, value in valued], [row["task_id"] for row, _ in valued] if in_tasks else None)


def _value(row: Row, metric: Metric) -> float | None:
    if row.get("failure") and metric.name not in CLIENT_SIDE:
        return math.inf
    return metric.of(row)


def _is_step(row: Row, steps: Steps) -> bool:
    return steps == "all" or (row.get("step") == 1) == (steps == "first")
