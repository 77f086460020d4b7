"""The way to a backend: HTTP/1.1 over a kept-alive connection, read with httptools, which uvicorn brings.

Why not a library: what the gateway adds is part of every measurement. Behind the same uvicorn and FastAPI, 64 streams
of 50 chunks/s, in chunks per core-second: httpx 5,600, aiohttp 24,800, this (before `pour`) 34,500. Nor do they notice
silence without a timer per chunk, or drop a connection in the instant in which the client leaves.

The parser collects the body's pieces by calling a list's own `append`; `read` takes them out for an answer whose length
is known, `pour` passes those of a stream on from within the callback that brought them.

A connection carries one exchange at a time. It is kept only if the answer ended as announced, and not for long: servers
close idle ones (vLLM after 5 s), and a request sent into a closing connection would be a failure of our own making.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol, cast
from urllib.parse import urlsplit

import httptools

KEEP_S = 3.0  # below the 5 s after which uvicorn, and so vLLM, closes
LOOK_S = 0.5  # how often silence is looked for: a stream that said [DONE] may stay open for so long, to twice of it
QUEUE_BYTES = 256 * 1024  # a client that reads slower than this stops us reading from its upstream


class Sink(Protocol):
    """Where `pour` passes a stream's bytes to (tasks/gateway/outlet.py). `write` returns True when it is full."""

    def write(self, body: bytes) -> bool: ...
    async def drained(self) -> None: ...
    def is_done(self) -> bool: ...


class AnsweredTwice(Exception):
    """More came than was asked for. Raised in the parser's callback, it ends the parsing."""


class UpstreamFailed(Exception):
    """The backend did not answer to the end. `kind` is a metric label; `status` is what the client should be told."""

    def __init__(self, kind: str, message: str, *, status: int = 502) -> None:
        super().__init__(message)
        self.kind = kind
        self.status = status


@dataclass(frozen=True)
class Address:
    """A URL, taken apart once."""

    scheme: str
    host: str
    port: int
    path: str
    authority: str
    post: bytes  # how a POST to it begins


