"""A run folder whose every number is known by construction, as the stages would have left it. Spoil it to taste.

One gateway level of 100 calls and one agent level of 40 tasks with 3 steps each. A gateway call's first token takes
50 ms; step 1 of a task 200 ms, steps 2 and 3 `later_ms`; every answer has 11 tokens in 11 chunks, 10 ms apart, so
tpot is 10 ms and e2e is ttft + 100 ms. A task takes 2 s. Tasks begin 4 at a time every 2 s; the first 4 are warm-up.
"""

import json
from pathlib import Path
from typing import Any

from pyarrow import Table, parquet

from tasks import artifact, record
from tasks.run import FORMAT

GOLDEN = Path(__file__).parents[1] / "golden_set" / "v1" / "cases.jsonl"
CASES = [json.loads(line) for line in GOLDEN.read_text(encoding="utf-8").splitlines()]
AT = 1_790_000_000.0  # of the claim, in seconds since the epoch
ARM = {
    "engine": "vllm",
    "question": "What does a run known by construction look like?",
    "model": {"path": "deploy/models/demo"},
    "price": "local-cpu",
}
PRICE = {"says": "nominal, for tests", "usd_per_hour": 3.6, "is_nominal": True, "source": "a round number"}
TARGET = {"driver": "process", "says": "a machine of the tests", "slots": ["s0"], "command": ["engine"]}
PLAN: dict[str, Any] = {
    "purpose": "known by construction",
    "seed": 7,
    "tiers": {
        "gateway": {"levels": [{"users": 4, "duration_s": 20}]},
        "agent": {"levels": [{"users": 4, "duration_s": 20, "warmup_s": 2}]},
    },
    "slos": ["agent-later-ttft-p50", "agent-task-p95", "gateway-ttft-p95"],
}


def make(
    folder: Path, *, run_id: str = "r1", arm: str = "known", later_ms: float = 50, plan: dict[str, Any] | None = None
) -> Path:
    """Write the files up to release.json into folder/<run_id>/1. Returns that folder."""
    run_dir = folder / run_id / "1"
    _write_identity(run_dir, run_id, arm, PLAN | (plan or {}))
    write_tier(run_dir, "gateway", gateway_requests(arm))
    tasks, requests = agent_rows(arm, later_ms)
    write_tier(run_dir, "agent", requests, tasks)
    return run_dir


def _write_identity(run_dir: Path, run_id: str, arm: str, plan: dict[str, Any]) -> None:
    run = {
        "format": FORMAT,
        "run_id": run_id,
        "attempt": 1,
        "repeat": 1,
        "slot": "s0",
        "seed": 7,
        "claimed_at": AT,
        "technique": arm,
        "arm": {"name": arm, "digest": "d" * 64, "document": ARM},
        "plan": {"name": "known", "digest": "e" * 64, "document": plan},
        "target": {"name": "tests", "document": TARGET},
        "price": {"name": "local-cpu", "document": PRICE},
    }
    lease = {
        "slot": "s0",
        "target": "tests",
        "run_id": run_id,
        "attempt": 1,
        "acquired_at": AT,
        "given_back_at": AT + 100,
    }
    deployment = {
        "driver": "process",
        "engine": "vllm",
        "url": "http://127.0.0.1:1",
        "model": "model",
        "started_at": AT,
    }
    effective = {"source": "server_info", "differences": [], "unverified": [], "process_start_time": AT + 1.0}
    n = len(CASES)
    gate = {"verdict": "PASS", "reason": f"{n} of {n}", "evaluated": n, "cases": n, "passed": n, "pass_rate": 1.0}
    gate |= {
        "min_pass_rate": 0.9,
        "compared_with": None,
        "worse_cases": [],
        "golden_set": "v1",
        "golden_sha256": "f" * 64,
    }
    release = {
        "was_held": True,
        "freed": [],
        "held_s": 100.0,
        "billed_from": AT,
        "released_at": AT + 100,
        "reason": "end",
    }
    deployment |= {"argv": ["engine"]}
    release |= {"proof": {"processes_left": [], "gateway_deregistered": True}}
    artifact.write(run_dir / "run.json", run)
    for name, content in (
        ("lease", lease),
        ("deployment", deployment | {"ready_at": AT + 10, "start_s": 10.0, "versions": {"armwise": "0.1"}}),
        ("effective", effective | {"requested": {}, "effective": {}, "versions": {"vllm": "0.32.0"}}),
        ("gate", gate),
        ("release", release),
    ):
        artifact.write(run_dir / f"{name}.json", {"format": 1} | content)
    cases = [{"case_id": one["id"], "category": "search", "outcome": "pass", "reason": None} for one in CASES]
    more = {"steps": 2, "tool_calls": 1, "answer": "x", "task_ms": 900.0, "is_known_limit": False}
    artifact.write_rows(run_dir / "golden.jsonl", [case | more for case in cases])
    for i, stage in enumerate(("claim", "deploy", "verify", "gate", "drive_gateway", "drive_agent", "release")):
        note = {"stage": stage, "state": "done", "error": None, "began_at": AT + 10 * i, "ended_at": AT + 10 * i + 9}
        artifact.write(run_dir / f"phases/{stage}.1.json", note)


