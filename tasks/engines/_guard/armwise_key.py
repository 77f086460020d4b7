"""Asks for the deployment's key below /v1: ASGI middleware that vLLM loads (`--middleware armwise_key.Key`).

In the place of VLLM_API_KEY, for that variable is in the key of vLLM's compile cache (vllm/envs.py, compile_factors:
all of its own variables but a list), and in clear text in a file of that cache (cache_key_factors.json). A key made
anew for each deployment would compile anew at each start. In the place of --api-key too, which vLLM writes to its log.

The engine's Python runs this, any of 3.10 up, with nothing of ours beside it: the standard library alone. It costs a
request what vLLM's own check costs: one look at the path and one comparison.
"""

import hmac
import os
from collections.abc import Awaitable, Callable
from typing import Any

KEY = "ENGINE_KEY"
GUARDED = ("/v1", "/v2", "/inference")
Scope = dict[str, Any]
Send = Callable[[dict[str, Any]], Awaitable[None]]
App = Callable[[Scope, Any, Send], Awaitable[None]]


class Key:
    """401 to who does not bring `Authorization: Bearer KEY`. Without a key no server starts: KeyError."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.wanted = b"bearer " + os.environ[KEY].encode()

    async def __call__(self, scope: Scope, receive: Any, send: Send) -> None:
        if self._may(scope):
            return await self.app(scope, receive, send)
        if scope["type"] == "websocket":
            return await send({"type": "websocket.close", "code": 1008})
        body = b'{"error":"Unauthorized"}'
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 401, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def _may(self, scope: Scope) -> bool:
        if scope["type"] == "lifespan" or not _path(scope).startswith(GUARDED) or scope.get("method") == "OPTIONS":
            return True
        brought = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        return hmac.compare_digest(brought[:7].lower() + brought[7:], self.wanted)


def _path(scope: Scope) -> str:
    return str(scope["path"]).removeprefix(scope.get("root_path", ""))
