"""POST /v1/chat/completions: a plain ASGI endpoint inside the FastAPI app, since bytes pass here and nothing else.

The body of the answer is passed on in the pieces in which it came, unparsed. Only its last bytes are kept, and read
once at the end for usage and finish reason. Three ways to end early, each visible to the one who must know:

- the client leaves (uvicorn says so through `receive`): the relay is cancelled, which cuts the upstream connection in
  the same instant, before the first token as well as after it;
- the upstream dies or falls silent before its answer began: an error document with 502 or 504;
- the same in the middle of an answer: what came is passed on and the response is left without its end (no last chunk,
  or short of its content-length), so that no client can take it for complete.
"""

import asyncio
import json
import time
from collections.abc import Mapping
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
from tasks.gateway.pool import Pool
from tasks.gateway.registry import Backend, Registry, Unrouted
from tasks.gateway.upstream import Connection, UpstreamFailed

# What a client's request may tell the upstream. Its credentials and cookies stay here.
FORWARDED = ("content-type", "accept", "user-agent", "x-task-id", "x-step", "traceparent", "tracestate")
# What belongs to one connection (RFC 9110, 7.6.1), or is written anew.
NOT_RETURNED = frozenset(
    b"connection keep-alive proxy-authenticate proxy-connection te trailer transfer-encoding upgrade".split()
)
TAIL_BYTES = 16 * 1024
DONE = (b"data: [DONE]\n\n", b"data: [DONE]\r\n\r\n", b"data:[DONE]\n\n")


class Refused(Exception):
    """The gateway answers itself."""

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind


class ClientLeft(Exception):
    """Nobody is there to answer."""


class Tail:
    """The last bytes of what passed; joins rarely, so that a chunk costs next to nothing."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.size = 0
        self.edge = b""

    def feed(self, chunk: bytes) -> None:
        self.parts.append(chunk)
        self.size += len(chunk)
        self.edge = (self.edge + chunk[-20:])[-20:]
        if self.size > 4 * TAIL_BYTES:
            self.parts = [self.bytes()]
            self.size = len(self.parts[0])

    def bytes(self) -> bytes:
        return b"".join(self.parts)[-TAIL_BYTES:]

    def is_done(self) -> bool:
        return self.edge.endswith(DONE)


@dataclass
class Relay:
    """The endpoint. Called by Starlette's router once per request."""

    registry: Registry
    pool: Pool
    metrics: Metrics
    log: Log
    max_body_bytes: int
    max_in_flight: int
    in_flight: int = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
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

    async def _answer(self, account: Account, headers: Mapping[str, str], receive: Receive, send: Send) -> None:
        try:
            backend = self.registry.route(account.technique)
        except Unrouted as error:
            raise Refused(400, "unknown_technique", str(error)) from error
        account.backend = backend
        if self.in_flight >= self.max_in_flight:
            raise Refused(
                503, "gateway_full", f"{self.in_flight} requests are in flight, the most that this gateway takes"
            )
        gauge = self.metrics.in_flight.labels(backend.technique, backend.kind)
        gauge.inc()
        self.in_flight += 1
        try:
            body = await read_body(receive, headers, self.max_body_bytes)
            account.request_bytes = len(body)
            check_body(body)
            if logs_prompts():
                account.prompt = body.decode("utf-8", "replace")
            await self._guarded(account, backend, forwarded(account, headers), body, receive, send)
        finally:
            gauge.dec()
            self.in_flight -= 1

    async def _guarded(
        self, account: Account, backend: Backend, headers: dict[str, str], body: bytes, receive: Receive, send: Send
    ) -> None:
        """Relay, and stop in the instant in which the client leaves."""
        relay = asyncio.create_task(self._relay(account, backend, headers, body, send))
        gone = asyncio.create_task(left(receive))
        try:
            await asyncio.wait((relay, gone), return_when=asyncio.FIRST_COMPLETED)
            if not relay.done() and account.ended != "complete":
                raise ClientLeft
            await relay
        finally:
            gone.cancel()
            if not relay.done():
                relay.cancel()
                await asyncio.wait((relay,))  # nothing in it waits any more: the cut is made when this returns

    async def _relay(
        self, account: Account, backend: Backend, headers: dict[str, str], body: bytes, send: Send
    ) -> None:
        kind = kind_of(backend.kind)
        connection: Connection | None = None
        try:
            connection = await self.pool.post(kind.chat_url(backend.url), headers | kind.headers(backend.key), body)
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
        account.stream = any(n == b"content-type" and v.startswith(b"text/event-stream") for n, v in headers)
        returned = [(n, v) for n, v in headers if n not in NOT_RETURNED and n != b"x-request-id"]
        returned.append((b"x-request-id", account.request_id.encode("latin-1")))
        await send({"type": "http.response.start", "status": status, "headers": returned})
        tail = Tail()
        try:
            while chunk := await connection.read():
                if account.first_ns is None:
                    account.first_ns = time.perf_counter_ns()
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
                account.response_bytes += len(chunk)
                tail.feed(chunk)
                if account.stream and tail.is_done():
                    connection.expect_end()
            account.status, account.ended = status, "complete"
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            account.ending = kind.ending(tail.bytes())


@lru_cache
def kind_of(name: str) -> ModuleType:
    """The module of a kind, found once. Raises UnknownName."""
    return catalog.module_of(backends, name)


async def left(receive: Receive) -> None:
    """Returns when the client is gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def read_body(receive: Receive, headers: Mapping[str, str], limit: int) -> bytes:
    """The whole request body. Raises Refused (413), ClientLeft."""
    length = headers.get("content-length", "0")
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
    """Only that it is a JSON object; the rest is the server's business. Raises Refused (400)."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Refused(400, "invalid_json", f"body: is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise Refused(400, "invalid_json", f"body: must be a JSON object, found {type(content).__name__}")


def forwarded(account: Account, headers: Mapping[str, str]) -> dict[str, str]:
    """Headers for the upstream. It is asked not to compress: compressed bytes could not be read in passing."""
    kept = {name: headers[name] for name in FORWARDED if name in headers}
    return kept | {"accept-encoding": "identity", "x-request-id": account.request_id}


def error_response(refused: Refused, request_id: str | None = None) -> JSONResponse:
    """An error in the shape that OpenAI clients read."""
    content = {"error": {"message": str(refused), "type": refused.kind, "code": refused.status}}
    return JSONResponse(content, refused.status, headers={"x-request-id": request_id} if request_id else None)