def request(number: int, *, tier: str, arm: str, sent_s: float, ttft_ms: float, **more: Any) -> dict[str, Any]:
    """One good call, sent `sent_s` after the claim."""
    sent = int(sent_s * 1e9)
    first = sent + int(ttft_ms * 1e6)
    last = first + 100_000_000
    return (
        dict.fromkeys(record.REQUEST)
        | {
            "request_id": f"{tier}-{number}",
            "tier": tier,
            "level": 1,
            "users": 4,
            "user": number % 4,
            "process": 0,
            "technique": arm,
            "task_id": None,
            "case_id": "gs-1",
            "step": None,
            "sent_at": AT + sent_s,
            "t_intended_ns": sent,
            "t_send_ns": sent,
            "t_first_byte_ns": first,
            "t_first_token_ns": first,
            "t_first_answer_ns": first,
            "t_last_token_ns": last,
            "t_end_ns": last,
            "status": 200,
            "finish_reason": "stop",
            "input_tokens": 100,
            "cached_input_tokens": 0,
            "output_tokens": 11,
            "chunks": 11,
            "tool_calls": 0,
            "icl_ms_max": 10.0,
            "failure": None,
            "failure_detail": None,
            "is_warmup": False,
            "is_aborted": False,
        }
        | more
    )


