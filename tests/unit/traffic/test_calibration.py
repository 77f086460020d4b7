"""What a calibration offers and what is read from it, on calls whose times are known by construction."""

from itertools import pairwise
from typing import Any

import pytest

from tasks.plan import Tier
from tasks.traffic import calibration

MS = 1_000_000
BOUNDS = {"schedule_delay_ms_p99": 100.0, "loop_lag_ms_p99": 100.0, "cpu_share": 0.8}


def tier(*levels: dict[str, Any], **more: Any) -> Tier:
    return Tier.model_validate({"levels": [{"duration_s": 60} | level for level in levels], "calibrate_s": 2.0} | more)


def test_a_closed_loop_is_calibrated_at_its_highest_level() -> None:
    offered = calibration.offered(tier({"users": 2}, {"users": 256}, {"users": 8}, max_tokens=512))
    assert (offered.level, offered.streams, offered.rate_per_s) == (2, 256, None)
    assert offered.chunks_per_s == 12_800
    assert offered.round_s == 0.5  # two rounds on each of two paths
    assert offered.chunks == 256  # 50 calls in the second of a path: as few as that need answers of 5.12 s


def test_few_streams_get_short_answers_so_that_there_are_calls_enough() -> None:
    offered = calibration.offered(tier({"users": 4}))
    assert offered.chunks == calibration.SHORTEST
    calls = [call for stream in range(4) for call in offered.calls(stream)]
    assert len(calls) >= 20


def test_an_open_loop_has_as_many_streams_as_answers_in_flight() -> None:
    poisson = {"rate_per_s": 10.0, "arrivals": "poisson"}
    offered = calibration.offered(tier(poisson, output_tokens=100))
    assert (offered.streams, offered.rate_per_s) == (20, 10.0)  # an answer of 100 tokens takes 2 s
    assert calibration.offered(tier(poisson | {"ramp_to_per_s": 30.0}, output_tokens=100)).streams == 60
    assert calibration.offered(tier(poisson)).streams == 52  # 256 tokens at the most: 5.12 s


def test_streams_start_at_once_and_their_chunks_fall_apart() -> None:
    offered = calibration.Offered(level=1, streams=8, rate_per_s=None, chunks=10, round_s=1.0)
    plans = [list(offered.calls(stream)) for stream in range(8)]
    assert {plan[0][0] for plan in plans} == {0.0}
    phases = sorted(plan[0][2] % 0.02 for plan in plans)
    gaps = [b - a for a, b in zip(phases, [*phases[1:], phases[0] + 0.02], strict=True)]
    assert min(gaps) > 0.001 and max(gaps) < 0.005, "evenly over the 20 ms between two chunks"
    for plan in plans:
        for (at, chunks, first_gap), (then, _, _) in pairwise(plan):
            assert then == pytest.approx(at + first_gap + (chunks - 1) * 0.02), "one answer after the other"
        last_at, last_chunks, _ = plan[-1]
        assert last_at + (last_chunks - 1) * 0.02 <= 1.0, "a round's answers end with it"
    assert len({plan[0][1] for plan in plans}) > 3, "the first answers do not all end at once"


def call(*, send: int, heard: int, sent: list[int], came: list[int], due: list[int] | None = None, **row: Any) -> Any:
    """One call. All times in ms of one clock; `due` is when the server's chunks were due (the first: heard)."""
    due = [heard, *(due or sent[1:])]
    text = "".join(f"{at * MS:019d}" for pair in zip(due, sent, strict=True) for at in pair)
    told = {"t_send_ns": send * MS, "t_intended_ns": send * MS, "failure": None, "failure_detail": None}
    return text, told | {"is_aborted": False} | row, [at * MS for at in came]


def row(*, asked: int = 3, is_burst: bool = False, **times: Any) -> dict[str, Any]:
    return calibration.measured(*call(**times), asked=asked, is_burst=is_burst)


def test_what_one_call_shows() -> None:
    found = row(send=100, heard=102, sent=[109, 130, 150], due=[129, 150], came=[110, 134, 149], t_intended_ns=95 * MS)
    assert found["ttft_floor_ms"] == 3  # 10 reported, 7 of them the server's
    assert found["ttft_error_ms"] == 1
    assert found["icl_error_ms"] == [3, 5]  # 24 instead of 21, 15 instead of 20
    assert found["server_late_ms"] == [7, 1, 0]
    assert found["schedule_delay_ms"] == 5
    assert (found["lost"], found["stalls"], found["chunks"]) == (0, 0, 3)


