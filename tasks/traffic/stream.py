"""One streamed chat completion: sent, read to its end, and only then parsed.

The same code works in plain threads (the gate) and in gevent's greenlets (Locust). How bytes are stamped and read:
tasks/traffic/wire.py. What they say: tasks/traffic/events.py.

- `t_send_ns` is taken before connecting: a server too busy to accept is slow, not a client's excuse. Connections are
  kept between calls; one that was idle for IDLE_KEPT_S or that the server closed is replaced before sending. Nothing is
  ever sent twice, so no failure is hidden by a silent retry.
- `timeout_s` bounds the whole call, `endpoint.idle_s` the silence after the first byte. Waiting for the first byte is
  bounded by `timeout_s` alone: a queue at the server is not silence.
- `is_cut` is asked while waiting: when it says yes, the call ends as `is_aborted`, which is no failure.
- Faults of the server are the row's `failure` and never an exception.
"""

import json
import socket
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from tasks.traffic import connection, events, wire
from tasks.traffic.unzip import unzipped


class _Idle(deque[tuple[int, socket.socket]]):
    """Idle connections and since when; they are closed with their endpoint."""

    def __del__(self) -> None:
        for _, sock in self:
            sock.close()


@dataclass(frozen=True)
class Endpoint:
    """Where calls go: the gateway's base URL without /v1. Holds idle connections, so keep one endpoint per user."""

    url: str
    technique: str
    model: str
    key: str | None = field(default=None, repr=False)
    idle_s: float = 60.0
    run: str | None = None  # X-Run: whose backend, where several runs serve the technique
    kept: _Idle = field(default_factory=_Idle, repr=False, compare=False)


@dataclass
class Answer:
    """`row` has the fields of record.REQUEST that the call knows. tool_calls: [{id, name, arguments (a string)}].

    `chunks_ns`: when each chunk arrived, on the monotonic clock.
    """

    row: dict[str, Any]
    content: str
    reasoning: str
    tool_calls: list[dict[str, str]]
    chunks_ns: list[int] = field(default_factory=list)


def call(
    endpoint: Endpoint,
    body: dict[str, Any],
    *,
    request_id: str,
    task_id: str | None = None,
    step: int = 1,
    timeout_s: float,
    t_intended_ns: int | None = None,
    is_cut: Callable[[], bool] = lambda: False,
) -> Answer:
    """Send one chat completion and read its stream to the end. Never raises for what the server does."""
    headers = {"X-Request-Id": request_id, "X-Task-Id": task_id or "", "X-Step": str(step)}
    request = _request(endpoint, body, headers)
    sent_at, t_send_ns = time.time(), time.monotonic_ns()
    deadline_ns = t_send_ns + int(timeout_s * 1e9)
    got = wire.Exchange(t_send_ns=t_send_ns, deadline_ns=deadline_ns, idle_s=endpoint.idle_s, is_cut=is_cut)
    _exchange(endpoint, request, got)
    t_end_ns = got.end_ns or time.monotonic_ns()
    heard = _heard(got)
    row = {
        "request_id": request_id,
        "technique": endpoint.technique,
        "task_id": task_id,
        "step": step,
        "sent_at": sent_at,
        "t_intended_ns": t_send_ns if t_intended_ns is None else t_intended_ns,
        "t_send_ns": t_send_ns,
        "t_first_byte_ns": got.first_ns,
        **events.fields(heard),
        "t_end_ns": t_end_ns,
        "status": got.status,
        "is_aborted": got.is_cut and not heard.is_complete,
    }
    return Answer(row, heard.content, heard.reasoning, heard.tool_calls, heard.chunks_ns)


def _request(endpoint: Endpoint, body: dict[str, Any], headers: dict[str, str]) -> bytes:
    """The whole HTTP request. Raises ValueError for a header that would break it."""
    asked = {"model": endpoint.model} | body | {"stream": True, "stream_options": {"include_usage": True}}
    content = json.dumps(asked).encode()
    place = urlsplit(endpoint.url)
    lines = {
        "Host": place.netloc,
        "Content-Type": "application/json",
        "Content-Length": str(len(content)),
        "Accept": "text/event-stream",
        "X-Technique": endpoint.technique,
        **({"X-Run": endpoint.run} if endpoint.run else {}),
        **{name: value for name, value in headers.items() if value},
        **({"Authorization": f"Bearer {endpoint.key}"} if endpoint.key else {}),
    }
    head = "".join(f"{name}: {value}\n" for name, value in lines.items())
    if "\r" in head or head.count("\n") != len(lines):
        raise ValueError(f"a header holds a line break: {sorted(headers)}")
    first = f"POST {place.path.rstrip('/')}/v1/chat/completions HTTP/1.1\n"
    return (first + head + "\n").replace("\n", "\r\n").encode("latin-1") + content


def _exchange(endpoint: Endpoint, request: bytes, got: wire.Exchange) -> None:
    """Send the request and wait until the exchange is over."""
    try:
        sock = _kept(endpoint) or connection.connect(endpoint.url, min(connection.CONNECT_S, _left_s(got)))
    except OSError as error:
        got.failure = "connect", f"{endpoint.url}: {error or type(error).__name__}"
        return
    try:
        got.use(sock)
        if _is_sent(sock, request, got):
            wire.wait(got)
    finally:
        if got.is_reusable:
            endpoint.kept.append((time.monotonic_ns(), sock))
        else:
            sock.close()


def _is_sent(sock: socket.socket, request: bytes, got: wire.Exchange) -> bool:
    try:
        sock.settimeout(_left_s(got))
        sock.sendall(request)
    except TimeoutError:
        got.failure = "timeout", "no end within the call's deadline"
    except OSError as error:
        got.failure = "connect", f"the connection broke: {error or type(error).__name__}"
    return got.failure is None


def _left_s(got: wire.Exchange) -> float:
    """Seconds to the call's deadline, at least a millisecond: a timeout of zero would mean something else."""
    return max((got.deadline_ns - time.monotonic_ns()) / 1e9, 0.001)


def _heard(got: wire.Exchange) -> events.Heard:
    """What was said, with the failure of the exchange where it weighs more than that of the stream."""
    faults: list[str] = []
    pieces = unzipped(wire.in_slices(got.pieces), got.encoding, faults)
    if got.status is not None and got.status != 200:
        return _refused(got.status, b"".join(piece for _, piece in pieces))
    heard = events.listen(pieces)
    if heard.is_complete or heard.failure in ("error_event", "malformed"):
        return heard
    if faults:
        heard.failure, heard.failure_detail = "malformed", faults[0]
    elif got.failure or got.is_cut:
        heard.failure, heard.failure_detail = got.failure or (None, None)
    return heard


def _refused(status: int, body: bytes) -> events.Heard:
    kind = {4: "http_4xx", 5: "http_5xx"}.get(status // 100, "malformed")
    kind = "connect" if events.is_no_connection(body) else kind
    said = events.error_message(body) or body[:200].decode(errors="replace")
    return events.Heard(failure=kind, failure_detail=f"{status}: {said}"[: events.DETAIL_CHARS])


def _kept(endpoint: Endpoint) -> socket.socket | None:
    """An idle connection that the server has not closed, or None."""
    while endpoint.kept:
        since_ns, sock = endpoint.kept.pop()
        if time.monotonic_ns() - since_ns < connection.IDLE_KEPT_S * 1e9 and connection.is_alive(sock):
            return sock
        sock.close()
    return None
