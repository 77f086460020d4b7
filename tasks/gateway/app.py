"""The gateway: an OpenAI-compatible front that routes on X-Technique. docs/gateway.md lists routes, headers, metrics.

    POST   /v1/chat/completions          passed to the technique's backend, byte for byte (tasks/gateway/relay.py)
    GET    /v1/models                    what the registered backends serve
    GET    /healthz  /metrics
    GET    /admin/backends               who is registered
    POST   /admin/backends               register; other runs of the technique whose upstream is dead are forgotten
    DELETE /admin/backends/{technique}   deregister (?run_id= only that run's); gone already is fine

/admin needs the bearer token of <state>/token. The rest needs none, which is why the gateway binds to loopback.

uvicorn calls `Gateway`, which hands completions to the relay with nothing between it and the socket (FastAPI's stack
would cost a request more than the relay itself does) and everything else to FastAPI.
"""

import asyncio
import contextlib
import hmac
import json
import os
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Header, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from tasks.artifact import BrokenArtifact
from tasks.document import InvalidDocument, parse
from tasks.gateway import SERVICE, metrics, pulse
from tasks.gateway.log import Log
from tasks.gateway.pool import Pool
from tasks.gateway.registry import Backend, Registry, Unrouted
from tasks.gateway.relay import Refused, Relay, error_response, kind_of, read_body
from tasks.gateway.upstream import UpstreamFailed, address


@dataclass(frozen=True)
class Limits:
    """Bounds of one gateway."""

    connect_s: float = 3.0  # loopback answers in microseconds, another continent in 0.3 s
    idle_s: float = 600.0  # longest silence of an upstream: a queue, or a long prompt on a CPU
    body_bytes: int = 16 * 1024 * 1024
    in_flight: int = 4096


CHAT = "/v1/chat/completions"


@dataclass(frozen=True)
class Shared:
    """What the workers of one gateway share: the count of changes to the registry, the folder of the metrics."""

    changes: memoryview
    metrics: Path


class Gateway:
    """What uvicorn calls."""

    def __init__(self, app: FastAPI, relay: Relay) -> None:
        self.app = app
        self.relay = relay

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_chat = scope["type"] == "http" and scope["path"] == CHAT and scope["method"] == "POST"
        await (self.relay if is_chat else self.app)(scope, receive, send)


