"""A run folder whose every number is known by construction, as the stages would have left it. Spoil it to taste.

One gateway level of 100 calls and one agent level of 40 tasks with 3 steps each. A gateway call's first token takes
50 ms; step 1 of a task 200 ms, steps 2 and 3 `later_ms`; every answer has 11 tokens in 11 chunks, 10 ms apart, so
tpot is 10 ms and e2e is ttft + 100 ms. A task takes 2 s. Tasks begin 4 at a time every 2 s; the first 4 are warm-up.
"""

import json
from pathlib import Path
from typing import Any

from pyarrow import Table, parquet

from tasks import artifact
from tasks.run import FORMAT

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
    gate = {"verdict": "PASS", "reason": "2 of 2", "evaluated": 2, "cases": 2, "passed": 2, "pass_rate": 1.0}
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
    cases = [{"case_id": f"gs-{i}", "category": "search", "outcome": "pass", "reason": None} for i in (1, 2)]
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
    return {
        "request_id": f"{tier}-{number}",
        "tier": tier,
        "level": 1,
        "users": 4,
        "user": number % 4,
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
    } | more


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
    return {
        "task_id": task_id,
        "tier": "agent",
        "level": 1,
        "users": 4,
        "user": number % 4,
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
    client = {"format": 1, "tier": tier, "fault": None, "loop_lag_ms_p99": 3.0, "cpu_share": 0.2, "levels": []}
    artifact.write(folder / "client.json", client)
    artifact.write(folder / "tier.json", {"format": 1, "tier": tier, "failure": None, "cache": {"is_proven": True}})


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
