"""The way to a backend: HTTP/1.1 over a kept-alive connection, read with httptools, which uvicorn brings.

Why not a library: what the gateway adds is part of every measurement. Measured behind the same uvicorn and FastAPI with
64 streams of 50 chunks/s, in chunks per core-second: httpx 5,600, aiohttp 24,800, this 34,500; plain requests per
core-second: httpx 300-700, aiohttp 2,500-5,000, this 7,600-10,000. It also gives what neither does without a timer per
chunk: silence noticed by one timer per request, and a connection dropped in the instant in which the client leaves.

A connection carries one exchange at a time. It is kept only if the answer ended as announced, and not for long: servers
close idle ones (vLLM after 5 s), and a request sent into a closing connection would be a failure of our own making.
"""

import asyncio
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast
from urllib.parse import urlsplit

import httptools

KEEP_S = 3.0  # below the 5 s after which uvicorn, and so vLLM, closes
LINGER_S = 1.0  # what a connection may stay open after the stream said [DONE]
QUEUE_BYTES = 256 * 1024  # a client that reads slower than this stops us reading from its upstream


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


@lru_cache(maxsize=1024)
def address(url: str) -> Address:
    """Take a URL apart. Raises ValueError for a bad port."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    authority = parts.netloc.rpartition("@")[2]
    return Address(parts.scheme, parts.hostname or "", port, parts.path or "/", authority)


class Connection(asyncio.Protocol):
    """One connection to a backend. Its callbacks only collect; `head` and `read` wait for what was collected."""

    transport: asyncio.Transport
    parser: Any  # httptools has no types
    queue: list[bytes]
    headers: list[tuple[bytes, bytes]]
    failed: UpstreamFailed | None
    waiter: asyncio.Future[None] | None
    headers_done: bool
    is_framed: bool  # the answer says where it ends
    is_complete: bool
    is_reusable: bool
    is_paused: bool

    def __init__(self, place: Address, idle_s: float, shelf: list["Connection"]) -> None:
        self.place = place
        self.idle_s = idle_s
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
        self.heard_at = self.loop.time()
        try:
            self.parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(UpstreamFailed("malformed", f"{self.place.authority} sent what is not HTTP: {error}"))
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
        if self.is_complete:  # a second answer that nobody asked for
            self.transport.abort()

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        self.headers.append((name, value))
        if name in (b"content-length", b"transfer-encoding"):
            self.is_framed = True

    def on_headers_complete(self) -> None:
        self.status = self.parser.get_status_code()
        self.headers_done = self.status >= 200

    def on_body(self, body: bytes) -> None:
        if self.is_complete:
            return
        self.queue.append(body)
        self.queued += len(body)
        if self.queued > QUEUE_BYTES and not self.is_paused:
            self.is_paused = True
            self.transport.pause_reading()

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
        self.parser = httptools.HttpResponseParser(self)
        self.queue = []
        self.queued = 0
        self.headers = []
        self.status = 0
        self.waiter = None
        self.failed = None
        self.headers_done = self.is_framed = self.is_complete = self.is_reusable = self.is_paused = False
        self.limit_s = self.idle_s
        self.heard_at = self.loop.time()
        self._set_timer(self.limit_s, self._check_silence)
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
        body = self.queue[0] if len(self.queue) == 1 else b"".join(self.queue)
        self.queue.clear()
        self.queued = 0
        if self.is_paused:
            self.is_paused = False
            self.heard_at = self.loop.time()
            self.transport.resume_reading()
        return body

    def expect_end(self) -> None:
        """The stream said that it is over: do not wait long for the connection to say so too."""
        self.limit_s = LINGER_S
        self._set_timer(LINGER_S, self._check_silence)

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
        """Runs once per limit, not per chunk: looks how long ago the last bytes came and sleeps for the rest."""
        left_s = self.heard_at + self.limit_s - self.loop.time()
        if self.is_complete or self.failed:
            return
        if left_s > 0 or self.is_paused:
            self._set_timer(max(left_s, 0.1), self._check_silence)
        elif self.limit_s == LINGER_S:
            self.is_complete = True  # [DONE] was said; is_reusable stays False
        else:
            words = f"{self.place.authority} sent nothing for {self.limit_s:g} s"
            self._fail(UpstreamFailed("timeout", words, status=504))
            self.transport.abort()
        self._wake()

    def _fail(self, failed: UpstreamFailed) -> None:
        self.failed = self.failed or failed

    async def _news(self) -> None:
        self.waiter = self.loop.create_future()
        await self.waiter

    def _wake(self) -> None:
        waiter = self.waiter if self.is_busy else None
        if waiter and not waiter.done():
            waiter.set_result(None)
