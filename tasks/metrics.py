"""The one metric table: what every measurement means. Docs, column comments, axis labels and SLOs read it.

A request row holds stamps (`t_*_ns`, integers of one monotonic clock, None if it did not happen), token counts from
the server's `usage` block and `chunks`. A task row holds `t_start_ns` and `t_end_ns`. What cannot be computed is None,
never 0. A failed row keeps its stamps; that it counts as infinite latency is the business of tasks/stats.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Row = Mapping[str, Any]

# A gap between chunks that a reader feels: people read 238 words a minute (Brysbaert 2019, J. of Memory and Language
# 109, 104047), 252 ms each, so after so long a pause what there was is read. Stalls are counted because one gap in a
# thousand moves no p99.
STALL_MS = 250.0


@dataclass(frozen=True)
class Metric:
    name: str
    unit: str
    better: Literal["lower", "higher", "neither"]
    of: Callable[[Row], float | None]
    says: str
    row: Literal["request", "task"] = "request"


def _between(start: str, end: str) -> Callable[[Row], float | None]:
    def of(row: Row) -> float | None:
        a, b = row.get(start), row.get(end)
        return None if a is None or b is None else float(b - a) / 1e6

    return of


def tpot_ms(row: Row) -> float | None:
    first, last, tokens = row.get("t_first_token_ns"), row.get("t_last_token_ns"), row.get("output_tokens")
    if first is None or last is None or tokens is None or tokens < 2:
        return None
    return float((last - first) / 1e6 / (tokens - 1))


def tokens_per_chunk(row: Row) -> float | None:
    tokens, chunks = row.get("output_tokens"), row.get("chunks")
    return None if tokens is None or not chunks else float(tokens / chunks)


def icl_ms(row: Row) -> float | None:
    """Mean gap between the chunks of one request."""
    first, last, chunks = row.get("t_first_token_ns"), row.get("t_last_token_ns"), row.get("chunks")
    if first is None or last is None or chunks is None or chunks < 2:
        return None
    return float((last - first) / 1e6 / (chunks - 1))


TABLE = (
    Metric(
        "schedule_delay_ms",
        "ms",
        "lower",
        _between("t_intended_ns", "t_send_ns"),
        "sent minus intended: how late the client itself was",
    ),
    Metric(
        "first_byte_ms", "ms", "lower", _between("t_send_ns", "t_first_byte_ns"), "first byte of the answer minus sent"
    ),
    Metric(
        "ttft_ms",
        "ms",
        "lower",
        _between("t_send_ns", "t_first_token_ns"),
        "first delta that carries content, reasoning or tool-call arguments, minus sent",
    ),
    Metric(
        "ttfa_ms",
        "ms",
        "lower",
        _between("t_send_ns", "t_first_answer_ns"),
        "first delta that is not reasoning, minus sent",
    ),
    Metric(
        "icl_ms",
        "ms",
        "lower",
        icl_ms,
        "mean gap between chunks of one request; not a gap between tokens when a chunk carries several",
    ),
    Metric("icl_ms_max", "ms", "lower", lambda row: row.get("icl_ms_max"), "longest gap between chunks of one request"),
    Metric(
        "tpot_ms",
        "ms",
        "lower",
        tpot_ms,
        "(last token - first token) / (output_tokens - 1); none for fewer than two tokens",
    ),
    Metric("e2e_ms", "ms", "lower", _between("t_send_ns", "t_last_token_ns"), "last token minus sent"),
    Metric(
        "ttft_intended_ms",
        "ms",
        "lower",
        _between("t_intended_ns", "t_first_token_ns"),
        "first token minus when the schedule wanted the call sent: what a user of an open loop waits",
    ),
    Metric(
        "e2e_intended_ms",
        "ms",
        "lower",
        _between("t_intended_ns", "t_last_token_ns"),
        "last token minus when the schedule wanted the call sent",
    ),
    Metric(
        "tokens_per_chunk",
        "tokens",
        "neither",
        tokens_per_chunk,
        "output tokens by the server's usage, divided by the chunks that carried a delta",
    ),
    Metric(
        "task_ms",
        "ms",
        "lower",
        _between("t_start_ns", "t_end_ns"),
        "a whole agent task: from the user's message to the final answer, tools included",
        row="task",
    ),
)
BY_NAME = {metric.name: metric for metric in TABLE}


def computed(row: Row, kind: Literal["request", "task"] = "request") -> dict[str, float | None]:
    """Every metric of one row, by name."""
    return {metric.name: metric.of(row) for metric in TABLE if metric.row == kind}
