"""From rows to the values that are counted: which rows, in which order, and what a failure is worth.

Counted is what was sent in the steady window. A failed row is +inf, whatever stamps it has. A metric that a good row
cannot have (time per token of a one-token answer) leaves that row out. How late our own client was is no latency of the
server: there a failed row counts with what was measured.

A row that our own client cut off took longer than the client waited for it. Those are the slowest of all, so leaving
them out would make a slow server look fast. One that was waited for as long as `cut_after_ms` counts: with its first
token, if that came, else as +inf. `cut_after_ms` is the level's drain: what was sent before the level's end and is cut
has been waited for at least so long. One cut sooner (a step that a task began within the drain) says nothing and is
left out.
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
UNTIL_FIRST = frozenset({"first_byte_ms", "ttft_ms", "ttft_intended_ms", "ttfa_ms"})  # final as soon as they are there
UNTIL_LAST = frozenset({"e2e_ms", "e2e_intended_ms", "task_ms"})


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


def of(rows: Iterable[Row], metric: Metric, *, steps: Steps = "all", cut_after_ms: float = math.inf) -> Series:
    """The series of one metric over one level's rows. The first model call of a task is step 1."""
    counted = [row for row in rows if not row.get("is_warmup") and _is_step(row, steps)]
    counted.sort(key=lambda row: row.get("sent_at") or row.get("started_at") or 0.0)
    valued = [(row, value) for row in counted if (value := value_of(row, metric, cut_after_ms)) is not None]
    in_tasks = metric.row == "request" and bool(valued) and all(row.get("task_id") for row, _ in valued)
    return Series([value for _, value in valued], [row["task_id"] for row, _ in valued] if in_tasks else None)


def value_of(row: Row, metric: Metric, cut_after_ms: float) -> float | None:
    """What a row counts for: +inf for a failure; None if it says nothing about the metric."""
    if row.get("is_aborted"):
        return _value_of_cut(row, metric) if _waited_ms(row) >= cut_after_ms else None
    if row.get("failure") and metric.name not in CLIENT_SIDE:
        return math.inf
    return metric.of(row)


def _value_of_cut(row: Row, metric: Metric) -> float | None:
    if metric.name in UNTIL_FIRST:
        return value if (value := metric.of(row)) is not None else math.inf
    return math.inf if metric.name in UNTIL_LAST else None


def _waited_ms(row: Row) -> float:
    began, ended = row.get("t_start_ns", row.get("t_send_ns")), row.get("t_end_ns")
    return 0.0 if began is None or ended is None else float((ended - began) / 1e6)


def _is_step(row: Row, steps: Steps) -> bool:
    return steps == "all" or (row.get("step") == 1) == (steps == "first")
