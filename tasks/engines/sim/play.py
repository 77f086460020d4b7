"""Play arrivals through the scheduler without waiting for them: the truth of a queue, as fast as Python counts.

Time is the model's. A request that arrives during a step waits for its end, as on a real engine.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from tasks.engines.sim.scheduler import Request, Scheduler


@dataclass
class Served:
    """When one request was first scheduled and when it got which number of tokens. Seconds of model time."""

    request: Request
    times_s: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)

    @property
    def waited_s(self) -> float:
        """From arrival to the start of its first step."""
        return (self.request.first_scheduled_s or 0.0) - self.request.arrived_s

    @property
    def ttft_s(self) -> float:
        return self.times_s[0] - self.request.arrived_s

    @property
    def e2e_s(self) -> float:
        return self.times_s[-1] - self.request.arrived_s


def play(scheduler: Scheduler, arrivals: Iterable[Request]) -> list[Served]:
    """Serve all arrivals, which must be in order of arrival. Returns them in that order."""
    ahead = iter(arrivals)
    coming, now_s = next(ahead, None), 0.0
    served: dict[int, Served] = {}
    while True:
        while coming is not None and coming.arrived_s <= now_s:
            served[id(coming)] = Served(coming)
            scheduler.add(coming)
            coming = next(ahead, None)
        batch = scheduler.begin(now_s)
        if batch is not None:
            now_s += batch.duration_s
            for request, tokens, _ in scheduler.complete(batch):
                one = served[id(request)]
                one.times_s.append(now_s)
                one.tokens.append(tokens)
            continue
        ahead_s = (scheduler.next_start_s(), coming.arrived_s if coming else None)
        starts = [s for s in ahead_s if s is not None and s > now_s]
        if not starts:
            return list(served.values())
        now_s = min(starts)
