"""The proxies of bench/gateway, each one process (of workers: one) on a core of its own, before the same upstreams.

    ours      python -m tasks.gateway, an arm per upstream, one JSON line per request
    nginx     1 worker, kept upstream connections, no buffering, an access log; the Debian package, unpacked into
              ~/.cache/armwise/nginx where none is installed
    litellm   the LiteLLM proxy, 1 worker, a model per upstream, no database, a master key (it insists); bench/peers.py

`serving(name, upstreams, folder, core)` yields a Proxy while it runs. An upstream is a name and a port.
"""

import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import yaml

from bench import peers
from tasks.gateway import client

ROOT = Path(__file__).resolve().parents[1]
NGINX = Path.home() / ".cache" / "armwise" / "nginx"
PATH, MODEL = "/v1/chat/completions", "paced"
KEY = f"sk-{secrets.token_hex(16)}"  # of this bench, for LiteLLM
Upstreams = Mapping[str, int]  # name -> port


@dataclass(frozen=True)
class Proxy:
    """`pid` of its first process; 0 is none: the upstreams themselves."""

    name: str
    port: int | None = None
    pid: int = 0

    def asked(self, upstream: str, port: int) -> dict[str, object]:
        """Where a call for an upstream goes: port, path, headers, model."""
        found: dict[str, object] = {"port": self.port or port, "path": PATH, "headers": {}, "model": MODEL}
        if self.name == "ours":
            return found | {"headers": {"x-technique": upstream}}
        if self.name == "nginx":
            return found | {"path": f"/{upstream}{PATH}"}
        if self.name == "litellm":
            return found | {"model": upstream, "headers": {"authorization": f"Bearer {KEY}"}}
        return found

    def cpu_s(self) -> float:
        """User and system time of all its processes so far."""
        if not self.pid:
            return 0.0
        first = psutil.Process(self.pid)
        times = [one.cpu_times() for one in (first, *first.children(recursive=True))]
        return float(sum(one.user + one.system for one in times))


@contextmanager
def serving(name: str, upstreams: Upstreams, folder: Path, core: str) -> Iterator[Proxy]:
    """A proxy that answers. Raises CannotBuild, or RuntimeError with what the proxy wrote."""
    if name == "direct":
        yield Proxy(name)
        return
    folder.mkdir()
    port = _free_port()
    words = {"ours": _ours, "nginx": _nginx, "litellm": _litellm}[name](upstreams, folder, port)
    with (folder / "output.txt").open("wb") as out:
        process = subprocess.Popen(
            ["taskset", "-c", core, *words], cwd=ROOT, stdout=out, stderr=out, env=os.environ | ENVIRON
        )
        try:
            if name == "ours":
                _register(folder, upstreams)
            else:
                _wait(port, "/health/liveliness" if name == "litellm" else "/", process, folder)
            yield Proxy(name, port, process.pid)
        finally:
            process.terminate()
            process.wait(timeout=30)


ENVIRON = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR", "NO_PROXY": "*"}


def _ours(_upstreams: Upstreams, folder: Path, port: int) -> list[str]:
    return [sys.executable, "-m", "tasks.gateway", "--port", str(port), "--state", str(folder), "--workers", "1"]


def _register(folder: Path, upstreams: Upstreams) -> None:
    gateway = client.wait(folder)
    for name, port in upstreams.items():
        client.register(gateway, name, f"http://127.0.0.1:{port}", MODEL, None, f"bench-{name}")


def _nginx(upstreams: Upstreams, folder: Path, port: int) -> list[str]:
    places = "\n".join(
        f"upstream {name} {{ server 127.0.0.1:{at}; keepalive 256; keepalive_requests 100000000; }}"
        for name, at in upstreams.items()
    )
    routes = "\n".join(f"location /{name}/ {{ proxy_pass http://{name}/; }}" for name in upstreams)
    temporary = "\n".join(
        f"{kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "nginx.conf").write_text(
        f"""worker_processes 1; daemon off; pid {folder}/pid; error_log {folder}/error.log;
events {{ worker_connections 4096; }}
http {{
access_log {folder}/access.log; keepalive_requests 100000000; client_body_buffer_size 1m; tcp_nodelay on;
proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off;
{temporary}
{places}
server {{ listen 127.0.0.1:{port} backlog=4096; {routes} }}
}}
"""
    )
    return [_nginx_program(), "-p", str(folder), "-e", f"{folder}/error.log", "-c", f"{folder}/nginx.conf"]


def _nginx_program() -> str:
    """An installed nginx, else Debian's package, unpacked and not installed. Raises CannotBuild."""
    found = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if found:
        return found
    program = NGINX / "usr" / "sbin" / "nginx"
    if not program.exists():
        NGINX.mkdir(parents=True, exist_ok=True)
        try:
            subprocess.run(["apt-get", "download", "-q", "nginx"], cwd=NGINX, check=True, capture_output=True)
            package = next(NGINX.glob("nginx_*.deb"))
            subprocess.run(["dpkg-deb", "-x", package, NGINX], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError, StopIteration) as error:
            raise peers.CannotBuild(f"no nginx on the PATH, and Debian's could not be unpacked: {error}") from error
    return str(program)


def nginx_version() -> str:
    """As it says itself: "nginx version: nginx/1.22.1"."""
    told = subprocess.run([_nginx_program(), "-v"], capture_output=True, text=True, check=True).stderr
    return told.strip().rpartition("/")[2]


def _litellm(upstreams: Upstreams, folder: Path, port: int) -> list[str]:
    models = [
        {
            "model_name": name,
            "litellm_params": {"model": f"openai/{MODEL}", "api_base": f"http://127.0.0.1:{at}/v1", "api_key": "none"},
        }
        for name, at in upstreams.items()
    ]
    config = {"model_list": models, "litellm_settings": {"num_retries": 0}, "general_settings": {"master_key": KEY}}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    words = ["--config", str(folder / "config.yaml"), "--host", "127.0.0.1", "--port", str(port)]
    return [*peers.program("litellm"), *words, "--num_workers", "1", "--telemetry", "False"]


def _wait(port: int, path: str, process: "subprocess.Popen[bytes]", folder: Path) -> None:
    until = time.monotonic() + 120
    while time.monotonic() < until and process.poll() is None:
        try:
            httpx.get(f"http://127.0.0.1:{port}{path}", trust_env=False, timeout=5)
        except httpx.TransportError:
            time.sleep(0.2)
            continue
        return
    raise RuntimeError(f"no answer on port {port}: {(folder / 'output.txt').read_text(errors='replace')[-500:]}")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])
