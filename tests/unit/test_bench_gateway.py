"""bench/gateway: the client counts what the server sent, whole or in pieces, and the figures are what they say."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench import gateway, proxy_load
from bench.proxies import Proxy

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def port() -> Iterator[int]:
    """bench/paced: 5 chunks, 10 ms apart, the first after 20 ms."""
    command = [sys.executable, "-m", "bench.paced", "--ttft-ms", "20", "--gap-ms", "10", "--chunks", "5"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield int(server.stdout.readline())
        finally:
            server.terminate()


def called(port: int, *, is_streamed: bool) -> dict[str, object]:
    asked = Proxy("direct").asked("any", port)
    body = {"model": "m"} | ({"stream": True} if is_streamed else {})
    return asyncio.run(proxy_load.load(asked | {"body": body, "connections": 3, "seconds": 0.3}))


@pytest.mark.parametrize("is_streamed", [True, False])
def test_every_word_is_counted_and_no_time_is_less_than_what_the_server_took(port: int, is_streamed: bool) -> None:
    told = called(port, is_streamed=is_streamed)
    assert told["failed"] == 0
    assert told["calls"] > 6
    assert told["words"] == 5 * told["calls"]
    assert len(told["first_ms"]) == (len(told["whole_ms"]) if is_streamed else 0)
    assert min(told["whole_ms"]) >= (60 if is_streamed else 20)
    assert min(told["first_ms"], default=20) >= 20


def test_an_answer_that_is_no_200_is_a_failure(port: int) -> None:
    asked = Proxy("nginx", port).asked("any", port)  # a path that the server answers with {}
    refused = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n"

    async def played() -> dict[str, object]:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while await reader.readline():
                writer.write(refused)
            writer.close()

        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            at = server.sockets[0].getsockname()[1]
            return await proxy_load.load(asked | {"port": at, "body": {}, "connections": 1, "seconds": 0.01})

    told = asyncio.run(played())
    assert told["calls"] == 0
    assert told["failed"] > 0


@pytest.mark.parametrize(
    ("answer", "is_whole"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n word", True),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n wor", False),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\n word\r\n0\r\n\r\n", True),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\n word\r\n", False),
        (b"HTTP/1.1 200 OK\r\ncontent-le", False),
    ],
)
def test_where_an_answer_ends(answer: bytes, is_whole: bool) -> None:
    assert proxy_load.is_whole(bytearray(answer)) is is_whole


def test_where_each_proxy_is_called() -> None:
    assert Proxy("direct").asked("plain", 1)["port"] == 1
    assert Proxy("ours", 2).asked("plain", 1)["headers"] == {"x-technique": "plain"}
    assert Proxy("nginx", 2).asked("plain", 1)["path"] == "/plain/v1/chat/completions"
    assert Proxy("litellm", 2).asked("plain", 1)["model"] == "plain"


def test_figures_and_ratios() -> None:
    told = {"calls": 3, "failed": 1, "words": 60, "first_ms": [3.0, 1.0, 2.0], "whole_ms": [9.0, 7.0, 8.0]}
    assert gateway.figures(told, 0.5, "streamed") == {"calls": 3, "failed": 1, "p50": 2.0, "p99": 3.0}
    assert gateway.figures(told, 0.5, "plain")["p50"] == 8.0
    assert gateway.figures(told, 0.5, "chunks")["per_core_s"] == 120
    assert gateway.figures(told, 0.5, "requests")["per_core_s"] == 6
    assert "per_core_s" not in gateway.figures(told, 0.0, "chunks"), "straight to the upstream nothing is proxied"
    found: gateway.Found = {
        ("streamed 16", "direct"): [{"p50": 50.0, "p99": 51.0, "failed": 0}] * 2,
        ("streamed 16", "ours"): [{"p50": 50.5, "p99": 53.0, "failed": 0}, {"p50": 50.7, "p99": 52.0, "failed": 2}],
        ("chunks 64", "ours"): [{"per_core_s": 300, "failed": 0}],
        ("chunks 64", "nginx"): [{"per_core_s": 400, "failed": 0}],
    }
    summed = gateway.summary(found)
    assert summed["added_ms_p50_16"] == pytest.approx(0.6)
    assert summed["ratio_to_nginx_chunks"] == 0.75
    assert summed["ratio_to_litellm_chunks"] is None
    assert summed["failed"] == 2
    assert any(line.startswith("streamed 16  ours") and "0.6 [0.5, 0.7]" in line for line in gateway.table(found))
