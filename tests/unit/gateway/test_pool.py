"""Connections to backends: over TLS, with names of several addresses, and free ones that do not pile up."""

import asyncio
import shutil
import socket
import ssl
import subprocess
import time
from pathlib import Path

import pytest
from scripted_upstream import (
    EVENTS,
    OPENED,
    STREAM_HEAD,
    Call,
    Upstream,
    answers,
    chunk,
    dead_url,
    gateway,
    lines,
    plain,
    post,
    streams,
    upstream,
)

from tasks.gateway import pool as pools
from tasks.gateway.client import register
from tasks.gateway.pool import Pool
from tasks.gateway.upstream import KEEP_S, UpstreamFailed, address

pytestmark = pytest.mark.services  # an upstream


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """Key and self-signed certificate for localhost, in one file."""
    if shutil.which("openssl") is None:
        pytest.skip("the openssl command is missing: no certificate can be made")
    path = tmp_path / "certificate.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    files = ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(tmp_path / "key.pem"), "-out", str(path)]
    subprocess.run([*command.split(), *files], check=True, capture_output=True, timeout=30)
    return path


def behind_tls(server: Upstream, certificate: Path) -> str:
    """Wrap what the server will accept; returns its https URL."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate.with_name("key.pem"))
    server.listener = context.wrap_socket(server.listener, server_side=True)
    server.start()
    return server.url.replace("http://127.0.0.1", "https://localhost")


@pytest.fixture
def trusted(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    pools._tls.cache_clear()


@pytest.mark.usefixtures("trusted")
def test_a_stream_over_tls_passes_and_its_connection_is_used_again(tmp_path: Path, certificate: Path) -> None:
    with upstream(streams(EVENTS, size=7), accept=False) as server, gateway(tmp_path / "state") as to:
        register(to, "a", behind_tls(server, certificate), "m", None, "run-1")
        assert [post(to).read() for _ in range(3)] == [EVENTS] * 3
        assert server.connections == 1
    pools._tls.cache_clear()


@pytest.mark.usefixtures("trusted")
def test_a_client_that_leaves_cuts_a_tls_upstream_too(tmp_path: Path, certificate: Path) -> None:
    def script(call: Call) -> None:
        call.send(STREAM_HEAD + chunk(b"data: 1\n\n"))
        call.wait_closed()

    with upstream(script, accept=False) as server, gateway(tmp_path / "state") as to:
        register(to, "a", behind_tls(server, certificate), "m", None, "run-1")
        assert post(to).read1() == b"data: 1\n\n"
        OPENED.pop().close()
        assert server.calls[0].closed.wait(5)
        assert lines(tmp_path / "state")[0]["ended"] == "client_left"
    pools._tls.cache_clear()


def test_a_certificate_that_nobody_vouches_for_is_refused_in_words(tmp_path: Path, certificate: Path) -> None:
    pools._tls.cache_clear()
    with upstream(answers(plain(b"{}")), accept=False) as server, gateway(tmp_path / "state") as to:
        register(to, "a", behind_tls(server, certificate), "m", "key-of-the-arm", "run-1")
        answer = post(to)
        assert answer.status == 502
        assert b"certificate verify failed" in answer.read()
        assert server.calls == []


def test_a_name_with_several_addresses_refuses_in_the_same_words(tmp_path: Path) -> None:
    with gateway(tmp_path) as to:
        register(to, "a", dead_url().replace("127.0.0.1", "localhost"), "m", None, "run-1")
        assert b'"upstream_refused"' in post(to).read()


def test_free_connections_close_themselves_and_leave_the_shelf() -> None:
    async def scenario(server: Upstream) -> None:
        pool = Pool(connect_timeout_s=1, idle_timeout_s=5)
        connections = [await pool.post(address(server.url), (), b"{}") for _ in range(3)]
        for connection in connections:
            while await connection.read():
                pass
            connection.end()
        (shelf,) = pool.free.values()
        assert len(shelf) == 3
        until = time.monotonic() + KEEP_S + 5
        while shelf and time.monotonic() < until:
            await asyncio.sleep(0.05)
        assert shelf == []

    with upstream(answers(plain(b"{}"))) as server:
        asyncio.run(scenario(server))


def test_a_free_connection_that_the_server_closed_is_not_used() -> None:
    async def scenario(server: Upstream) -> None:
        pool = Pool(connect_timeout_s=1, idle_timeout_s=5)
        for _ in range(2):
            connection = await pool.post(address(server.url), (), b"{}")
            assert await connection.read() == b"{}"
            assert await connection.read() == b""
            connection.end()
            await asyncio.sleep(0.3)
        pool.close()
        await asyncio.sleep(0)

    def script(call: Call) -> None:
        call.send(plain(b"{}"))
        time.sleep(0.1)
        call.sock.close()

    with upstream(script) as server:
        asyncio.run(scenario(server))
        assert server.connections == 2


def test_a_connection_that_cannot_be_made_in_time_is_a_504() -> None:
    """The listener accepts nothing and its backlog is full: a connection is neither made nor refused."""

    async def scenario(url: str) -> None:
        pool = Pool(connect_timeout_s=0.2, idle_timeout_s=5)
        made = []
        with pytest.raises(UpstreamFailed, match=r"no connection to .* within 0\.2 s") as failed:
            for _ in range(10):
                made.append(await pool.connect(address(url)))
        assert (failed.value.kind, failed.value.status) == ("connect_timeout", 504)
        for connection in made:
            connection.drop()
        await asyncio.sleep(0)

    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        began = time.monotonic()
        asyncio.run(scenario(f"http://127.0.0.1:{full.getsockname()[1]}"))
        assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    ("url", "host", "port", "path", "authority"),
    [
        ("http://h/v1/x", "h", 80, "/v1/x", "h"),
        ("https://h", "h", 443, "/", "h"),
        ("http://[::1]:81/a", "::1", 81, "/a", "[::1]:81"),
    ],
)
def test_an_address_is_taken_apart(url: str, host: str, port: int, path: str, authority: str) -> None:
    found = address(url)
    assert (found.host, found.port, found.path, found.authority) == (host, port, path, authority)
