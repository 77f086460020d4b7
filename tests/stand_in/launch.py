"""Start the stand-in engine for a test, and kill it at the test's end."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

ENGINE = Path(__file__).resolve().with_name("engine.py")


@dataclass(frozen=True)
class Running:
    process: subprocess.Popen[bytes]
    client: httpx.Client
    url: str
    log: Path


@contextmanager
def running(*flags: str, log: Path, fault: str = "", **env: str) -> Iterator[Running]:
    """An engine that answers /health, or that has exited. Its output goes to `log`; `env` is added to ours."""
    port = _free_port()
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, str(ENGINE), "--host", "127.0.0.1", "--port", str(port), *flags]
    env = {"STAND_IN_FAULT": fault, "VLLM_SERVER_DEV_MODE": "1", **env}
    with (
        log.open("wb") as out,
        httpx.Client(base_url=url, timeout=10) as client,
        subprocess.Popen(command, env=os.environ | env, stdout=out, stderr=out) as process,
    ):
        try:
            _wait(process, client)
            yield Running(process, client, url, log)
        finally:
            process.kill()


def _wait(process: subprocess.Popen[bytes], client: httpx.Client) -> None:
    deadline = time.monotonic() + 10
    while process.poll() is None and time.monotonic() < deadline:
        try:
            client.get("/health")
            return
        except httpx.ConnectError:
            time.sleep(0.02)


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
