"""A response's way to its socket: each write is a system call of its own, at the time it is made.

The server's event loop would collect what is written and send it when the turn is over: with 300 streams that is
milliseconds after the time that was noted. So events go straight to the descriptor, and only what it does not take
(a slow reader) goes through the transport's buffer. uvicorn does not offer the transport to an application; it is taken
from the object whose method `send` is, and if a later uvicorn has none there, the sim says so and serves nothing.
"""

import os
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]
STREAM_HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8")]


class Wire:
    """One streamed response."""

    def __init__(self, send: Send) -> None:
        self.send = send
        transport = getattr(getattr(send, "__self__", None), "transport", None)
        if transport is None:
            raise RuntimeError("uvicorn's send has no transport any more: tasks/engines/sim/wire.py must be adapted")
        self.transport = transport
        self.fd: int = transport.get_extra_info("socket").fileno()
        self.is_gone = False

    async def start(self) -> None:
        """Send the response's head."""
        await self.send({"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS})

    def write(self, data: bytes) -> int:
        """Send now. Returns the monotonic time in ns just before the bytes went out; nothing goes to who has left."""
        at_ns = time.monotonic_ns()
        if self.is_gone or self.transport.is_closing():
            self.is_gone = True
        elif self.transport.get_write_buffer_size():
            self.transport.write(data)
        else:
            self._write(data)
        return at_ns

    async def end(self) -> None:
        """Send the valid end of a chunked body."""
        if not self.is_gone:
            await self.send({"type": "http.response.body", "body": b"", "more_body": False})

    def cut(self) -> None:
        """Close the connection, whatever was promised."""
        self.is_gone = True
        self.transport.close()

    def _write(self, data: bytes) -> None:
        try:
            sent = os.write(self.fd, data)
        except BlockingIOError:
            sent = 0
        except OSError:
            self.is_gone = True
            return
        if sent < len(data):
            self.transport.write(data[sent:])
