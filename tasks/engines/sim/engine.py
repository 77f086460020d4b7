"""The scheduler in real time: one loop that paces its steps and hands out what each brought.

Model time is the monotonic clock since the start, divided by the time scale. The end of a step is an absolute time, and
the next step begins there, not when the loop woke up: a late wake-up delays what is sent, and the record says so, but
the engine gets no slower by it. If the process was held up for more than LOST_S, it cannot keep the model's pace; the
clock is then set to the present, and `lost` counts it, so that a run on a machine too busy can be told.
"""

import asyncio
import os
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from tasks.engines.sim import roofline, starve
from tasks.engines.sim.alarm import Alarm
from tasks.engines.sim.faults import Faults
from tasks.engines.sim.flags import Setup
from tasks.engines.sim.record import Record
from tasks.engines.sim.scheduler import Batch, Gain, Scheduler
from tasks.engines.sim.stream import Stream

LOST_S = 0.25
REASONS = {"stop": "stop", "tool_calls": "stop", "length": "length", "error_event": "error"}  # all else: abort


@dataclass
class Seen:
    """Sums that the histograms of /metrics need: name -> [count, sum]."""

    sums: dict[str, list[float]] = field(default_factory=dict)
    finished: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("stop", "length", "abort", "error", "repetition"), 0)
    )

    def add(self, name: str, value: float, count: int = 1) -> None:
        entry = self.sums.setdefault(name, [0, 0.0])
        entry[0] += count
        entry[1] += value