@lru_cache(maxsize=1024)
def address(url: str) -> Address:
    """Take a URL apart. Raises ValueError for a bad port."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    authority = parts.netloc.rpartition("@")[2]
    path = parts.path or "/"
    post = f"POST {path} HTTP/1.1\r\nhost: {authority}\r\n".encode("latin-1")
    return Address(parts.scheme, parts.hostname or "", port, path, authority, post)


def _never() -> bool:
    return False


class Connection(asyncio.Protocol):
    """One connection to a backend. Its callbacks collect, for `head` and `read`, or pass on, to the sink of `pour`."""

    transport: asyncio.Transport
    parser: Any  # httptools has no types
    queue: list[bytes]
    headers: list[tuple[bytes, bytes]]
    failed: UpstreamFailed | None
    pass_on: Callable[[bytes], bool] | None  # what `pour` was given; None: collect
    is_done: Callable[[], bool]
    waiter: asyncio.Future[None] | None
    headers_done: bool
    is_framed: bool  # the answer says where it ends
    is_complete: bool
    is_reusable: bool
    is_paused: bool

    def __init__(self, place: Address, idle_s: float, shelf: list["Connection"]) -> None:
        self.place = place
        self.idle_s = idle_s
        self.step_s = min(LOOK_S, idle_s)
        self.shelf = shelf  # where free connections of this origin wait
        self.loop = asyncio.get_running_loop()
        self.timer: asyncio.TimerHandle | None = None
        self.is_busy = False

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if not self.is_busy:  # nobody asked
            self.transport.abort()
            return
        self.is_heard = True
        try:
            self.parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._broken(error)
        if self.pass_on is None:
            self.queued += len(data)
            if self.queued > QUEUE_BYTES:
                self._pause()
        elif (queue := self.queue) and self.failed is None:
            is_full = self.pass_on(queue[0] if len(queue) == 1 else b"".join(queue))
            queue.clear()
            if is_full:
                self._pause()
            elif not self.is_complete:
                return  # the hot path: nobody is woken
        self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        if self in self.shelf:
            self.shelf.remove(self)
        if self.is_busy and not self.is_complete:
            if self.headers_done and not self.is_framed and error is None:
                self.is_complete = True  # an answer without length ends with its connection
            else:
                self._fail(UpstreamFailed("lost", f"{self.place.authority} closed in the middle of its answer"))
        self._wake()

    # httptools' side

    def on_message_begin(self) -> None:
        if self.is_complete:
            raise AnsweredTwice

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        self.headers.append((name, value))
        if name in (b"content-length", b"transfer-encoding"):
            self.is_framed = True

    def on_headers_complete(self) -> None:
        self.status = self.parser.get_status_code()
        self.headers_done = self.status >= 200

    def on_message_complete(self) -> None:
        if not self.headers_done:  # 100 Continue and its like
            self.headers = []
            self.is_framed = False
            return
        self.is_complete = True
        self.is_reusable = self.parser.should_keep_alive()

    # the gateway's side

    def begin(self, request: bytes) -> None:
        """Send one request. The connection must be free."""
        self.queue = []
        self.on_body = self.queue.append  # called by the parser, without a step in Python
        self.queued = 0
        self.pass_on = None
        self.is_done = _never
        self.parser = httptools.HttpResponseParser(self)
        self.headers = []
        self.status = 0
        self.waiter = None
        self.failed = None
        self.headers_done = self.is_framed = self.is_complete = self.is_reusable = self.is_paused = False
        self.is_heard = False
        self.silent_s = 0.0
        self._set_timer(self.step_s, self._check_silence)
        self.is_busy = True
        self.transport.write(request)

    async def head(self) -> tuple[int, list[tuple[bytes, bytes]]]:
        """Status and headers of the answer. Raises UpstreamFailed."""
        while not self.headers_done:
            if self.failed:
                raise self.failed
            await self._news()
        return self.status, self.headers

    async def read(self) -> bytes:
        """The next bytes of the body, as many as came; b"" at its proper end. Raises UpstreamFailed after the last."""
        while not self.queue:
            if self.failed:
                raise self.failed
            if self.is_complete:
                return b""
            await self._news()
        body = self._taken()
        self.queued = 0
        self._resume()
        return body

    async def pour(self, sink: Sink) -> None:
        """Pass the body on as it comes. Returns at its proper end. Raises UpstreamFailed after the last bytes."""
        if self.queue and sink.write(self._taken()):
            self._pause()
        self.is_done, self.pass_on = sink.is_done, sink.write
        while self.is_paused or not self.is_complete:
            if self.is_paused:
                await sink.drained()
                self._resume()
            elif self.failed:
                raise self.failed
            else:
                await self._news()

    def _is_free(self) -> bool:
        """May carry another request: all is read, all was sent, both sides want to go on."""
        return (
            self.is_complete
            and self.is_reusable
            and not self.queue
            and not self.transport.is_closing()
            and not self.transport.get_write_buffer_size()
        )

    def end(self) -> None:
        """The exchange is over. What ended well is kept a while for the next one, anything else is cut."""
        if self._is_free():
            self.is_busy = False
            self.shelf.append(self)
            self._set_timer(KEEP_S, self.transport.abort)
        else:
            self.drop()

    def drop(self) -> None:
        """Cut the connection now: the backend sees it at once and stops generating."""
        self.is_busy = False
        if self.timer:
            self.timer.cancel()
        self.transport.abort()

    def _set_timer(self, delay_s: float, call: Any) -> None:
        if self.timer:
            self.timer.cancel()
        self.timer = self.loop.call_later(delay_s, call)

    def _check_silence(self) -> None:
        """Runs about once a second, not per chunk: did anything come since the last time?"""
        if self.is_complete or self.failed:
            return
        self.silent_s = 0.0 if self.is_heard or self.is_paused else self.silent_s + self.step_s
        self.is_heard = False
        if self.silent_s and self.is_done():
            self.is_complete = True  # all was said; is_reusable stays False
            self._wake()
        elif self.silent_s >= self.idle_s:
            words = f"{self.place.authority} sent nothing for {self.idle_s:g} s"
            self._fail(UpstreamFailed("timeout", words, status=504))
            self.transport.abort()
            self._wake()
        else:
            self._set_timer(self.step_s, self._check_silence)

    def _taken(self) -> bytes:
        body = self.queue[0] if len(self.queue) == 1 else b"".join(self.queue)
        self.queue.clear()
        return body

    def _pause(self) -> None:
        if not self.is_paused and not self.transport.is_closing():
            self.is_paused = True
            self.transport.pause_reading()

    def _resume(self) -> None:
        if self.is_paused:
            self.is_paused = False
            self.is_heard = True  # what it did not send while we did not read is not its silence
            if not self.transport.is_closing():
                self.transport.resume_reading()

    def _broken(self, error: Exception) -> None:
        if self.is_complete:  # the answer was whole; what follows it was not asked for
            self.transport.abort()
        else:
            self._fail(UpstreamFailed("malformed", f"{self.place.authority} sent what is not HTTP: {error}"))

    def _fail(self, failed: UpstreamFailed) -> None:
        self.failed = self.failed or failed

    async def _news(self) -> None:
        self.waiter = self.loop.create_future()
        await self.waiter

    def _wake(self) -> None:
        waiter = self.waiter if self.is_busy else None
        if waiter and not waiter.done():
            waiter.set_result(None)
