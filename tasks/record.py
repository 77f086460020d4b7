"""What one row holds: of a tier a model call (requests.jsonl) or a whole agent task (tasks.jsonl), of the gate a case.

A tier's folder: `requests.jsonl` has one row per model call in either tier; `tasks.jsonl` one per agent task, in the
agent tier alone. They are spooled while the tier runs and compacted at its end to `requests.parquet` and
`tasks.parquet`, where the metrics of tasks/metrics.py stand beside them. The database has the same columns,
and run_id and attempt. A client of several processes spools one file each, `requests-<process>.jsonl`.

A task's `t_start_ns` is when the user wanted it: in an open loop its arrival, in a closed one when its user was ready.

Stamps are integers of one monotonic clock, None for what did not happen. `failure` is None for a good row, else one of
FAILURES. A row that our own client cut off when the level's time was up is `is_aborted`: no failure and no success.
Its latency counts as infinite if it was waited for as long as the whole drain (tasks/stats/series.py).
"""

from typing import Any

FAILURES = {
    "connect": "no connection to the gateway, or none from it to the engine",
    "timeout": "no end within the client's deadline",
    "http_4xx": "the answer's status was 400 to 499",
    "http_5xx": "the answer's status was 500 to 599",
    "truncated": "the stream ended without finish_reason and [DONE]",
    "malformed": "an event or an answer that is not what the protocol says",
    "error_event": "an error event inside a stream that began with 200",
    "empty": "an answer without content, reasoning or tool call",
}
TASK_FAILURES = {
    "request": "a model call of the task failed",
    "malformed_call": "tool-call arguments that are not JSON or do not fit the tool's schema",
    "loop": "the same call with the same arguments twice",
    "step_limit": "no final answer within the step limit",
    "missing_call": "an expected tool call was not made",
    "unexpected_call": "a tool call where the case allows none",
    "wrong_answer": "the answer lacks what it must contain",
    "wrong_tasks": "the task list did not end as expected",
    "wrong_length": "a replayed step was answered with another number of tokens than recorded",
}
STAMPS = (
    "t_intended_ns",
    "t_send_ns",
    "t_first_byte_ns",
    "t_first_token_ns",
    "t_first_answer_ns",
    "t_last_token_ns",
    "t_end_ns",
)
PLACE: dict[str, type[Any]] = {
    "tier": str,
    "level": int,
    "users": int,  # of a closed loop; None in an open one
    "rate_per_s": float,  # of an open loop, where a ramp begins; None in a closed one
    "user": int,  # a closed loop's user; an open loop's arrival
    "process": int,  # of the client's processes, 0 up
    "technique": str,
}
MARKS: dict[str, type[Any]] = {"failure": str, "failure_detail": str, "is_warmup": bool, "is_aborted": bool}
REQUEST: dict[str, type[Any]] = {
    "request_id": str,
    **PLACE,
    "task_id": str,
    "case_id": str,
    "step": int,
    "sent_at": float,
    **dict.fromkeys(STAMPS, int),
    "status": int,
    "finish_reason": str,
    "input_tokens": int,
    "cached_input_tokens": int,
    "output_tokens": int,
    "requested_output_tokens": int,  # where the plan or a trajectory fixes the length; else None
    "chunks": int,
    "reasoning_chunks": int,
    "tool_calls": int,
    "icl_ms_max": float,
    "stalls": int,
    **MARKS,
}
GOLDEN = ("case_id", "category", "outcome", "reason", "is_known_limit", "steps", "tool_calls", "task_ms", "answer")
TASK: dict[str, type[Any]] = {
    "task_id": str,
    **PLACE,
    "case_id": str,
    "started_at": float,
    "t_start_ns": int,
    "t_end_ns": int,
    "steps": int,
    "tool_calls": int,
    "is_success": bool,
    **MARKS,
}