class Engine:
    """Everything of one server but HTTP. `run` must be running for streams to get anything."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.started_at = time.time()
        self.origin_ns = time.monotonic_ns()
        self.scheduler = Scheduler(setup.limits, self._duration)
        self.streams: dict[Any, Stream] = {}
        self.seen = Seen()
        self.record = Record(setup.record)
        self.record.note("start", argv=sys.argv[1:], env=setup.env, pid=os.getpid())
        self.number = 0  # of requests that asked for an answer
        self.in_flight = 0
        self.lost = 0
        self.late_ns_max = 0
        self.wake = asyncio.Event()
        self.burners: list[Any] = []
        self.later: deque[tuple[float, list[Gain]]] = deque()  # model time, what is sent then
        self.plant(setup.faults)

    def now_s(self) -> float:
        """Model time."""
        return self.model_s(time.monotonic_ns())

    def model_s(self, at_ns: int) -> float:
        """Model time of a monotonic time."""
        return (at_ns - self.origin_ns) / 1e9 / self.setup.time_scale

    def plant(self, faults: Faults) -> None:
        """Replace the planted faults."""
        self.faults, self.planted_s, self.planted_number, self.first_tokens = faults, self.now_s(), self.number, 0
        self.scheduler.is_warm = "warm_cache" in faults.planted
        starve.stop(self.burners)
        burning = faults.get("client_starved")
        self.burners = starve.start(int(burning["processes"]), burning["seconds"]) if burning else []
        self.record.note("faults", planted=faults.planted)

    def submit(self, stream: Stream) -> None:
        """Queue a request. Raises ValueError if it can never be scheduled."""
        self.scheduler.add(stream.request)
        self.streams[stream.request] = stream
        self.wake.set()

    def abort(self, stream: Stream) -> None:
        """The client has left."""
        if stream.end is None:
            stream.end = "abort"
            self._close(stream)

    async def run(self) -> None:
        """Step for ever."""
        alarm, now_s = Alarm(), self.now_s()
        try:
            while True:
                batch = self.scheduler.begin(now_s)
                end_s = now_s + batch.duration_s if batch else float("inf")
                await self._send_due(alarm, end_s)
                if batch is None:
                    await self._idle(now_s)
                    now_s = max(now_s, self.now_s())
                    continue
                await alarm.until(self._real_ns(end_s))
                now_s = self._caught_up(end_s)
                self._spread(self.scheduler.complete(batch), end_s)
        finally:
            alarm.close()

    def stop(self, what: str = "stop") -> None:
        """Write down what is in flight."""
        for stream in list(self.streams.values()):
            self.record.note("request", **stream.told())
        told = {"number": self.number, "late_ms_max": self.late_ns_max / 1e6, "lost": self.lost}
        self.record.note(what, **told, counts=vars(self.scheduler.counts))
        starve.stop(self.burners)

    def restarts(self) -> bool:
        """Planted: whether the request of the present number is the one that the engine does not survive."""
        planted = self.faults.get("restart")
        return planted is not None and self.number - self.planted_number == planted["requests"]

    def restart(self) -> None:
        """Become a fresh process, as a supervisor that restarts a crashed engine would: all connections break."""
        self.stop("restart")
        planted = {name: params for name, params in self.faults.planted.items() if name != "restart"}
        environment = os.environ | {"SIM_FAULTS": Faults(planted).text()}
        os.execve(sys.executable, [sys.executable, "-m", "tasks.engines.sim", *sys.argv[1:]], environment)

    def _duration(self, batch: Batch) -> float:
        seconds = self.setup.step_s
        if seconds is None:
            seconds = roofline.seconds(self.setup.machine, batch.tokens, batch.context, batch.pairs, batch.drafts)
        since_s = batch.began_s - self.planted_s
        return seconds * self.faults.stretch(first_tokens=self.first_tokens, since_s=since_s)

    async def _idle(self, now_s: float) -> None:
        """Wait for a request, or for one that is held back."""
        self.wake.clear()
        starts = self.scheduler.next_start_s()
        wait_s = None if starts is None else max(0.0, starts - now_s) * self.setup.time_scale
        try:
            await asyncio.wait_for(self.wake.wait(), wait_s)
        except TimeoutError:
            return

    def _real_ns(self, model_s: float) -> int:
        return self.origin_ns + int(model_s * self.setup.time_scale * 1e9)

    def _caught_up(self, end_s: float) -> float:
        late_ns = time.monotonic_ns() - self._real_ns(end_s)
        self.late_ns_max = max(self.late_ns_max, late_ns)
        if late_ns < LOST_S * 1e9:
            return end_s
        self.lost += 1
        return self.now_s()

    def _spread(self, gains: list[Gain], end_s: float) -> None:
        """Send what a step brought: at once, or in SIM_SPREAD slots of the next step, each stream always in its own."""
        slots = self.setup.spread
        if not slots:
            self._send(gains, end_s)
            return
        found: dict[int, list[Gain]] = {}
        for gain in gains:
            found.setdefault(self.streams[gain[0]].number % slots, []).append(gain)
        width_s = (self.setup.step_s or 0.0) / slots
        self.later.extend((end_s + slot * width_s, found[slot]) for slot in sorted(found))

    async def _send_due(self, alarm: Alarm, before_s: float) -> None:
        while self.later and self.later[0][0] < before_s:
            at_s, gains = self.later.popleft()
            await alarm.until(self._real_ns(at_s))
            self._send(gains, at_s)

    def _send(self, gains: list[Gain], end_s: float) -> None:
        """One write per stream; what has ended is written down when all are sent, so that it delays nobody."""
        at_ns, due_ns, ended = time.monotonic_ns(), self._real_ns(end_s), []
        for request, tokens, is_finished in gains:
            stream = self.streams.get(request)
            if stream is None:  # its client left between the step and its slot
                continue
            if not stream.first_ns:
                stream.first_ns = at_ns
                self.first_tokens += 1
            stream.last_ns = at_ns
            stream.grant(tokens, is_finished, due_ns)
            if stream.end is not None:
                ended.append(stream)
            elif not stream.has_stalled and "stalls" in stream.struck:
                self._stall(stream, end_s)
        for stream in ended:
            self._close(stream)

    def _stall(self, stream: Stream, now_s: float) -> None:
        if stream.at * 2 >= len(stream.answer.pieces):
            stream.has_stalled = True
            stream.request.not_before_s = now_s + stream.struck["stalls"]["ms"] / 1e3

    def _close(self, stream: Stream) -> None:
        request = stream.request
        self.scheduler.abort(request)
        del self.streams[request]
        self.seen.finished[REASONS.get(stream.end or "", "abort")] += 1
        if stream.end in REASONS:
            self._measure(stream)
        self.record.note("request", **stream.told())
        if not stream.done.done():
            stream.done.set_result(None)

    def _measure(self, stream: Stream) -> None:
        request, seen, arrived_ns = stream.request, self.seen, stream.arrived_ns
        queued_s = ((request.first_scheduled_s or 0) - request.arrived_s) * self.setup.time_scale
        ttft_s, e2e_s = (stream.first_ns - arrived_ns) / 1e9, (stream.last_ns - arrived_ns) / 1e9
        seen.add("request_prompt_tokens", request.prompt)
        seen.add("request_generation_tokens", stream.at)
        seen.add("request_params_max_tokens", request.output)
        seen.add("time_to_first_token_seconds", ttft_s)
        seen.add("e2e_request_latency_seconds", e2e_s)
        seen.add("request_queue_time_seconds", queued_s)
        seen.add("request_inference_time_seconds", e2e_s - queued_s)
        seen.add("request_prefill_time_seconds", ttft_s - queued_s)
        seen.add("request_decode_time_seconds", e2e_s - ttft_s)
        seen.add("inter_token_latency_seconds", e2e_s - ttft_s, max(0, stream.at - 1))
        if stream.at > 1:
            seen.add("request_time_per_output_token_seconds", (e2e_s - ttft_s) / (stream.at - 1))
