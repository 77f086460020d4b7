"""POST /v1/chat/completions: a plain ASGI endpoint before the FastAPI app, since bytes pass here and nothing else.

A streamed answer goes from socket to socket (tasks/gateway/outlet.py), unparsed. Only its last bytes are kept, and read
once at the end for usage and finish reason. Three ways to end early, each visible to the one who must know:

- the client leaves (uvicorn says so through `receive`): the relay is cancelled, which cuts the upstream connection in
  the same instant, before the first token as well as after it;
- the upstream dies or falls silent before its answer began: an error document with 502 or 504;
- the same in the middle of an answer: what came is passed on and the response is left without its end (no last chunk,
  or short of its content-length), so that no client can take it for complete.
"""

import asyncio
import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType

from starlette.responses import JSONResponse
from starlette.types import Message, Receive, Scope, Send

from tasks import catalog
from tasks.gateway import account as accounts
from tasks.gateway import backends
from tasks.gateway.account import Account
from tasks.gateway.log import Log, logs_prompts
from tasks.gateway.metrics import Metrics
from tasks.gateway.outlet import Outlet
from tasks.gateway.pool import Pool
from tasks.gateway.registry import Backend, Registry, Unrouted
from tasks.gateway.upstream import Address, Connection, UpstreamFailed, address

# What a client's request may tell the upstream. Its credentials and cookies stay here.
FORWARDED = tuple(b"content-type accept user-agent x-task-id x-step traceparent tracestate".split())
# What belongs to one connection (RFC 9110, 7.6.1), or is written anew.
NOT_RETURNED = frozenset(
    b"connection keep-alive proxy-authenticate proxy-connection te trailer transfer-encoding upgrade"
    b" x-request-id".split()
)
BODILESS = (204, 304)
Headers = Mapping[bytes, bytes]


class Refused(Exception):
    """The gateway answers itself."""

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind


class ClientLeft(Exception):
    """Nobody is there to answer."""


@dataclass
class Relay:
    """The endpoint. Called once per request."""

    registry: Registry
    pool: Pool
    metrics: Metrics
    log: Log
    max_body_bytes: int
    max_in_flight: int
    in_flight: int = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers: dict[bytes, bytes] = dict(scope["headers"])
        account = accounts.begin(headers)
        try:
            await self._answer(account, headers, receive, send)
        except Refused as refused:
            account.status, account.ended, account.error = refused.status, "refused", str(refused)
            await error_response(refused, account.request_id)(scope, receive, send)
        except ClientLeft:
            account.status, account.ended = accounts.LEFT, "client_left"
        except asyncio.CancelledError:  # uvicorn's grace is over; it closes the connection when this returns
            account.status, account.ended = 503, "gateway_stopped"
        finally:
            self.log.write("request", **account.close(self.metrics))

    async def _answer(self, account: Account, headers: Headers, receive: Receive, send: Send) -> None:
        try:
            backend = self.registry.route(account.technique, account.run)
        except Unrouted as error:
            raise Refused(error.status, error.kind, str(error)) from error
        account.backend = backend
        with self._counted(backend):
            body = await read_body(receive, headers, self.max_body_bytes)
            account.request_bytes = len(body)
            check_body(body)
            if logs_prompts():
                account.prompt = body.decode("utf-8", "replace")
            await self._guarded(account, backend, headers, body, receive, send)

    @contextlib.contextmanager
    def _counted(self, backend: Backend) -> Iterator[None]:
        """Raises Refused when too many are in flight."""
        if self.in_flight >= self.max_in_flight:
            words = f"{self.in_flight} requests are in flight, the most that one worker of this gateway takes"
            raise Refused(503, "gateway_full", words)
        gauge = self.metrics.in_flight.labels(backend.technique, backend.kind)
        gauge.inc()
        self.in_flight += 1
        try:
            yield
        finally:
            gauge.dec()
            self.in_flight -= 1

    async def _guarded(
        self, account: Account, backend: Backend, headers: Headers, body: bytes, receive: Receive, send: Send
    ) -> None:
        """Relay, and stop in the instant in which the client leaves."""
        relay = asyncio.current_task()
        assert relay is not None
        gone = asyncio.create_task(left(receive))
        cut = lambda _: relay.cancel()  # noqa: E731
        gone.add_done_callback(cut)
        try:
            await self._relay(account, backend, headers, body, send)
        except asyncio.CancelledError:
            if not gone.done() or gone.cancelled():
                raise
            relay.uncancel()
            if account.ended != "complete":
                raise ClientLeft from None
        finally:
            gone.remove_done_callback(cut)
            gone.cancel()

    async def _relay(self, account: Account, backend: Backend, headers: Headers, body: bytes, send: Send) -> None:
        place, own, kind = way(backend.kind, backend.url, backend.key)
        sent = [(name, headers[name]) for name in FORWARDED if name in headers]
        sent += (*own, (b"x-request-id", account.request_id.encode("latin-1")))
        connection: Connection | None = None
        try:
            connection = await self.pool.post(place, sent, body)
            account.sent_ns = time.perf_counter_ns()
            await self._pass(account, connection, send, kind)
        except UpstreamFailed as failed:
            account.upstream_error = failed.kind
            if account.head_ns is None:
                raise Refused(failed.status, f"upstream_{failed.kind}", str(failed)) from failed
            account.status, account.ended, account.error = failed.status, "upstream_failed", str(failed)
        finally:
            if connection:
                connection.end()

    async def _pass(self, account: Account, connection: Connection, send: Send, kind: ModuleType) -> None:
        status, headers = await connection.head()
        account.head_ns = time.perf_counter_ns()
        outlet = Outlet(send, kind)
        account.stream = outlet.is_stream = is_event_stream(headers)
        returned = [(n, v) for n, v in headers if n not in NOT_RETURNED]
        returned.append((b"x-request-id", account.request_id.encode("latin-1")))
        await send({"type": "http.response.start", "status": status, "headers": returned})
        try:
            if status not in BODILESS and not any(n == b"content-length" for n, _ in returned):
                await connection.pour(outlet)  # uvicorn announced chunks, and so we send them
            else:
                while body := await connection.read():
                    outlet.note(body)
                    await send({"type": "http.response.body", "body": body, "more_body": True})
            account.status, account.ended = status, "complete"
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            account.first_ns, account.response_bytes = outlet.first_ns, outlet.size
            account.ending = outlet.ending()


