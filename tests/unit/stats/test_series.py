"""Which rows of a level are counted, and with what: every expectation is written out by hand."""

import math

import pytest

from tasks.metrics import BY_NAME
from tasks.stats import series

INF = math.inf
DRAIN_MS = 30_000


def call(sent_s: float, *, first_ms: float | None = 50, took_ms: float = 150, **changes) -> dict:
    sent_ns = int(sent_s * 1e9)
    first_ns = None if first_ms is None else sent_ns + int(first_ms * 1e6)
    last_ns = None if first_ms is None else sent_ns + int(took_ms * 1e6)
    row = {"sent_at": sent_s, "t_send_ns": sent_ns, "t_first_token_ns": first_ns, "t_last_token_ns": last_ns}
    row |= {"t_intended_ns": sent_ns, "t_end_ns": sent_ns + int(took_ms * 1e6), "output_tokens": 11, "chunks": 11}
    return row | {"step": 1, "task_id": None, "failure": None, "is_warmup": False, "is_aborted": False} | changes


def values(rows: list[dict], metric: str, **choice) -> list[float]:
    return series.of(rows, BY_NAME[metric], cut_after_ms=DRAIN_MS, **choice).values


def test_in_order_of_sending_without_the_warm_up():
    rows = [call(3, first_ms=30), call(1, first_ms=10, is_warmup=True), call(2, first_ms=20)]
    assert values(rows, "ttft_ms") == [20, 30]


def test_a_failure_is_infinite_whatever_stamps_it_has_and_the_client_is_not():
    rows = [call(1), call(2, failure="truncated")]
    assert values(rows, "e2e_ms") == [150, INF]
    assert values(rows, "schedule_delay_ms") == [0, 0]


@pytest.mark.parametrize(
    ("metric", "waiting", "streaming"),
    [("ttft_ms", INF, 40), ("e2e_ms", INF, INF), ("tpot_ms", None, None), ("schedule_delay_ms", None, None)],
)
def test_what_was_cut_off_after_the_whole_drain_was_slow(metric, waiting, streaming):
    cut = [
        call(1, first_ms=None, took_ms=DRAIN_MS, is_aborted=True),
        call(2, first_ms=40, took_ms=DRAIN_MS, is_aborted=True),
    ]
    assert values(cut, metric) == [value for value in (waiting, streaming) if value is not None]


def test_what_was_cut_off_sooner_says_nothing():
    rows = [call(1), call(2, first_ms=40, took_ms=DRAIN_MS - 1, is_aborted=True)]
    assert values(rows, "ttft_ms") == [50]
    assert values(rows, "e2e_ms") == [150]


def test_a_task_that_was_cut_off_is_infinite():
    task = {"started_at": 1.0, "t_start_ns": 10**9, "t_end_ns": 10**9 + DRAIN_MS * 10**6, "is_aborted": True}
    assert values([task], "task_ms") == [INF]


def test_steps_of_a_task():
    rows = [call(n, first_ms=10 * n, step=n, task_id="t") for n in (1, 2, 3)]
    assert [values(rows, "ttft_ms", steps=steps) for steps in ("all", "first", "later")] == [
        [10, 20, 30],
        [10],
        [20, 30],
    ]
