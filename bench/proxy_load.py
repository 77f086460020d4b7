"""N connections that call in a closed loop: `python -m bench.proxy_load '{"port": ..., "body": ..., ...}'`.

A client of one purpose: what stands between it and the server must not be measured with the client's own weight, so it
builds each request once, keeps its connections, and looks into an answer only when it is over. Its connections start
within STAGGER_S, so that they do not call in step, and a call's times count if it was sent after that.

    asked     port, path, headers, body (a JSON object), connections, seconds
    printed   {calls, failed, words, first_ms: [...], whole_ms: [...]}, JSON

`first_ms`: from the request's write to the first event of the answer (streamed); `whole_ms`: to its end. `words`: of
all answers, counted in their text. A call that is not answered 200, or breaks, is `failed`; its connection is opened
anew.
"""

import asyncio
import json
import random
import re
import sys
from functools import partial
from time import monotonic_ns
from typing import Any

import uvloop

STAGGER_S = 1.0
WORD, EVENT = b" word", b"data: "
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
Asked = dict[str, Any]


class Caller(asyncio.Protocol):
    """One connection. Calls anew until `until_ns`; a call's times count if it was sent after `counted_from_ns`."""

    def __init__(self, request: bytes, found: dict[str, Any], counted_from_ns: int, until_ns: int) -> None:
        self.request, self.found, self.counted_from_ns, self.until_ns = request, found, counted_from_ns, until_ns
        self.came, self.sent_ns, self.first_ns = bytearray(), 0, 0
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self._call()

    def _call(self) -> None:
        self.came.clear()
        self.first_ns, self.sent_ns = 0, monotonic_ns()
        self.transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        self.came += data
        if not self.first_ns and EVENT in self.came:
            self.first_ns = monotonic_ns()
        if is_whole(self.came):
            self._ended()

    def _ended(self) -> None:
        now_ns, found = monotonic_ns(), self.found
        if not self.came.startswith(b"HTTP/1.1 200"):
            self.transport.close()
            return
        found["calls"] += 1
        found["words"] += self.came.count(WORD)
        if self.sent_ns >= self.counted_from_ns:
            found["whole_ms"].append((now_ns - self.sent_ns) / 1e6)
            if self.first_ns:
                found["first_ms"].append((self.first_ns - self.sent_ns) / 1e6)
        if now_ns >= self.until_ns:
            self.sent_ns = 0
            self.transport.close()
        else:
            self._call()

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 (asyncio's signature)
        if self.sent_ns:
            self.found["failed"] += 1
        if not self.over.done():
            self.over.set_result(None)


def is_whole(answer: bytearray) -> bool:
    """Whether head and body are there: by the chunked encoding's last chunk, or by content-length."""
    if answer.endswith(b"\r\n0\r\n\r\n"):
        return True
    end = answer.find(b"\r\n\r\n")
    length = LENGTH.search(answer, 0, end + 2) if end >= 0 else None
    return length is not None and len(answer) >= end + 4 + int(length[1])


def request(asked: Asked) -> bytes:
    body = json.dumps(asked["body"]).encode()
    head = {"host": f"127.0.0.1:{asked['port']}", "content-type": "application/json", "content-length": str(len(body))}
    lines = "".join(f"{name}: {value}\r\n" for name, value in (head | asked["headers"]).items())
    return f"POST {asked['path']} HTTP/1.1\r\n{lines}\r\n".encode() + body


async def load(asked: Asked) -> dict[str, Any]:
    """What was found. Raises OSError if nothing listens."""
    found: dict[str, Any] = {"calls": 0, "failed": 0, "words": 0, "first_ms": [], "whole_ms": []}
    counted_from_ns = monotonic_ns() + int(STAGGER_S * 1e9)
    until_ns, rng = counted_from_ns + int(asked["seconds"] * 1e9), random.Random(1)

    async def keep_calling(delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        while monotonic_ns() < until_ns:
            new = partial(Caller, request(asked), found, counted_from_ns, until_ns)
            _, caller = await asyncio.get_running_loop().create_connection(new, "127.0.0.1", asked["port"])
            await caller.over

    delays = [rng.uniform(0, STAGGER_S) for _ in range(asked["connections"])]
    await asyncio.gather(*map(keep_calling, delays))
    return found


if __name__ == "__main__":
    print(json.dumps(uvloop.run(load(json.loads(sys.argv[1])))))
