"""One answer on its way in: bytes with the time at which they reached this machine. Knows HTTP, and nothing of events.

**Stamps.** The kernel stamps a packet when it comes in (SO_TIMESTAMPNS; on TCP since Linux 4.15) and hands the stamp of
the last one over with the bytes. So no stamp moves when this process is late: not when 256 answers arrive at once, not
when it parses, not when another program has the core. The kernel's stamp is of the wall clock; the distance of the two
clocks is added, which changes only when the wall clock is set, and is measured again at every tick. Whatever happens, a
stamp lies between the one before and the time of reading. Where the kernel gives none (TLS, other systems) it is taken
right after the `recv`. Bytes that are read together share one stamp: two events that waited for a late process are told
as one moment. So reading is short, and ended answers are parsed in slices (`in_slices`).

**Reading.** Under gevent the hub calls `feed` itself when bytes are there: one watcher for the whole call, no switch of
greenlets per chunk, 6 us per chunk instead of 40. In plain threads (the gate) a poll does the same. HTTP's framing is
taken off by llhttp (httptools), 1 us per chunk. The caller sleeps until the answer is over.

**Bounds.** Deadline, silence and `is_cut` are looked at every TICK_S and not per read.
"""

import select
import socket
import ssl
import struct
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from time import monotonic_ns, time_ns
from typing import Any

import httptools

from tasks.traffic.connection import NOT_YET
from tasks.traffic.sse import Piece

LINGER_S = 2.0  # how long the body's end may take after [DONE]
TICK_S = 0.2  # how often a waiting call looks at its bounds
SLICE_NS = 300_000  # of parsing between two looks at the sockets: 4 chunks at 12,800 chunks/s
MAX_BYTES = 64 << 20
READ_BYTES = 1 << 16
NOTE_BYTES = socket.CMSG_SPACE(16)
_SECONDS_NS = struct.Struct("@qq").unpack


class Exchange:
    """What one call has received, and how it ended. httptools calls the on_... methods while `feed` reads.

    `failure` is None or (kind of record.FAILURES, in words); `end_ns` is set when it is over.
    """

    def __init__(self, *, t_send_ns: int, deadline_ns: int, idle_s: float, is_cut: Callable[[], bool]) -> None:
        self.deadline_ns, self.idle_s, self.asks_cut = deadline_ns, idle_s, is_cut
        self.pieces: list[Piece] = []  # of the body, without HTTP's framing
        self.first_ns: int | None = None
        self.last_ns, self.apart_ns = t_send_ns, clocks_apart_ns()
        self.size = 0
        self.status: int | None = None
        self.encoding = b""
        self.has_length = False
        self.failure: tuple[str, str] | None = None
        self.is_cut = self.is_over = self.is_reusable = False
        self.end_ns: int | None = None
        self.wake: Callable[[], None] = lambda: None
        self.parser = httptools.HttpResponseParser(self)
        self.sock: socket.socket
        self.read: Callable[[], None]

    def use(self, sock: socket.socket) -> None:
        """Read from this socket from now on."""
        self.sock = sock
        self.read = self._read_tls if isinstance(sock, ssl.SSLSocket) else self._read

    def feed(self) -> None:
        """There is something to read: called whenever the socket is readable. Never raises for what came or broke."""
        if self.is_over:
            return
        try:
            self.read()
        except NOT_YET:
            return
        except OSError as error:
            self._broke(str(error) or type(error).__name__)

    def tick(self) -> None:
        """Look at the bounds."""
        now_ns, self.apart_ns = monotonic_ns(), clocks_apart_ns()
        silent_s = (now_ns - self.last_ns) / 1e9 if self.first_ns is not None else 0.0
        if self.is_over:
            return
        if self.asks_cut():
            self.is_cut = True
            self._end()
        elif now_ns >= self.deadline_ns:
            self._end("timeout", "no end within the call's deadline")
        elif silent_s > self.idle_s or (silent_s > LINGER_S and self._is_done()):
            self._end("timeout", f"silent for {min(self.idle_s, silent_s):g} s")
        elif self.size > MAX_BYTES:
            self._end("malformed", f"more than {MAX_BYTES} bytes")

    def _read(self) -> None:
        data, notes, _, _ = self.sock.recvmsg(READ_BYTES, NOTE_BYTES)
        now_ns = monotonic_ns()
        if notes:
            seconds, nanoseconds = _SECONDS_NS(notes[0][2])
            now_ns = max(self.last_ns, min(now_ns, seconds * 1_000_000_000 + nanoseconds + self.apart_ns))
        self._take(now_ns, data)

    def _read_tls(self) -> None:
        while not self.is_over:  # what the TLS layer holds already makes no socket readable
            data = self.sock.recv(READ_BYTES)
            self._take(monotonic_ns(), data)

    def _take(self, at_ns: int, data: bytes) -> None:
        if not data:
            self._closed()
            return
        self.last_ns = at_ns
        if self.first_ns is None:
            self.first_ns = at_ns
        try:
            self.parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self.is_reusable = False
            self._end("malformed", f"not HTTP: {type(error).__name__}: {error}")

    def _closed(self) -> None:
        if self.status is None or self.has_length:
            self._broke("the server closed it")
        else:
            self._end()

    def _broke(self, why: str) -> None:
        self._end("connect" if self.status is None else "truncated", f"the connection broke: {why}")

    def _end(self, kind: str | None = None, detail: str = "") -> None:
        if self.is_over:
            return
        self.is_over, self.end_ns = True, monotonic_ns()
        self.failure = (kind, detail) if kind else None
        self.wake()

    def _is_done(self) -> bool:
        """Whether the last thing said is [DONE]: then only the end of the body is missing."""
        tail = b"".join(piece for _, piece in self.pieces[-3:])[-64:]
        return tail.rstrip().endswith(b"[DONE]")

    def on_message_begin(self) -> None:
        if self.is_over:  # an answer that nobody asked for
            self.is_reusable = False

    def on_header(self, name: bytes, value: bytes) -> None:
        key = name.lower()
        if key == b"content-encoding":
            self.encoding = value.strip().lower()
        elif key in (b"content-length", b"transfer-encoding"):
            self.has_length = True

    def on_headers_complete(self) -> None:
        status = self.parser.get_status_code()
        self.status = status if status >= 200 else None  # 100, 103: the answer is still to come

    def on_body(self, data: bytes) -> None:
        self.pieces.append((self.last_ns, data))
        self.size += len(data)

    def on_message_complete(self) -> None:
        if self.status is not None:
            self.is_reusable = self.parser.should_keep_alive()
            self._end()
            self.end_ns = self.last_ns


