"""The sim's HTTP: vLLM's endpoints, and two of its own, /sim/faults and /sim/state, open where development mode is."""

import asyncio
import os
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from tasks.document import InvalidDocument
from tasks.engines.sim import answers, flags, metrics
from tasks.engines.sim.chat import Chat, error
from tasks.engines.sim.engine import Engine
from tasks.engines.sim.faults import TABLE, Faults, complete, only_at_start
from tasks.engines.sim.flags import Setup

Handler = Callable[[Request], Awaitable[Response]]


class App:
    """Holds the engine, which is made when the event loop runs."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.engine: Engine

    def asgi(self) -> ASGIApp:
        routes = [
            Route("/health", self.health),
            Route("/version", self.version),
            Route("/metrics", self.metrics),
            Route("/v1/models", self.models),
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
        ]
        if self.setup.is_dev:
            routes += [
                Route("/server_info", self.server_info),
                Route("/reset_prefix_cache", self.reset_prefix_cache, methods=["POST"]),
                Route("/sim/faults", self.faults, methods=["GET", "POST"]),
                Route("/sim/state", self.state),
            ]
        app = Starlette(routes=routes, lifespan=self.lifespan)
        return _keyed(app, self, self.setup.key)

    @asynccontextmanager
    async def lifespan(self, _app: Any) -> AsyncIterator[None]:
        answers.cases()  # read now: the first request shall not wait for it
        self.engine = Engine(self.setup)
        pacing = asyncio.create_task(self.engine.run())
        pacing.add_done_callback(_die_with_it)
        try:
            yield
        finally:
            pacing.cancel()
            self.engine.stop()

    async def health(self, _request: Request) -> Response:
        return Response()

    async def version(self, _request: Request) -> Response:
        return JSONResponse({"version": version("armwise")})

    async def metrics(self, _request: Request) -> Response:
        return PlainTextResponse(metrics.text(self.engine), media_type="text/plain; version=0.0.4")

    async def models(self, _request: Request) -> Response:
        shown = {"id": self.setup.served_as, "object": "model", "owned_by": "sim", "created": 0}
        return JSONResponse({"object": "list", "data": [shown]})

    async def chat(self, _request: Request) -> Response:
        raise AssertionError("never called: _keyed hands this route to Chat")

    async def server_info(self, _request: Request) -> Response:
        told = {"vllm_config": flags.shown(self.setup), "vllm_env": self.setup.env, "system_env": {}}
        return JSONResponse(told)

    async def reset_prefix_cache(self, _request: Request) -> Response:
        """200 whether or not it worked, as vLLM answers: blocks in use are not reset. A planted first wave begins."""
        self.engine.scheduler.pool.reset()
        self.engine.first_tokens = 0
        return Response()

    async def faults(self, request: Request) -> Response:
        """GET what is planted, POST what shall be planted instead."""
        engine = self.engine
        if request.method == "POST":
            try:
                planted = complete(await request.json())
            except (InvalidDocument, ValueError, AttributeError, TypeError) as fault:
                return error(400, str(fault))
            if late := [name for name in only_at_start(planted) if name not in engine.faults.planted]:
                return error(400, f"{', '.join(late)}: only SIM_FAULTS at the start can plant it")
            engine.plant(Faults(planted))
        known = {name: {"number": fault.number, "says": fault.says} for name, fault in TABLE.items()}
        return JSONResponse({"planted": engine.faults.planted, "known": known})

    async def state(self, _request: Request) -> Response:
        """How well the pace was kept, and what waits."""
        engine = self.engine
        return JSONResponse(
            {
                "now_s": engine.now_s(),
                "requests": engine.number,
                "running": len(engine.scheduler.running),
                "waiting": len(engine.scheduler.waiting),
                "late_ms_max": engine.late_ns_max / 1e6,
                "lost": engine.lost,
            }
        )


def _keyed(app: ASGIApp, holder: App, key: str | None) -> ASGIApp:
    """Ask for the key below /v1, and hand the one hot route on without anything between it and the socket."""

    async def keyed(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith("/v1"):
            if key and dict(scope["headers"]).get(b"authorization") != f"Bearer {key}".encode():
                await JSONResponse({"error": "Unauthorized"}, 401)(scope, receive, send)
                return
            if scope["path"] == "/v1/chat/completions" and scope["method"] == "POST":
                await Chat(holder.engine)(scope, receive, send)
                return
        await app(scope, receive, send)

    return keyed


def _die_with_it(pacing: "asyncio.Task[None]") -> None:
    """A server whose scheduler has crashed must not live on and accept requests."""
    if not pacing.cancelled() and (fault := pacing.exception()):
        traceback.print_exception(fault)
        os._exit(1)
