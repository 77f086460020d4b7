"""What is noted about one request while it passes, and what becomes of it: one log line, and the metrics.

Times are milliseconds since the gateway had read the request's head. The counts of tokens are those the server gave at
the end of its answer. `ended` says how it went, `status` the outcome (tasks/gateway/metrics.py).
"""

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tasks.gateway import metrics
from tasks.gateway.backends import Ending
from tasks.gateway.registry import Backend

LEFT = 499  # nginx's number for a client that closed before the end
ENDED = {
    "complete": "the answer passed to its end",
    "refused": "the gateway answered itself, with an error",
    "client_left": "the client closed first; the upstream was cut at once",
    "upstream_failed": "the backend failed; mid-answer, the client's answer was broken off",
    "gateway_stopped": "the gateway was stopped before the end",
    "fault": "a fault of the gateway itself; the traceback is on standard error",
}


@dataclass
class Account:
    request_id: str
    technique: str | None
    run: str | None  # the one that was asked for; the log tells the one that was found
    task_id: str | None
    step: str | None
    backend: Backend | None = None
    began_ns: int = field(default_factory=time.perf_counter_ns)
    sent_ns: int | None = None
    head_ns: int | None = None
    first_ns: int | None = None
    status: int = 500
    ended: str = "fault"
    error: str | None = None
    upstream_error: str | None = None
    request_bytes: int = 0
    response_bytes: int = 0
    stream: bool | None = None
    ending: Ending = field(default_factory=Ending)
    prompt: str | None = None

    def close(self, counted: metrics.Metrics) -> dict[str, Any]:
        """Count the request, once. Returns its log line."""
        end_ns = time.perf_counter_ns()
        route = (self.backend.technique, self.backend.kind) if self.backend else metrics.NOBODY
        outcome = counted.outcome(route, self.status)
        outcome.requests.inc()
        outcome.seconds.observe((end_ns - self.began_ns) / 1e9)
        if self.first_ns is not None:
            outcome.ttfb.observe((self.first_ns - self.began_ns) / 1e9)
        if self.ending.input_tokens is not None:
            counted.input_tokens.labels(*route).inc(self.ending.input_tokens)
        if self.ending.output_tokens is not None:
            counted.output_tokens.labels(*route).inc(self.ending.output_tokens)
        if self.upstream_error:
            counted.upstream_errors.labels(*route, self.upstream_error).inc()
        return self._line(end_ns)

    def _line(self, end_ns: int) -> dict[str, Any]:
        line = {
            "request_id": self.request_id,
            "task_id": self.task_id,
            "step": self.step,
            "technique": self.technique,
            "backend": self.backend.kind if self.backend else None,
            "upstream": self.backend.url if self.backend else None,
            "run_id": self.backend.run_id if self.backend else None,
            "status": self.status,
            "ended": self.ended,
            "error": self.error,
            "upstream_error": self.upstream_error,
            "stream": self.stream,
            "sent_ms": self._ms(self.sent_ns),
            "head_ms": self._ms(self.head_ns),
            "ttfb_ms": self._ms(self.first_ns),
            "total_ms": self._ms(end_ns),
            "request_bytes": self.request_bytes,
            "response_bytes": self.response_bytes,
            "input_tokens": self.ending.input_tokens,
            "cached_input_tokens": self.ending.cached_input_tokens,
            "output_tokens": self.ending.output_tokens,
            "finish_reason": self.ending.finish_reason,
            "is_done": self.ending.is_done,
            "is_error": self.ending.is_error,
        }
        return line if self.prompt is None else line | {"prompt": self.prompt}

    def _ms(self, at_ns: int | None) -> float | None:
        return None if at_ns is None else round((at_ns - self.began_ns) / 1e6, 3)


def begin(headers: Mapping[bytes, bytes]) -> Account:
    """Open the account of a request. Identifiers are cut to a length that a log can bear."""
    return Account(
        request_id=_text(headers, b"x-request-id") or os.urandom(16).hex(),
        technique=_text(headers, b"x-technique"),
        run=_text(headers, b"x-run"),
        task_id=_text(headers, b"x-task-id"),
        step=_text(headers, b"x-step"),
    )


def _text(headers: Mapping[bytes, bytes], name: bytes) -> str | None:
    value = headers.get(name)
    return value[:200].decode("latin-1") if value else None
