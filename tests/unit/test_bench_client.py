"""bench/client against a record that is known: errors, the window, what is lost."""

from typing import Any

import pytest

from bench import client
from bench.client_tools import Load, Told

MS = 1_000_000


def answer(name: str, arrived_ms: int, sent_ms: list[int]) -> dict[str, Any]:
    return {"asked_id": name, "arrived_ns": arrived_ms * MS, "sent_ns": [at * MS for at in sent_ms]}


TRUTH = {
    "late_reads": 0,
    "answers": [answer("a", 1000, [1050, 1070]), answer("b", 2000, [2050, 2070]), answer("c", 3000, [3050, 3070])],
}
SAMPLES = [(0, 0.0, 5 * 10**6), (4000 * MS, 4.0, 7 * 10**6)]  # one core all the time
LOAD = Load(streams=1, count=3)


def judged(told: list[Told], *, is_spread: bool = True) -> dict[str, Any]:
    return client.judged(TRUTH, told, SAMPLES, LOAD, is_spread=is_spread)


def test_errors_are_of_the_answers_after_the_first_wave() -> None:
    found = judged([Told(99.0, [99.0], "a"), Told(51.0, [20.0], "b"), Told(47.0, [300.0], "c")])
    assert (found["judged"], found["lost"], found["stalls"], found["stalls_true"]) == (2, 0, 1, 0)
    assert (found["ttft_error_ms_max"], found["gap_error_ms_max"]) == (3.0, 280.0)


def test_the_burst_is_judged_whole() -> None:
    found = judged([Told(99.0, [20.0], "a"), Told(50.0, [20.0], "b"), Told(50.0, [20.0], "c")], is_spread=False)
    assert (found["judged"], found["ttft_error_ms_max"]) == (3, 49.0)


def test_cpu_and_chunks_are_of_the_window() -> None:
    found = judged([Told(50.0, None, name) for name in "abc"])  # from 2000 to 3000 ms: two chunks, one CPU second
    assert (found["chunks_per_core_s"], found["core_share"], found["rss_mb"]) == (2, pytest.approx(1.0), 7)
    assert (found["gap_error_ms_p50"], found["stalls"]) == (None, None)  # not exported is not zero


def test_missing_answers_and_chunks_are_lost() -> None:
    assert judged([Told(50.0, [20.0], "a"), Told(50.0, [], "c")])["lost"] == 2


def test_without_ids_the_order_of_start_counts() -> None:
    found = judged([Told(53.0, [20.0], begun=3), Told(50.0, [20.0], begun=1), Told(51.0, [20.0], begun=2)])
    assert (found["ttft_error_ms_p50"], found["ttft_error_ms_max"]) == (3.0, 3.0)


def test_the_best_peer_is_the_best_of_the_others() -> None:
    runs = {("256", "armwise"): [{"chunks_per_core_s": 30}], ("256", "x"): [{"chunks_per_core_s": 20}, {"fault": "no"}]}
    assert client.summary(runs)["ratio_to_best_peer"] == 1.5
    assert client.summary({})["ratio_to_best_peer"] is None


def test_the_worst_round_is_told_beside_the_median() -> None:
    found = client.summary({("256", "armwise"): [{"ttft_error_ms_p99": value} for value in (0.1, 20.0, 0.2)]})
    assert (found["ttft_error_ms_p99_256"], found["ttft_error_ms_p99_256_worst_round"]) == (0.2, 20.0)