def create(
    state_dir: Path, *, limits: Limits = Limits(), log: Log | None = None, shared: Shared | None = None
) -> Gateway:
    """The app over one state folder. Raises BrokenArtifact or InvalidDocument if the folder holds something broken.

    `shared`: this process is one of several over the folder.
    """
    counted = metrics.create(shared.metrics if shared else None)
    registry = Registry(state_dir / "backends.json", shared.changes if shared else None)
    log = log or Log(state_dir / "requests.log", on_error=counted.log_errors.inc)
    pool = Pool(connect_timeout_s=limits.connect_s, idle_timeout_s=limits.idle_s)
    relay = Relay(registry, pool, counted, log, limits.body_bytes, limits.in_flight)

    @contextlib.asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        beating = asyncio.create_task(pulse.beat(counted))
        yield
        beating.cancel()
        pool.close()
        log.close()

    app = FastAPI(title=SERVICE, lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    app.router.routes.append(Route(CHAT, relay, methods=["POST"]))
    app.include_router(_open_routes(registry, counted))
    app.include_router(_admin_routes(registry, pool, log, admin_token(state_dir)))
    _speak_in_words(app)
    return Gateway(app, relay)


def admin_token(state_dir: Path) -> str:
    """The admin token of a state folder, made if missing. Raises BrokenArtifact if its file is empty."""
    path = state_dir / "token"
    try:
        handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with os.fdopen(handle, "w") as file:
            file.write(secrets.token_urlsafe(32) + "\n")
    except FileExistsError:
        path.chmod(0o600)
    found = path.read_text().strip()
    if not found:
        raise BrokenArtifact(f"{path}: is empty; remove it, and the next start makes a new one")
    return found


def _open_routes(registry: Registry, counted: metrics.Metrics) -> APIRouter:
    routes = APIRouter()

    @routes.get("/healthz")
    async def healthz() -> dict[str, Any]:
        techniques = sorted({backend.technique for backend in registry.all()})
        return {"status": "ok", "service": SERVICE, "techniques": techniques}

    @routes.get("/metrics")
    async def prometheus() -> Response:
        return Response(counted.text(), media_type=CONTENT_TYPE_LATEST)

    @routes.get("/v1/models")
    async def models(
        x_technique: Annotated[str | None, Header()] = None, x_run: Annotated[str | None, Header()] = None
    ) -> dict[str, Any]:
        shown = [registry.route(x_technique, x_run)] if x_technique else registry.all()
        return {"object": "list", "data": [_model(backend) for backend in shown]}

    return routes


def _model(backend: Backend) -> dict[str, Any]:
    return {
        "id": backend.model,
        "object": "model",
        "created": int(backend.registered_at),
        "owned_by": backend.technique,
        "technique": backend.technique,
        "run_id": backend.run_id,
    }


def _admin_routes(registry: Registry, pool: Pool, log: Log, token: str) -> APIRouter:
    async def authenticated(authorization: Annotated[str, Header()] = "") -> None:
        if not hmac.compare_digest(authorization.encode(), f"Bearer {token}".encode()):
            raise Refused(401, "unauthorized", "Authorization: must be 'Bearer TOKEN', with the token of this gateway")

    routes = APIRouter(prefix="/admin/backends", dependencies=[Depends(authenticated)])

    @routes.get("")
    async def show() -> dict[str, Any]:
        return {"backends": [backend.shown() for backend in registry.all()]}

    @routes.post("")
    async def register(request: Request) -> dict[str, Any]:
        body = await read_body(request.receive, dict(request.headers.raw), 64 * 1024)
        wanted = parse(_json(body), Backend, source="backend")
        kind_of(wanted.kind)
        dead = await _dead(registry.of(wanted.technique), pool, but=wanted)
        stored = registry.put(wanted, instead_of=dead).shown()
        for gone in dead:
            log.write("deregistered", technique=gone.technique, run_id=gone.run_id, result="dead")
        log.write("registered", **stored)
        return stored

    @routes.delete("/{technique}")
    async def deregister(technique: str, run_id: str | None = None) -> dict[str, Any]:
        result = registry.remove(technique, run_id)
        log.write("deregistered", technique=technique, run_id=run_id, result=result)
        return {"technique": technique, "run_id": run_id, "result": result}

    return routes


async def _dead(held: list[Backend], pool: Pool, *, but: Backend) -> list[Backend]:
    """Other runs' backends to which no connection can be made."""
    others = [backend for backend in held if backend.run_id != but.run_id]
    alive = await asyncio.gather(*(_is_alive(backend, pool) for backend in others))
    return [backend for backend, lives in zip(others, alive, strict=True) if not lives]


async def _is_alive(backend: Backend, pool: Pool) -> bool:
    try:
        connection = await pool.connect(address(backend.url))
    except UpstreamFailed:
        return False
    connection.drop()
    return True


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Refused(400, "invalid_json", f"body: is not JSON: {error}") from error


def _speak_in_words(app: FastAPI) -> None:
    """Every error is a JSON document in the shape that OpenAI clients read."""

    @app.exception_handler(Refused)
    async def refused(_request: Request, error: Refused) -> JSONResponse:
        return error_response(error)

    @app.exception_handler(InvalidDocument)
    async def invalid(_request: Request, error: InvalidDocument) -> JSONResponse:
        return error_response(Refused(400, "invalid_request", str(error)))

    @app.exception_handler(Unrouted)
    async def unrouted(_request: Request, error: Unrouted) -> JSONResponse:
        return error_response(Refused(error.status, error.kind, str(error)))

    @app.exception_handler(OSError)
    async def disk(_request: Request, error: OSError) -> JSONResponse:
        return error_response(Refused(507, "state_not_written", f"the gateway could not write its state: {error}"))

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> JSONResponse:
        words = f"{request.method} {request.url.path}: {error.detail}"
        return error_response(Refused(error.status_code, "no_such_route", words))
