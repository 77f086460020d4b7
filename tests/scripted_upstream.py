"""A server that does what a test says, byte by byte, and remembers what was asked and when connections closed.

A script is a function of one Call: it sends raw bytes, waits, closes. Plus a gateway in a thread, the same uvicorn that
`python -m tasks.gateway` runs, and the smallest client that shows raw truth.
"""

import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tasks.gateway.__main__ import server, url_of
from tasks.gateway.app import Limits
from tasks.gateway.client import Gateway

STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
USAGE = b'"usage":{"prompt_tokens":11,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":8}}'
EVENTS = (
    b'data: {"choices":[{"index":0,"delta":{"content":"caf\xc3\xa9"},"finish_reason":null}]}\n\n'
    b": a comment\n\n"
    b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\r\n\r\n'
    b'data: {"choices":[],' + USAGE + b"}\n\ndata: [DONE]\n\n"
)
ASK = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "the secret of the garden"}]}


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def plain(body: bytes, status: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body)


@dataclass
class Call:
    """One request as it came, and the socket to answer on."""

    sock: socket.socket
    head: bytes
    body: bytes
    closed_at: float | None = None
    closed: threading.Event = field(default_factory=threading.Event)

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def wait_closed(self, timeout_s: float = 10) -> None:
        """Returns when the other side closed; fails the test's expectation on `closed` otherwise."""
        self.sock.settimeout(timeout_s)
        with contextlib.suppress(ConnectionResetError):
            try:
                assert self.sock.recv(1) == b""
            except TimeoutError:
                return
        self.closed_at = time.monotonic()
        self.closed.set()

    def header(self, name: str) -> str | None:
        for line in self.head.decode("latin-1").split("\r\n")[1:]:
            key, _, value = line.partition(": ")
            if key.lower() == name:
                return value
        return None


OPENED: list[http.client.HTTPConnection] = []  # closed with the gateway, so that a test may just drop its answers
Script = Callable[[Call], None]


class Upstream:
    """Answers every request on every connection with the script; a script that closes ends its connection."""

    def __init__(self, script: Script, *, accept: bool = True) -> None:
        self.script = script
        self.calls: list[Call] = []
        self.connections = 0
        self.called = threading.Event()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = url_of(self.listener)
        self.socks: list[socket.socket] = []
        if accept:
            self.start()

    def start(self) -> None:
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self.listener.accept()
            except OSError:
                return
            self.connections += 1
            self.socks.append(sock)
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        with sock, contextlib.suppress(OSError):
            while call := read_request(sock):
                self.calls.append(call)
                self.called.set()
                self.script(call)

    def close(self) -> None:
        """Refuse from now on, and cut what is open."""
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for sock in self.socks:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)


def read_request(sock: socket.socket) -> Call | None:
    sock.settimeout(30)
    data = b""
    while b"\r\n\r\n" not in data:
        more = sock.recv(65536)
        if not more:
            return None
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    call = Call(sock, head, body)
    while len(call.body) < int(call.header("content-length") or 0):
        call.body += sock.recv(65536)
    return call


def streams(body: bytes, *, size: int = 1 << 20, pause_s: float = 0.0) -> Script:
    """Send body as a chunked stream, in pieces of `size` bytes that ignore events and characters."""

    def script(call: Call) -> None:
        call.send(STREAM_HEAD)
        for at in range(0, len(body), size):
            call.send(chunk(body[at : at + size]))
            time.sleep(pause_s)
        call.send(b"0\r\n\r\n")

    return script


def answers(response: bytes) -> Script:
    return lambda call: call.send(response)


@contextlib.contextmanager
def upstream(script: Script, *, accept: bool = True) -> Iterator[Upstream]:
    """A server in threads. With accept=False it listens, and `start` makes it accept."""
    running = Upstream(script, accept=accept)
    try:
        yield running
    finally:
        running.close()


@contextlib.contextmanager
def gateway(state: Path, limits: Limits | None = None) -> Iterator[Gateway]:
    """A gateway in a thread, over `state`."""
    state.mkdir(exist_ok=True)
    uvicorn_server = server(state, limits or Limits(connect_s=2, idle_s=20))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=uvicorn_server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            yield Gateway(url_of(listener), (state / "token").read_text().strip())
        finally:
            while OPENED:
                OPENED.pop().close()
            uvicorn_server.should_exit = True
            thread.join(20)
            assert not thread.is_alive(), "the gateway did not stop"


def dead_url() -> str:
    """A URL on which nothing listens any more."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return url_of(listener)


def connect(to: Gateway) -> http.client.HTTPConnection:
    host, _, port = to.url.removeprefix("http://").partition(":")
    OPENED.append(http.client.HTTPConnection(host, int(port), timeout=20))
    return OPENED[-1]


def post(
    to: Gateway, content: object = ASK, *, technique: str | None = "a", **headers: str
) -> http.client.HTTPResponse:
    """POST a chat completion; the answer's head is read, its body is not. Header names use _ for -."""
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    sent |= {"X-Technique": technique} if technique else {}
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    connection = connect(to)
    connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"} | sent)
    return connection.getresponse()


def get(to: Gateway, path: str, **headers: str) -> tuple[int, str]:
    connection = connect(to)
    connection.request("GET", path, headers={n.replace("_", "-"): v for n, v in headers.items()})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def lines(state: Path, event: str = "request", *, count: int = 1, deadline_s: float = 10) -> list[dict]:
    """Log lines of one event, once there are `count`: the line is written after the answer's last byte."""
    until = time.monotonic() + deadline_s
    while True:
        text = (state / "requests.log").read_text()
        found = [line for line in map(json.loads, text.splitlines()) if line["event"] == event]
        if len(found) >= count or time.monotonic() > until:
            assert len(found) == count, f"{count} {event} lines expected, found {found}"
            return found
        time.sleep(0.02)


def metric(to: Gateway, name: str, **labels: str) -> float | None:
    """One sample of the gateway's /metrics, read without the library that wrote it."""
    wanted = {f'{key}="{value}"' for key, value in labels.items()}
    for line in get(to, "/metrics")[1].splitlines():
        series, _, value = line.rpartition(" ")
        bare, _, inside = series.partition("{")
        if bare == name and wanted == set(filter(None, inside.rstrip("}").split(","))):
            return float(value)
    return None
