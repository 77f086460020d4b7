"""How late the event loop is, and what the gateway costs: ten times a second, into its own metrics.

A loop that is late answers late: that is the part of what a gateway adds which no request can see of itself.
"""

import asyncio
import time

from tasks.gateway.metrics import Metrics

EVERY_S = 0.1


async def beat(metrics: Metrics) -> None:
    """Until cancelled."""
    loop = asyncio.get_running_loop()
    spent_s = time.process_time()
    metrics.workers.set(1)
    while True:
        due = loop.time() + EVERY_S
        await asyncio.sleep(EVERY_S)
        metrics.loop_lag.observe(max(0.0, loop.time() - due))
        now_s = time.process_time()
        metrics.cpu_seconds.inc(now_s - spent_s)
        spent_s = now_s
