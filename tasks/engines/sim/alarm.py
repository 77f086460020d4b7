"""Wake at a time on the monotonic clock, to within a tenth of a millisecond.

The event loop's own timers count whole milliseconds, which is a fifth of a decode step. Linux's timerfd takes an
absolute time in nanoseconds and is a descriptor like any other. Elsewhere the loop's timers have to do.
"""

import asyncio
import ctypes
import os
import struct
import sys
import time

CLOCK_MONOTONIC, ABSOLUTE = 1, 1
NONBLOCK_CLOEXEC = os.O_NONBLOCK | os.O_CLOEXEC if hasattr(os, "O_CLOEXEC") else 0


class Alarm:
    """One waiter at a time. Close it when its loop ends."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.woken: asyncio.Future[None] | None = None
        self.fd = _timerfd()
        if self.fd is not None:
            self.loop.add_reader(self.fd, self._ring)

    async def until(self, at_ns: int) -> None:
        """Return at or shortly after this time; lets the loop run at least once even if it is past."""
        left_ns = at_ns - time.monotonic_ns()
        if left_ns <= 20_000:
            await asyncio.sleep(0)
        elif self.fd is None:
            await asyncio.sleep(left_ns / 1e9)
        else:
            self.woken = self.loop.create_future()
            _LIBC.timerfd_settime(self.fd, ABSOLUTE, struct.pack("qqqq", 0, 0, *divmod(at_ns, 10**9)), None)
            await self.woken

    def close(self) -> None:
        if self.fd is not None:
            self.loop.remove_reader(self.fd)
            os.close(self.fd)
            self.fd = None

    def _ring(self) -> None:
        if self.fd is not None:
            try:
                os.read(self.fd, 8)
            except BlockingIOError:
                return
        if self.woken is not None and not self.woken.done():
            self.woken.set_result(None)


_LIBC = ctypes.CDLL(None, use_errno=True)


def _timerfd() -> int | None:
    if not sys.platform.startswith("linux"):
        return None
    fd = int(_LIBC.timerfd_create(CLOCK_MONOTONIC, NONBLOCK_CLOEXEC))
    return fd if fd >= 0 else None
