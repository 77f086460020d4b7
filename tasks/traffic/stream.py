"""One streamed chat completion, stamped as its bytes arrive and parsed after they have.

Blocking and made of the standard library's sockets alone, so the same code works in plain threads (the gate) and in
gevent's greenlets (Locust). A stamp is taken right after the `recv` that brought the bytes; parsing waits for the end
of the answer, so no answer's parsing delays its own stamps.

- `t_send_ns` is taken before connecting: a server too busy to accept is slow, not a client's excuse. Connections are
  kept between calls; one that was idle for IDLE_KEPT_S or that the server closed is replaced before sending. Nothing is
  ever sent twice, so no failure is hidden by a silent retry.
- `timeout_s` bounds the whole call, `endpoint.idle_s` the silence after the first byte. Waiting for the first byte is
  bounded by `timeout_s` alone: a queue at the server is not silence.
- `is_cut` is asked while waiting: when it says yes, the call ends as `is_aborted`, which is no failure.
- Faults of the server are the row's `failure` and never an exception.
"""

import io
import json
import re
import select
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from http.client import HTTPException, HTTPResponse, IncompleteRead, RemoteDisconnected
from typing import Any
from urllib.parse import urlsplit

from tasks.traffic import events

CONNECT_S = 10.0
IDLE_KEPT_S = 4.0  # below the 5 s after which uvicorn closes an idle connection
LINGER_S = 2.0  # how long the body's end may take after [DONE]
SLICE_S = 0.2  # how often a waiting call asks whether it is cut
MAX_BYTES = 64 << 20
READ_BYTES = 1 << 16
_DONE = re.compile(rb"(?:^|\n)data: ?\[DONE\]\s*$")


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
    kept: _Idle = field(default_factory=_Idle, repr=False, compare=False)


@dataclass
class Answer:
    """`row` has the fields of record.REQUEST that the call knows. tool_calls: [{id, name, arguments (a string)}]."""

    row: dict[str, Any]
    content: str
    reasoning: str
    tool_calls: list[dict[str, str]]


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
    wire = _Wire(deadline_ns=t_send_ns + int(timeout_s * 1e9), idle_s=endpoint.idle_s, is_cut=is_cut)
    got = _exchange(endpoint, request, wire)
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
        "t_first_byte_ns": wire.first_ns,
        **events.fields(heard),
        "t_end_ns": t_end_ns,
        "status": got.status,
        "is_aborted": got.is_cut and not heard.is_complete,
    }
    return Answer(row, heard.content, heard.reasoning, heard.tool_calls)


@dataclass
class _Got:
    """What the exchange brought, before any parsing."""

    status: int | None = None
    pieces: list[events.Piece] = field(default_factory=list)
    end_ns: int | None = None
    failure: str | None = None
    detail: str | None = None
    is_cut: bool = False
    is_reusable: bool = False


class _Cut(Exception):
    pass


class _TimedOut(Exception):
    pass


class _Wire(io.RawIOBase):
    """A socket as a file whose reads are stamped and bounded."""

    def __init__(self, *, deadline_ns: int, idle_s: float, is_cut: Callable[[], bool]) -> None:
        self.deadline_ns, self.idle_s, self.is_cut = deadline_ns, idle_s, is_cut
        self.first_ns: int | None = None
        self.last_ns: int | None = None
        self.sock: socket.socket | None = None

    def makefile(self, *_mode: Any) -> io.BufferedReader:
        return io.BufferedReader(self, READ_BYTES)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        assert self.sock is not None
        until = self.deadline_ns
        if self.last_ns is not None:
            until = min(until, time.monotonic_ns() + int(self.idle_s * 1e9))
        while True:
            self.sock.settimeout(self._slice_s(until))
            try:
                count = self.sock.recv_into(buffer)
            except TimeoutError:
                continue
            self.last_ns = time.monotonic_ns()
            self.first_ns = self.first_ns or self.last_ns
            return count

    def send(self, data: bytes) -> None:
        assert self.sock is not None
        self.sock.settimeout(self.left_s())
        self.sock.sendall(data)

    def left_s(self) -> float:
        """Seconds to the call's deadline, at least a millisecond: a timeout of zero would mean something else."""
        return max((self.deadline_ns - time.monotonic_ns()) / 1e9, 0.001)

    def _slice_s(self, until_ns: int) -> float:
        left_ns = until_ns - time.monotonic_ns()
        if self.is_cut():
            raise _Cut("cut off by the client")
        if left_ns <= 0:
            is_idle = until_ns < self.deadline_ns
            raise _TimedOut(f"silent for {self.idle_s:g} s" if is_idle else "no end within the call's deadline")
        return min(left_ns / 1e9, SLICE_S)


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
        **{name: value for name, value in headers.items() if value},
        **({"Authorization": f"Bearer {endpoint.key}"} if endpoint.key else {}),
    }
    head = "".join(f"{name}: {value}\n" for name, value in lines.items())
    if "\r" in head or head.count("\n") != len(lines):
        raise ValueError(f"a header holds a line break: {sorted(headers)}")
    first = f"POST {place.path.rstrip('/')}/v1/chat/completions HTTP/1.1\n"
    return (first + head + "\n").replace("\n", "\r\n").encode("latin-1") + content


