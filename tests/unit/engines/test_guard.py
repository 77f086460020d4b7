"""The key check that a server of vLLM's loads: who is let through, and that it needs nothing but itself."""

import asyncio
import json
import subprocess
import sys
from typing import Any

import pytest

from tasks.engines import vllm
from tasks.engines._guard.armwise_key import Key

BEARER = [(b"host", b"h"), (b"authorization", b"Bearer s3cret")]


def sent(path: str, headers: list[tuple[bytes, bytes]], **more: Any) -> list[dict[str, Any]]:
    """What a client is sent; the application behind the check sends `reached`."""
    found: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        found.append(message)

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "reached"})

    scope = {"type": "http", "method": "POST", "path": path, "headers": headers, **more}
    asyncio.run(Key(app)(scope, None, send))
    return found


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(vllm.KEY_ENV, "s3cret")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/models", "/inference/v1/generate", "/v2/rerank"])
@pytest.mark.parametrize("brought", [b"", b"Bearer ", b"Bearer s3cre", b"Bearer s3crets", b"s3cret", b"Basic s3cret"])
def test_without_the_key_nothing_below_v1_is_reached(path: str, brought: bytes) -> None:
    start, body = sent(path, [(b"authorization", brought)] if brought else [])
    assert start["status"] == 401
    assert json.loads(body["body"]) == {"error": "Unauthorized"}
    assert dict(start["headers"])[b"content-length"] == str(len(body["body"])).encode()


@pytest.mark.parametrize(
    ("path", "headers", "more"),
    [
        ("/v1/models", BEARER, {}),
        ("/v1/models", [(b"authorization", b"bearer s3cret")], {}),
        ("/health", [], {}),
        ("/metrics", [], {}),
        ("/v1/models", [], {"method": "OPTIONS"}),
        ("/v1/realtime", BEARER, {"type": "websocket"}),
        ("/v1", [], {"type": "lifespan"}),
    ],
)
def test_let_through(path: str, headers: list[tuple[bytes, bytes]], more: dict[str, Any]) -> None:
    assert sent(path, headers, **more) == [{"type": "reached"}]


def test_a_prefix_of_the_server_hides_nothing() -> None:
    assert sent("/behind/v1/models", [], root_path="/behind")[0]["status"] == 401


def test_a_websocket_without_the_key_is_closed() -> None:
    assert sent("/v1/realtime", [], type="websocket") == [{"type": "websocket.close", "code": 1008}]


def test_no_key_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(vllm.KEY_ENV)
    with pytest.raises(KeyError, match=vllm.KEY_ENV):
        sent("/health", [])


def test_it_is_found_by_the_name_on_the_command_line_and_needs_no_other_package() -> None:
    """As the engine's Python finds it, which has none of our packages: without site-packages, from the folder alone."""
    code = "import sys; sys.path.insert(0, sys.argv[1]); import armwise_key; print(armwise_key.Key.__name__)"
    words = [sys.executable, "-I", "-S", "-c", code, str(vllm.GUARD)]
    assert subprocess.run(words, capture_output=True, text=True, check=True, timeout=30).stdout == "Key\n"