def is_event_stream(headers: list[tuple[bytes, bytes]]) -> bool:
    return any(n == b"content-type" and v.startswith(b"text/event-stream") for n, v in headers)


@lru_cache
def kind_of(name: str) -> ModuleType:
    """The module of a kind, found once. Raises UnknownName."""
    return catalog.module_of(backends, name)


@lru_cache(maxsize=1024)
def way(kind: str, url: str, key: str | None) -> tuple[Address, list[tuple[bytes, bytes]], ModuleType]:
    """Where a backend's completions are posted, and the headers of ours that go there.

    It is asked not to compress: compressed bytes could not be read in passing.
    """
    module = kind_of(kind)
    own = {"accept-encoding": "identity"} | module.headers(key)
    return address(module.chat_url(url)), [(n.encode("latin-1"), v.encode("latin-1")) for n, v in own.items()], module


async def left(receive: Receive) -> None:
    """Returns when the client is gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def read_body(receive: Receive, headers: Headers, limit: int) -> bytes:
    """The whole request body. Raises Refused (413), ClientLeft."""
    length = headers.get(b"content-length", b"0")
    announced = int(length) if length.isdigit() else 0
    parts: list[bytes] = []
    size, more = 0, True
    while more and max(size, announced) <= limit:
        message: Message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        more = message.get("more_body", False)
    if max(size, announced) > limit:
        raise Refused(
            413, "body_too_large", f"body: must be at most {limit} bytes, found {max(size, announced)} or more"
        )
    return b"".join(parts)


def check_body(body: bytes) -> None:
    """Only that it could be a JSON object, which costs the same for a prompt of any length. Raises Refused (400).

    Parsing it would delay every other answer of this worker, and the server parses it anyway.
    """
    bare = body.strip(b" \t\r\n")
    if len(bare) < 2 or bare[:1] != b"{" or bare[-1:] != b"}":
        words = f"body: must be a JSON object, {{...}}; found {len(body)} bytes that cannot be one"
        raise Refused(400, "invalid_json", words)


def error_response(refused: Refused, request_id: str | None = None) -> JSONResponse:
    """An error in the shape that OpenAI clients read."""
    content = {"error": {"message": str(refused), "type": refused.kind, "code": refused.status}}
    return JSONResponse(content, refused.status, headers={"x-request-id": request_id} if request_id else None)