def _exchange(endpoint: Endpoint, request: bytes, wire: _Wire) -> _Got:
    got = _Got()
    try:
        wire.sock = _kept(endpoint) or _connect(endpoint.url, min(CONNECT_S, wire.left_s()))
    except OSError as error:
        got.failure, got.detail = "connect", f"{endpoint.url}: {error or type(error).__name__}"
        return got
    try:
        _send_and_read(request, wire, got)
    finally:
        got.end_ns = wire.last_ns if got.is_reusable else time.monotonic_ns()
        if got.is_reusable:
            endpoint.kept.append((time.monotonic_ns(), wire.sock))
        else:
            wire.sock.close()
    return got


def _send_and_read(request: bytes, wire: _Wire, got: _Got) -> None:
    try:
        wire.send(request)
        response = HTTPResponse(wire, method="POST")  # type: ignore[arg-type]
        response.begin()
        got.status = response.status
        _read_body(response, wire, got)
        got.is_reusable = not response.will_close
    except _Cut:
        got.is_cut = True
    except (_TimedOut, TimeoutError) as error:
        got.failure, got.detail = "timeout", str(error) or "no end within the call's deadline"
    except (RemoteDisconnected, IncompleteRead, OSError) as error:
        kind = "connect" if got.status is None else "truncated"
        got.failure, got.detail = kind, f"the connection broke: {error or type(error).__name__}"
    except HTTPException as error:
        got.failure, got.detail = "malformed", f"not HTTP: {type(error).__name__}: {error}"[: events.DETAIL_CHARS]


def _read_body(response: HTTPResponse, wire: _Wire, got: _Got) -> None:
    left = None if response.chunked else response.length
    size, tail = 0, b""
    while left != 0:
        piece = response.read1(READ_BYTES if left is None else min(left, READ_BYTES))
        if not piece:
            if left:
                raise IncompleteRead(b"", left)
            break
        got.pieces.append((wire.last_ns or 0, piece))
        left = None if left is None else left - len(piece)
        size, tail = size + len(piece), (tail + piece[-64:])[-64:]
        if _DONE.search(tail):
            wire.idle_s = LINGER_S
        if size > MAX_BYTES:
            raise HTTPException(f"more than {MAX_BYTES} bytes")


def _heard(got: _Got) -> events.Heard:
    """What was said, with the failure of the exchange where it weighs more than that of the stream."""
    body = b"".join(piece for _, piece in got.pieces)
    if got.status is not None and got.status != 200:
        kind = {4: "http_4xx", 5: "http_5xx"}.get(got.status // 100, "malformed")
        kind = "connect" if events.is_no_connection(body) else kind
        said = events.error_message(body) or body[:200].decode(errors="replace")
        return events.Heard(failure=kind, failure_detail=f"{got.status}: {said}"[: events.DETAIL_CHARS])
    heard = events.listen(got.pieces)
    if heard.is_complete or heard.failure in ("error_event", "malformed"):
        return heard
    if got.failure or got.is_cut:
        heard.failure, heard.failure_detail = got.failure, got.detail
    return heard


def _kept(endpoint: Endpoint) -> socket.socket | None:
    """An idle connection that the server has not closed, or None."""
    while endpoint.kept:
        since_ns, sock = endpoint.kept.pop()
        is_fresh = time.monotonic_ns() - since_ns < IDLE_KEPT_S * 1e9
        watch = select.poll()
        watch.register(sock, select.POLLIN)
        if is_fresh and not watch.poll(0):  # something to read on an idle connection: the server closed it
            return sock
        sock.close()
    return None


def _connect(url: str, timeout_s: float) -> socket.socket:
    place = urlsplit(url)
    port = place.port or (443 if place.scheme == "https" else 80)
    sock = socket.create_connection((place.hostname or "", port), timeout=timeout_s)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if place.scheme == "https":
        return ssl.create_default_context().wrap_socket(sock, server_hostname=place.hostname)
    return sock
