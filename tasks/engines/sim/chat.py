"""POST /v1/chat/completions: a body in, a request for the scheduler out, and its answer back, streamed or whole."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from tasks.engines.sim import answers, deltas
from tasks.engines.sim.answers import Asked
from tasks.engines.sim.engine import Engine
from tasks.engines.sim.faults import Planted
from tasks.engines.sim.scheduler import Request
from tasks.engines.sim.stream import Stream
from tasks.engines.sim.wire import Wire


class Refused(Exception):
    """An answer other than 200: status and words."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status = status


class Chat:
    """The ASGI application of this one route."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        engine, http = self.engine, HttpRequest(scope, receive)
        body = await http.body()
        arrived_ns = time.monotonic_ns()  # all of it; from here to the queue nothing else gets its turn
        engine.number += 1
        try:
            if status := engine.faults.refusal(engine.number, engine.in_flight):
                raise Refused(status, "planted: the engine is overloaded")
            asked = _parsed(body, engine.setup.served_as)
            stream = _stream(engine, asked, http.headers, send if asked.get("stream") else None)
            stream.arrived_ns, stream.request.arrived_s = arrived_ns, engine.model_s(arrived_ns)
        except Refused as refused:
            await error(refused.status, str(refused))(scope, receive, send)
            return
        if engine.restarts():
            asyncio.get_running_loop().call_later(0.01, engine.restart)
        engine.in_flight += 1
        try:
            await (_streamed if stream.wire else _whole)(engine, stream, scope, receive, send)
        finally:
            engine.in_flight -= 1


def error(status: int, words: str) -> JSONResponse:
    """An error in vLLM's shape."""
    return JSONResponse({"error": {"message": words, "type": "BadRequestError", "param": None, "code": status}}, status)


def _parsed(body: bytes, model: str) -> dict[str, Any]:
    try:
        asked = json.loads(body)
    except ValueError as fault:
        raise Refused(400, f"the body is not JSON: {fault}") from fault
    messages = asked.get("messages") if isinstance(asked, dict) else None
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages) or not messages:
        raise Refused(400, "messages: must be a list of at least one message")
    if asked.get("model") not in (model, None):
        raise Refused(404, f"The model `{asked['model']}` does not exist.")
    if asked.get("n") not in (None, 1):
        raise Refused(400, "n: the sim gives one answer")
    return dict(asked)


def _stream(engine: Engine, body: Mapping[str, Any], headers: Mapping[str, str], send: Send | None) -> Stream:
    """Everything of one answer, before it is queued. Raises Refused."""
    setup, number = engine.setup, engine.number
    struck = engine.faults.strikes(number)
    words = answers.prompt(body["messages"], body.get("tools") or ())
    room = int(setup.flags["max-model-len"]) - len(words)
    if room < 1:
        raise Refused(400, f"the prompt has {len(words)} tokens, and the context {setup.flags['max-model-len']}")
    answer = answers.answer(_asked(engine, body, room, struck))
    size, salt = setup.limits.block_size, str(body.get("cache_salt") or "")
    answer_id = f"chatcmpl-{setup.limits.seed:x}-{number:08x}"
    request = Request(
        id=answer_id,
        prompt=len(words),
        output=len(answer.pieces),
        key=answers.digest(words),
        hashes=answers.block_hashes([*words, *answers.spoken(answer.pieces)], size, salt),
    )
    return Stream(
        number=number,
        request=request,
        answer=answer,
        opening=deltas.opening(answer_id, int(time.time()), setup.served_as),
        struck=struck,
        done=asyncio.get_running_loop().create_future(),
        wire=None if send is None else Wire(send),
        has_usage=bool((body.get("stream_options") or {}).get("include_usage")),
        shows_cached=bool(setup.flags["enable-prompt-tokens-details"]),
        asked_id=headers.get("x-request-id") or answer_id,
    )


def _asked(engine: Engine, body: Mapping[str, Any], room: int, struck: Planted) -> Asked:
    flags, limit = engine.setup.flags, body.get("max_completion_tokens") or body.get("max_tokens")
    least = body.get("min_tokens") or 0
    if limit is not None and (not isinstance(limit, int) or limit < 1):
        raise Refused(400, f"max_tokens: must be a whole number, 1 or more, found {limit!r}")
    return Asked(
        messages=body["messages"],
        tools=body.get("tools") or () if body.get("tool_choice") != "none" else (),
        limit=min(limit or room, room),
        is_fixed=bool(limit) and (bool(body.get("ignore_eos")) or least == limit),
        parses_calls=bool(flags["enable-auto-tool-choice"] and flags["tool-call-parser"]),
        seed=engine.setup.limits.seed,
        struck=struck,
    )


async def _streamed(engine: Engine, stream: Stream, _scope: Scope, receive: Receive, _send: Send) -> None:
    wire = stream.wire
    assert wire is not None
    await wire.start()
    if early := stream.struck.get("early_role"):
        await asyncio.sleep(0)  # the head goes out with this turn of the loop
        stream.role()
        await asyncio.sleep(early["ms"] / 1e3)
    engine.submit(stream)
    await _served(engine, stream, receive)
    if stream.end not in ("abort", "truncated"):
        await wire.end()


async def _whole(engine: Engine, stream: Stream, scope: Scope, receive: Receive, send: Send) -> None:
    engine.submit(stream)
    await _served(engine, stream, receive)
    if stream.end == "abort":
        return
    choice = {
        "index": 0,
        "message": deltas.message(stream.answer.pieces, stream.call_id),
        "logprobs": None,
        "finish_reason": stream.answer.finish_reason,
    }
    told = {
        "id": stream.request.id,
        "object": "chat.completion",
        "created": int(time.time()),
        "model": engine.setup.served_as,
        "choices": [choice],
        "usage": stream.usage(),
    }
    await JSONResponse(told)(scope, receive, send)


async def _served(engine: Engine, stream: Stream, receive: Callable[[], Awaitable[Any]]) -> None:
    """Wait until the answer has ended or the client has left, which aborts it."""
    gone = asyncio.ensure_future(receive())
    try:
        await asyncio.wait({stream.done, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not stream.done.done():
            engine.abort(stream)
    finally:
        gone.cancel()
