"""The way out: a streamed answer's bytes, written to the client's socket where they came from the backend's.

Between the two sockets stand the backend's HTTP parser (C), one join where a read brought several chunks, and the frame
of a chunk. No task is woken, nothing of the answer is parsed. At 128 streams of 50 chunks/s a chunk costs 26 µs, of
which most is the kernel's; in the same run nginx took 19 µs, and a bare copy with the same parser 22 µs. Where these
come from, and what was not measured: docs/perf_log.md.

ASGI has no name for the transport behind `send`, so it is taken from the object whose method `send` is. Head and end of
the answer go through `send`, which keeps uvicorn's own account of the connection right.
"""

import time
from types import ModuleType
from typing import Any

from starlette.types import Send

from tasks.gateway.backends import Ending

TAIL_BYTES = 16 * 1024


class Outlet:
    """One answer to one client. `write` is for answers in chunks, once their head was sent."""

    def __init__(self, send: Send, kind: ModuleType) -> None:
        cycle: Any = getattr(send, "__self__", None)
        if not hasattr(cycle, "transport") or not hasattr(cycle, "flow"):
            raise RuntimeError("uvicorn's send has no transport and flow: tasks/gateway/outlet.py must be adapted")
        self.transport, self.flow = cycle.transport, cycle.flow
        self.kind = kind
        self.is_stream = False
        self.first_ns: int | None = None  # when the first bytes of the body went out
        self.size = 0  # of the body so far
        self.parts: list[bytes] = []  # its last bytes, joined rarely, so that a chunk costs next to nothing
        self.join_at = 4 * TAIL_BYTES

    def note(self, body: bytes) -> None:
        """Account for bytes of the answer's body that are about to be sent."""
        if self.first_ns is None:
            self.first_ns = time.perf_counter_ns()
        self.parts.append(body)
        self.size += len(body)
        if self.size > self.join_at:
            self.parts = [self.tail()]
            self.join_at = self.size + 4 * TAIL_BYTES

    def write(self, body: bytes) -> bool:
        """Send a chunk now. True if the client reads too slowly: then wait for `drained` before the next."""
        self.transport.write(b"%x\r\n%b\r\n" % (len(body), body))
        self.note(body)
        return bool(self.flow.write_paused)

    async def drained(self) -> None:
        """Returns when the client has read enough, or has left."""
        await self.flow.drain()

    def tail(self) -> bytes:
        """The last TAIL_BYTES of what passed."""
        return b"".join(self.parts)[-TAIL_BYTES:]

    def ending(self) -> Ending:
        """What the tail says."""
        ending: Ending = self.kind.ending(self.tail())
        return ending

    def is_done(self) -> bool:
        """Whether the stream has said that it is over."""
        return self.is_stream and self.ending().is_done