def test_a_stall_is_the_clients_only_if_the_server_had_none() -> None:
    assert row(send=0, heard=1, sent=[1, 21, 41], came=[2, 22, 400])["stalls"] == 1
    assert row(send=0, heard=1, sent=[1, 21, 400], came=[2, 22, 401])["stalls"] == 0


def test_a_chunk_that_was_sent_and_not_heard_is_lost() -> None:
    text, told, came = call(send=0, heard=1, sent=[1, 21], came=[2, 22])
    assert calibration.measured(text, told, came, asked=3, is_burst=False)["lost"] == 1
    for cut in ({"is_aborted": True}, {"failure": "truncated", "failure_detail": "x"}):
        assert calibration.measured(text, told | cut, came, asked=3, is_burst=False)["lost"] == 0


def test_an_answer_that_is_no_echo_has_no_figure() -> None:
    _, told, _ = call(send=0, heard=1, sent=[1], came=[2])
    failed = told | {"failure": "http_5xx", "failure_detail": "502: no"}
    found = calibration.measured("", failed, [], asked=3, is_burst=False)
    assert found["failure"] == "http_5xx: 502: no"
    assert "ttft_floor_ms" not in found


def process(*rows: dict[str, Any], lag_ms: float = 1.0, cpu: float = 0.1, pid: int = 7) -> dict[str, Any]:
    return {"rows": list(rows), "loop_lag_ms": [lag_ms], "cpu_share": cpu, "pid": pid}


def good(floor: int = 4, **more: Any) -> dict[str, Any]:
    return row(send=0, heard=2, sent=[2, 22, 42], came=[floor, 24, 44], **more)


def test_figures_merge_processes_and_tell_the_worst_one() -> None:
    burst = good(90, is_burst=True)
    found = calibration.figures([process(good(3), burst), process(good(5), good(9), lag_ms=8.0, cpu=0.5, pid=8)])
    assert (found["calls"], found["calls_after_burst"], found["chunks"]) == (4, 3, 12)
    assert [found[f"ttft_floor_ms_{which}"] for which in ("p50", "p99", "max")] == [5, 9, 9]
    assert found["burst_ttft_error_ms_max"] == 88
    assert (found["loop_lag_ms_p99"], found["cpu_share"]) == (8.0, 0.5)
    assert [(one["process"], one["pid"], one["cpu_share"]) for one in found["processes"]] == [(0, 7, 0.1), (1, 8, 0.5)]
    assert calibration.shortcomings(found, BOUNDS) == []


@pytest.mark.parametrize(
    ("spoilt", "words"),
    [
        (process(good(), lag_ms=101.0), "loop_lag_ms_p99 is 101, and rule 6 allows 100"),
        (process(good(), cpu=0.81), "cpu_share is 0.81, and rule 6 allows 0.8"),
        (process(good(t_intended_ns=-150 * MS)), "schedule_delay_ms_p99 is 150, and rule 6 allows 100"),
        (process(good(asked=4)), "1 chunks that the server sent were not heard"),
        (process(good(), good() | {"failure": "timeout: no end"}), "1 of 2 calls failed: timeout: no end"),
        (process(good(is_aborted=True)), "1 of 1 calls had not ended when their round was long over"),
        (process(good(is_burst=True)), "no call brought a first chunk after the burst (0 of 1 failed)"),
        (process(), "no call brought a first chunk after the burst (0 of 0 failed)"),
    ],
)
def test_a_client_that_does_not_keep_the_rate_is_told(spoilt: dict[str, Any], words: str) -> None:
    assert calibration.shortcomings(calibration.figures([spoilt]), BOUNDS) == [words]


def test_a_late_server_leaves_the_client_unmeasured() -> None:
    late = row(send=0, heard=2, sent=[2, 522, 542], due=[22, 42], came=[3, 523, 543])
    (words,) = calibration.shortcomings(calibration.figures([process(late)]), BOUNDS)
    assert words == "the echo server itself was late (p99 500 ms): the machine is too busy to calibrate"


def test_the_gateways_share_is_known_only_with_both_paths() -> None:
    direct = {"ttft_floor_ms_p50": 0.5, "ttft_floor_ms_p99": 2.0}
    through = {"ttft_floor_ms_p50": 1.25, "ttft_floor_ms_p99": 1.5}
    assert calibration.gateway_share(direct, through) == {"ttft_ms_p50": 0.75, "ttft_ms_p99": -0.5}
    assert calibration.gateway_share(direct, None) == {"ttft_ms_p50": None, "ttft_ms_p99": None}
    assert calibration.shortcomings(None, BOUNDS) == ["it was not measured"]
