"""A scripted server: it plays bytes at given times and notes when it really sent them."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

Play = list[tuple[float, bytes]]  # seconds to wait, then what to send; empty bytes: only wait


@dataclass
class Scripted:
    """`requests`: what was asked; `sent_ns`: stamps of each play's parts; `connections`: how many were opened."""

    url: str = ""
    requests: list[bytes] = field(default_factory=list)
    sent_ns: list[list[int]] = field(default_factory=list)
    connections: int = 0
    errors: list[BaseException] = field(default_factory=list)


def _read_request(conn: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        more = conn.recv(65536)
        if not more:
            return b""
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    length = int(
        next(line.split(b":")[1] for line in head.split(b"\r\n") if line.lower().startswith(b"content-length"))
    )
    while len(body) < length:
        body += conn.recv(65536)
    return head + b"\r\n\r\n" + body


def _talk(conn: socket.socket, server: Scripted, plays: list[Play], keep: bool) -> None:
    conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with conn:
        while plays:
            try:
                request = _read_request(conn)
            except OSError:
                return
            if not request:
                return
            server.requests.append(request)
            stamps: list[int] = []
            server.sent_ns.append(stamps)
            for wait_s, data in plays.pop(0):
                time.sleep(wait_s)
                stamps.append(time.monotonic_ns())  # before the send: nobody can have seen the bytes earlier
                try:
                    conn.sendall(data)
                except OSError:
                    return
            if not keep:
                return


@contextmanager
def scripting() -> Iterator[Callable[..., Scripted]]:
    """Yields start(play, ..., keep=False) -> Scripted. One play per request; keep: several requests per connection."""
    listeners: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def start(*plays: Play, keep: bool = False) -> Scripted:
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)
        server = Scripted(url=f"http://127.0.0.1:{listener.getsockname()[1]}")
        left = list(plays)

        def accept() -> None:
            while True:
                try:
                    conn, _ = listener.accept()
                except OSError:
                    return
                server.connections += 1
                thread = threading.Thread(target=_talk, args=(conn, server, left, keep), daemon=True)
                threads.append(thread)
                thread.start()

        thread = threading.Thread(target=accept, daemon=True)
        threads.append(thread)
        thread.start()
        return server

    yield start
    for listener in listeners:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
    for thread in threads:
        thread.join(timeout=5)
