"""Windows of levels whose rows are made: warm-up, drift and growth are where they were put."""

import random
from typing import Any

import pytest

from tasks import artifact, windows
from tasks.plan import Level, Tier

S = 10**9
Row = dict[str, Any]


def tier(**level: Any) -> Tier:
    return Tier(levels=[Level(**level)], drain_s=30)


def call(at_s: float, ttft_ms: float, *, user: int = 0, **more: Any) -> Row:
    """Eleven tokens, 10 ms apart, after the first one."""
    sent = int(at_s * S)
    first = sent + int(ttft_ms * 1e6)
    row = {"level": 1, "user": user, "process": 0, "t_intended_ns": sent, "t_send_ns": sent, "t_first_token_ns": first}
    row |= {"t_last_token_ns": first + S // 10, "t_end_ns": first + S // 10, "output_tokens": 11}
    return row | {"failure": None, "is_aborted": False} | more


def calls(n: int, ttft_ms: Any, *, rate: float = 10, users: int = 2) -> list[Row]:
    """`ttft_ms` of the second; noise of a tenth."""
    rng = random.Random(4)
    return [
        call(i / rate, ttft_ms(i / rate) * rng.uniform(0.9, 1.1), user=i % users, request_id=str(i)) for i in range(n)
    ]


def only(rows: list[Row], planned: Tier) -> windows.Window:
    (found,) = windows.of(rows, planned).values()
    return found


def test_a_steady_level_counts_from_the_moment_every_user_had_finished_one() -> None:
    rows = calls(400, lambda _: 50)
    found = only(rows, tier(users=2, duration_s=40))
    assert found.state == "steady"
    assert found.window_start_ns == max(rows[0]["t_end_ns"], rows[1]["t_end_ns"])
    assert found.window_s == pytest.approx(39.7, abs=0.3)
    assert found.requests == 397
    assert 200 < found.effective_n <= 397
    assert found.trend_lower < 0 < found.trend_upper


def test_the_plans_warmup_is_the_least() -> None:
    assert only(calls(400, lambda _: 50), tier(users=2, duration_s=40, warmup_s=7)).window_start_ns == 7 * S


def test_warmup_is_found_beyond_what_the_plan_gives() -> None:
    found = only(calls(600, lambda s: 200 if s < 12 else 50), tier(users=2, duration_s=60, warmup_s=3))
    assert found.state == "steady"
    assert 12 * S <= found.window_start_ns <= 16 * S
    assert "more of warm-up found in the time to the first token" in found.reason


def test_a_first_wave_of_failures_is_warmup() -> None:
    rows = calls(600, lambda _: 50)
    failed = {"failure": "http_5xx", "t_first_token_ns": None, "t_last_token_ns": None}
    found = only([row | failed if row["t_send_ns"] < 6 * S else row for row in rows], tier(users=2, duration_s=60))
    assert found.state == "steady"
    assert 6 * S <= found.window_start_ns <= 10 * S


@pytest.mark.parametrize("key", ["ttft_ms", "tpot_ms"])
def test_drift_is_no_steady_state(key: str) -> None:
    rows = calls(600, lambda s: 50 + (50 * s / 60 if key == "ttft_ms" else 0))
    if key == "tpot_ms":
        for row in rows:
            row["t_last_token_ns"] += int(row["t_send_ns"] / (60 * S) * S / 10)
    found = only(rows, tier(users=2, duration_s=60))
    assert found.state == "no_steady_state"
    assert windows.WORDS[key] + " grew by " in found.reason
    assert "queue" not in found.reason
    assert 0 < found.trend_lower < 2 / 3 < found.trend_upper  # from 50 to 100 in a minute is two thirds of 75


@pytest.mark.parametrize(("overload", "state"), [(False, "no_steady_state"), (True, "overload")])
def test_growth_in_an_open_loop(overload: bool, state: str) -> None:
    """Twice the capacity: each second of arrivals adds half a second of waiting."""
    rows = calls(400, lambda s: 20 + 500 * s)
    found = only(rows, tier(rate_per_s=10, arrivals="constant", duration_s=40, overload=overload))
    assert found.state == state
    words = "of 400 requests" if overload else "the queue grows, and the plan declares no overload"
    assert words in found.reason
    assert found.trend_lower > 1


def test_a_sweep_looks_for_the_level_that_grows() -> None:
    """The second level is over the capacity, which is where a sweep ends; the third was not begun."""
    sweep = {"over": "rate_per_s", "start": 10, "factor": 2, "most": 40, "arrivals": "constant", "duration_s": 40}
    grown = [row | {"level": 2} for row in calls(800, lambda s: 20 + 500 * s, rate=20)]
    found = windows.of([*calls(400, lambda _: 50), *grown], Tier(sweep=sweep))
    assert [window.state for window in found.values()] == ["steady", "overload", "too_short"]
    assert "the sweep looked for" in found[2].reason


def test_an_open_loop_is_looked_at_from_the_intended_send() -> None:
    """The client sends later and later, and the server answers at once: the user waits all the same."""
    rows = [row | {"t_intended_ns": int(row["t_send_ns"] * 0.7)} for row in calls(600, lambda _: 50)]
    assert only(rows, tier(rate_per_s=14, arrivals="constant", duration_s=60)).state == "no_steady_state"


@pytest.mark.parametrize("n", [1, 30])
def test_too_short_is_said_and_is_no_drift(n: int) -> None:
    found = only(calls(n, lambda s: 50 + 100 * s, users=1), tier(users=1, duration_s=40))
    assert found.state == "too_short"
    assert "too few to tell" in found.reason


def test_a_user_who_never_finished() -> None:
    found = only(calls(400, lambda _: 50, users=2), tier(users=3, duration_s=40))
    assert (found.state, found.requests) == ("too_short", 0)
    assert found.reason == "not each of the 3 users had finished a request before the end"
    assert found.window_start_ns == found.window_end_ns


def test_nothing_sent() -> None:
    found = only([], tier(users=3, duration_s=40))
    assert (found.state, found.reason, found.window_s) == ("too_short", "nothing was sent", None)


def test_users_of_two_processes_are_different_ones() -> None:
    rows = [row | {"user": 0, "process": number % 2} for number, row in enumerate(calls(400, lambda _: 50))]
    assert only(rows, tier(users=2, duration_s=40)).state == "steady"


def test_what_is_sent_in_the_drain_is_outside() -> None:
    late = call(41, 50)
    found = only([*calls(400, lambda _: 50), late], tier(users=2, duration_s=40))
    assert found.window_end_ns == 40 * S
    assert not found.holds(late["t_send_ns"])
    assert found.holds(40 * S - 1)


def test_the_file_gives_back_what_was_found_and_marks_rows(tmp_path: Any) -> None:
    rows = calls(400, lambda _: 50)
    found = windows.write(tmp_path, rows, tier(users=2, duration_s=40, warmup_s=5))
    assert windows.read(tmp_path) == found
    assert artifact.read(tmp_path / "windows.json")["levels"][0]["state"] == "steady"
    marked = [windows.mark(row | {"is_warmup": None}, found)["is_warmup"] for row in rows]
    assert marked == [True] * 50 + [False] * 350
    assert windows.mark({"level": 2, "t_start_ns": 1, "is_warmup": True}, found)["is_warmup"] is True
    assert windows.read(tmp_path / "nowhere") == {}


def test_a_broken_file_is_named(tmp_path: Any) -> None:
    artifact.write(tmp_path / "windows.json", {"format": 1, "levels": [{"level": 1, "colour": "red"}]})
    with pytest.raises(artifact.BrokenArtifact, match=r"windows.json: .*colour"):
        windows.read(tmp_path)