def gateway_requests(arm: str) -> list[dict[str, Any]]:
    """100 calls, 4 users, one each every 0.8 s."""
    return [request(i, tier="gateway", arm=arm, sent_s=40 + i // 4 * 0.8, ttft_ms=50) for i in range(100)]


def agent_rows(arm: str, later_ms: float) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """40 tasks of 2 s, and their 120 calls."""
    tasks, requests = [], []
    for i in range(40):
        start_s, task_id, is_warmup = 70 + i // 4 * 2.0, f"t{i}", i < 4
        tasks.append(_task(task_id, i, arm, start_s, is_warmup))
        for step in (1, 2, 3):
            ttft_ms = 200 if step == 1 else later_ms
            place = {"task_id": task_id, "step": step, "is_warmup": is_warmup}
            sent_s = start_s + (step - 1) * 0.6
            requests.append(request(3 * i + step, tier="agent", arm=arm, sent_s=sent_s, ttft_ms=ttft_ms, **place))
    return tasks, requests


def _task(task_id: str, number: int, arm: str, start_s: float, is_warmup: bool) -> dict[str, Any]:
    return dict.fromkeys(record.TASK) | {
        "task_id": task_id,
        "tier": "agent",
        "level": 1,
        "users": 4,
        "user": number % 4,
        "process": 0,
        "technique": arm,
        "case_id": "gs-1",
        "started_at": AT + start_s,
        "t_start_ns": int(start_s * 1e9),
        "t_end_ns": int((start_s + 2) * 1e9),
        "steps": 3,
        "tool_calls": 2,
        "is_success": True,
        "failure": None,
        "failure_detail": None,
        "is_warmup": is_warmup,
        "is_aborted": False,
    }


def write_tier(run_dir: Path, tier: str, requests: list[Any], tasks: list[Any] | None = None) -> None:
    """Parquet files of a tier and what stood beside it; the engine's counters agree with the rows."""
    folder = run_dir / tier
    folder.mkdir(parents=True, exist_ok=True)
    parquet.write_table(Table.from_pylist(requests), folder / "requests.parquet")
    if tasks is not None:
        parquet.write_table(Table.from_pylist(tasks), folder / "tasks.parquet")
    parquet.write_table(Table.from_pylist(engine_samples(requests)), folder / "engine.parquet")
    lag = {f"loop_lag_ms_{which}": ms for which, ms in (("p50", 1.0), ("p99", 3.0), ("max", 4.0))}
    process = {"process": 0, "pid": 77, "cpu_share": 0.2} | lag
    level = {"level": 1, "processes": [process | {"schedule_delay_ms_p99": 0.5}]}
    client = {"format": 1, "tier": tier, "fault": None, "loop_lag_ms_p99": 3.0, "cpu_share": 0.2, "levels": [level]}
    client |= {"cpu_wait_share": 0.05}
    artifact.write(folder / "client.json", client)
    artifact.write(folder / "windows.json", {"format": 1, "levels": [window(requests)]})
    artifact.write(folder / "calibration.json", calibration(tier))
    artifact.write(folder / "tier.json", {"format": 1, "tier": tier, "failure": None, "cache": {"is_proven": True}})


def window(requests: list[Any]) -> dict[str, Any]:
    """The one level's steady window: everything that is no warm-up."""
    counted = [row["t_send_ns"] for row in requests if not row["is_warmup"]] or [0]
    start, end = min(counted), min((row["t_send_ns"] for row in requests), default=0) + 20 * 10**9
    times = {"warmup_ends_ns": start, "window_start_ns": start, "window_end_ns": end, "window_s": (end - start) / 1e9}
    trend = dict.fromkeys(("trend_per_minute", "trend_lower", "trend_upper"))
    said = {"level": 1, "state": "steady", "reason": "known by construction", "method": "none"}
    return said | times | trend | {"requests": len(counted), "effective_n": float(len(counted))}


def calibration(tier: str) -> dict[str, Any]:
    """The client alone adds 0.5 ms to a TTFT, with the gateway 2 ms; nothing was late."""
    spreads = ("ttft_error_ms", "burst_ttft_error_ms", "icl_error_ms", "server_late_ms")
    spreads += ("schedule_delay_ms", "loop_lag_ms")
    small = {f"{name}_{which}": 0.25 for name in spreads for which in ("p50", "p99", "max")}
    small |= {"calls": 54, "calls_after_burst": 50, "chunks": 270, "failed": 0, "first_failure": None, "lost_chunks": 0}
    small |= {"cut": 0, "stalls": 0, "cpu_share": 0.1, "processes": []}
    direct, through = (
        small | {"ttft_floor_ms_p50": p50, "ttft_floor_ms_p99": 2 * p50, "ttft_floor_ms_max": 3 * p50}
        for p50 in (0.5, 2.0)
    )
    offered = {"level": 1, "streams": 4, "rate_per_s": None, "chunks": 5, "round_s": 0.5, "chunks_per_s": 200.0}
    said = {"format": 1, "tier": tier, "at": AT + 39, "calibrate_s": 2.0, "not_calibrated_because": None, "fault": None}
    share = {"ttft_ms_p50": 1.5, "ttft_ms_p99": 3.0}
    paths = {"direct": direct, "through_gateway": through, "gateway_share": share}
    return said | {"offered": offered | {"processes": 1}, **paths, "is_enough": True, "reason": None}


def engine_samples(requests: list[dict[str, Any]], *, extra_tokens: int = 0) -> list[dict[str, Any]]:
    """Counters before and after the tier: what the calls used, and `extra_tokens` that no call accounts for."""
    used = {
        "vllm:prompt_tokens_total": sum(row["input_tokens"] or 0 for row in requests),
        "vllm:generation_tokens_total": sum(row["output_tokens"] or 0 for row in requests) + extra_tokens,
        "process_start_time_seconds": 0,
    }
    begins = {
        "vllm:prompt_tokens_total": 5000,
        "vllm:generation_tokens_total": 700,
        "process_start_time_seconds": AT + 1,
    }
    at = min((row["sent_at"] for row in requests), default=AT) - 1
    return [
        {
            "at": at + later,
            "source": "engine",
            "name": name,
            "labels": json.dumps({}),
            "value": begins[name] + gained * bool(later),
        }
        for name, gained in used.items()
        for later in (0, 60)
    ]