def clocks_apart_ns() -> int:
    """Monotonic clock minus wall clock: the best of three, since the process may lose the core between two readings."""
    best, apart = sys.maxsize, 0
    for _ in range(3):
        before, wall, after = monotonic_ns(), time_ns(), monotonic_ns()
        if after - before < best:
            best, apart = after - before, (before + after) // 2 - wall
    return apart


def wait(exchange: Exchange) -> None:
    """Until the exchange is over. Its own deadline bounds it."""
    exchange.sock.setblocking(False)
    if exchange.is_over:
        return
    if _is_gevent():
        _wait_in_hub(exchange)
    else:
        _wait_in_thread(exchange)


def in_slices(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """The same pieces. Under gevent one caller at a time gets them, and all together SLICE_NS between two polls.

    The pause is a timer and no sleep(0): gevent runs callbacks of its own for up to 5 ms before it polls again.
    """
    if not _is_gevent():
        yield from pieces
        return
    import gevent

    turn, loop = _turn(), gevent.get_hub().loop
    with turn.lock:
        for piece in pieces:
            now_ns = monotonic_ns()
            if loop.iteration != turn.iteration:
                turn.iteration, turn.until_ns = loop.iteration, now_ns + SLICE_NS
            elif now_ns > turn.until_ns:
                gevent.sleep(1e-5)
            yield piece


class _Turn:
    """Whose turn it is to parse; how long parsing may go on in this iteration of the event loop."""

    def __init__(self) -> None:
        from gevent.lock import Semaphore

        self.lock = Semaphore(1)
        self.iteration = -1
        self.until_ns = 0


@cache
def _turn() -> _Turn:
    return _Turn()


def _is_gevent() -> bool:
    monkey = sys.modules.get("gevent.monkey")
    return monkey is not None and monkey.is_module_patched("socket")


def _wait_in_thread(exchange: Exchange) -> None:
    poll = select.poll()
    poll.register(exchange.sock, select.POLLIN)
    while not exchange.is_over:
        if poll.poll(TICK_S * 1e3):
            exchange.feed()
        exchange.tick()


def _wait_in_hub(exchange: Exchange) -> None:
    from gevent import get_hub
    from gevent.hub import Waiter

    hub: Any = get_hub()
    waiter: Any = Waiter(hub)
    readable, clock = hub.loop.io(exchange.sock.fileno(), 1), hub.loop.timer(TICK_S, TICK_S)

    def wake() -> None:
        readable.stop()
        clock.stop()
        hub.loop.run_callback(waiter.switch, None)  # later: the other sockets come first

    exchange.wake = wake
    try:
        readable.start(exchange.feed)
        clock.start(exchange.tick)
        waiter.get()
    finally:
        readable.close()
        clock.close()
