"""`python -m tasks.gateway --port N --state DIR [--workers N]`: one gateway over one state folder, until SIGTERM.

    <state>/token           the admin token, made if missing (0600)
    <state>/address.json    {url, pid}, written once the port is bound and removed at the end
    <state>/backends.json   who is registered (0600)
    <state>/requests.log    one JSON line per request
    <state>/metrics         the counts of several workers
    <state>/lock            held while a gateway runs: two of them would forget each other's arms

One worker is this process itself; several are its children (tasks/gateway/workers.py). SIGTERM and Ctrl-C stop it
gracefully: no new connections, answers in flight get GRACE_S, then they are broken off.
"""

import argparse
import contextlib
import fcntl
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import uvicorn

from tasks import artifact
from tasks.document import InvalidDocument
from tasks.gateway.app import Limits, Shared, admin_token, create
from tasks.gateway.registry import Registry
from tasks.gateway.workers import BACKLOG, TooManyDeaths, Workers, listeners

GRACE_S = 5
KEEP_ALIVE_S = 75  # agents think and use tools between calls: a connection closed under them would count as a failure


class CannotStart(Exception):
    """In words, for the one who started it."""


def main(argv: list[str] | None = None) -> int:
    """Run until stopped. Returns the exit code: 0 after a stop, 1 after too many deaths, 2 if it could not start."""
    options = _parser().parse_args(argv)
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="gateway: %(levelname)s: %(message)s")
    try:
        serve(options.state.resolve(), options.host, options.port, options.workers)
    except TooManyDeaths as error:
        print(f"gateway: {error}: it ends", file=sys.stderr)
        return 1
    except (CannotStart, artifact.BrokenArtifact, InvalidDocument, OSError) as error:
        print(f"gateway: {error}", file=sys.stderr)
        return 2
    return 0


def serve(state: Path, host: str, port: int, workers: int = 1) -> None:
    """Bind, say where, serve. Raises CannotStart, TooManyDeaths."""
    state.mkdir(parents=True, exist_ok=True)
    _raise_file_limit()
    with _locked(state), _bound(host, port) as listener:
        Registry(state / "backends.json")  # what is broken is told here, once
        admin_token(state)
        work = _alone(state, listener) if workers == 1 else _together(state, listener, workers)
        url = url_of(listener)
        artifact.write(state / "address.json", {"url": url, "pid": os.getpid()})
        print(f"gateway: {url} (state: {state})", file=sys.stderr, flush=True)
        try:
            work()
        finally:
            (state / "address.json").unlink(missing_ok=True)


def _alone(state: Path, listener: socket.socket) -> Callable[[], None]:
    listener.listen(BACKLOG)
    running = server(state)
    # uvicorn catches these while it serves and raises them again when it is done; then they only say "done".
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: setattr(running, "should_exit", True))
    return lambda: running.run(sockets=[listener])


def _together(state: Path, listener: socket.socket, workers: int) -> Callable[[], None]:
    return Workers(state, listeners(listener, workers), lambda shared: server(state, shared=shared)).serve


def server(state: Path, limits: Limits | None = None, shared: Shared | None = None) -> uvicorn.Server:
    """uvicorn as the gateway needs it, over one state folder. Raises BrokenArtifact, InvalidDocument."""
    logging.getLogger("uvicorn.error").addFilter(_is_news)
    config = uvicorn.Config(
        create(state, limits=limits or Limits(), shared=shared),
        interface="asgi3",
        http="httptools",
        loop="uvloop",
        proxy_headers=False,
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=GRACE_S,
    )
    return uvicorn.Server(config)


def _is_news(record: logging.LogRecord) -> bool:
    """An answer left without its end is our way to break it off (tasks/gateway/relay.py), not a fault."""
    return "without completing response" not in record.getMessage()


@contextlib.contextmanager
def _locked(state: Path) -> Iterator[None]:
    with (state / "lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CannotStart(
                f"{state}: another gateway runs on this folder; its address is in address.json"
            ) from error
        yield


def _raise_file_limit() -> None:
    """Each request in flight holds two sockets; the usual soft limit of 1024 would end at 500."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _bound(host: str, port: int) -> socket.socket:
    """A socket that has the address for itself, and does not listen yet."""
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
    except (OSError, OverflowError) as error:
        sock.close()
        why = str(getattr(error, "strerror", None) or error)
        raise CannotStart(f"cannot listen on {host}:{port}: {why}; --port 0 takes a free one") from error
    return sock


def url_of(listener: socket.socket) -> str:
    """Where a listening socket is reached from this machine."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{host}:{port}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tasks.gateway", description="The armwise gateway.")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one; see address.json (default)")
    parser.add_argument("--host", default="127.0.0.1", help="default 127.0.0.1: completions need no token")
    parser.add_argument("--workers", type=_at_least_one, default=1, help="processes that serve (default 1)")
    parser.add_argument("--state", type=Path, required=True, help="folder for token, registrations and log")
    return parser


def _at_least_one(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return number


if __name__ == "__main__":
    sys.exit(main())
