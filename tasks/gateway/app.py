"""The gateway: an OpenAI-compatible front that routes on X-Technique. docs/gateway.md lists routes, headers, metrics.

    POST   /v1/chat/completions          passed to the technique's backend, byte for byte (tasks/gateway/relay.py)
    GET    /v1/models                    what the registered backends serve
    GET    /healthz  /metrics
    GET    /admin/backends               who is registered
    POST   /admin/backends               register; 409 if another run holds the technique and its upstream lives
    DELETE /admin/backends/{technique}   deregister (?run_id= only that run's); gone already is fine

/admin needs the bearer token of <state>/token. The rest needs none, which is why the gateway binds to loopback.
"""

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
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException
from starlette.routing import Route

from tasks.artifact import BrokenArtifact
from tasks.document import InvalidDocument, parse
from tasks.gateway import SERVICE, metrics
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


def create(state_dir: Path, *, limits: Limits = Limits(), log: Log | None = None) -> FastAPI:
    """The app over one state folder. Raises BrokenArtifact or InvalidDocument if the folder holds something broken."""
    counted = metrics.create()
    registry = Registry(state_dir / "backends.json")
    log = log or Log(state_dir / "requests.log", on_error=counted.log_errors.inc)
    pool = Pool(connect_timeout_s=limits.connect_s, idle_timeout_s=limits.idle_s)
    relay = Relay(registry, pool, counted, log, limits.body_bytes, limits.in_flight)

    @contextlib.asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        yield
        pool.close()
        log.close()

    app = FastAPI(title=SERVICE, lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    app.router.routes.append(Route("/v1/chat/completions", relay, methods=["POST"]))
    app.include_router(_open_routes(registry, counted))
    app.include_router(_admin_routes(registry, pool, log, admin_token(state_dir)))
    _speak_in_words(app)
    return app


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
        return {"status": "ok", "service": SERVICE, "techniques": sorted(registry.backends)}

    @routes.get("/metrics")
    async def prometheus() -> Response:
        return Response(generate_latest(counted.registry), media_type=CONTENT_TYPE_LATEST)

    @routes.get("/v1/models")
    async def models(x_technique: Annotated[str | None, Header()] = None) -> dict[str, Any]:
        shown = [registry.route(x_technique)] if x_technique else list(registry.backends.values())
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
        return {"backends": [backend.shown() for backend in registry.backends.values()]}

    @routes.post("")
    async def register(request: Request) -> dict[str, Any]:
        body = await read_body(request.receive, request.headers, 64 * 1024)
        wanted = parse(_json(body), Backend, source="backend")
        kind_of(wanted.kind)
        held = registry.backends.get(wanted.technique)
        if held and held.run_id != wanted.run_id:
            await _refuse_if_alive(held, pool)
        stored = registry.put(wanted).shown()
        log.write("registered", **stored)
        return stored

    @routes.delete("/{technique}")
    async def deregister(technique: str, run_id: str | None = None) -> dict[str, Any]:
        result = registry.remove(technique, run_id)
        log.write("deregistered", technique=technique, run_id=run_id, result=result)
        return {"technique": technique, "run_id": run_id, "result": result}

    return routes


async def _refuse_if_alive(held: Backend, pool: Pool) -> None:
    """Raises Refused (409) if a connection to the holder's upstream can be made."""
    try:
        connection = await pool.connect(address(held.url))
    except UpstreamFailed:
        return
    connection.drop()
    raise Refused(
        409,
        "technique_held",
        f"technique '{held.technique}' is held by run {held.run_id}, whose server at {held.url} is alive; "
        f"wait for its release, or DELETE /admin/backends/{held.technique}?run_id={held.run_id}",
    )


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
        return error_response(Refused(400, "unknown_technique", str(error)))

    @app.exception_handler(OSError)
    async def disk(_request: Request, error: OSError) -> JSONResponse:
        return error_response(Refused(507, "state_not_written", f"the gateway could not write its state: {error}"))

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> JSONResponse:
        words = f"{request.method} {request.url.path}: {error.detail}"
        return error_response(Refused(error.status_code, "no_such_route", words))
