"""When the calls or tasks of an open loop begin: a pure function of the level and a seeded generator.

Arrivals are drawn in units of expected arrivals and then put on the clock. Let S_k be a sum of gaps of mean 1, and
L(t) = r0 t + (r1 - r0) t^2 / 2T the expected number of arrivals until t, where the rate goes evenly from r0 to r1 over
the level's T seconds. Arrival k is at L^-1(S_k). Where the rate is constant that is S_k / r0; under a ramp it is the
time change that makes a Poisson process of unit rate one of any rate (Lewis and Shedler, 1979), and for the other kinds
it keeps the pattern and bends the rate.

    constant    S_k = k - 1/2: evenly spaced, rate x T arrivals
    poisson     gaps are exponential: arrivals of users who do not know of each other
    gamma       gaps of mean 1 and standard deviation `burstiness`: shape 1 / b^2, scale b^2. 1 is poisson

The first gamma gap is not a gap but what is left of one, for nobody starts a clock at an arrival: a length-biased gap
(shape + 1) times a uniform draw. So rate x T arrivals are expected, from the level's first moment on, however bursty.
"""

import math
import random
from collections.abc import Iterator

from tasks.plan import Level


def arrivals_ns(level: Level, rng: random.Random) -> list[int]:
    """Offsets from the level's start in ns, in order, all before its end. Raises ValueError for a closed loop."""
    if level.rate_per_s is None:
        raise ValueError(f"a closed loop of {level.says} has no arrivals")
    last = level.rate_per_s if level.ramp_to_per_s is None else level.ramp_to_per_s
    expected = (level.rate_per_s + last) / 2 * level.duration_s
    bend = (last - level.rate_per_s) / level.duration_s
    found: list[int] = []
    for reached in _sums(level, rng):
        if reached >= expected:
            return found
        found.append(int(_at_s(reached, level.rate_per_s, bend) * 1e9))
    raise AssertionError("sums never end")


def _at_s(reached: float, rate: float, bend: float) -> float:
    """When so many arrivals are expected: the root of rate t + bend t^2 / 2, in the form that cannot cancel out."""
    return 2 * reached / (rate + math.sqrt(max(rate * rate + 2 * bend * reached, 0.0)))


def _sums(level: Level, rng: random.Random) -> Iterator[float]:
    """S_1, S_2, ... without end."""
    if level.arrivals == "constant":
        reached = 0.5
        while True:
            yield reached
            reached += 1
    spread = (1.0 if level.arrivals == "poisson" else level.burstiness or 1.0) ** 2
    shape = 1 / spread
    reached = rng.gammavariate(shape + 1, spread) * rng.random()
    while True:
        yield reached
        reached += rng.gammavariate(shape, spread)


def share(items: int, process: int, processes: int) -> range:
    """Which of the numbers 0 to `items` - 1 are this process's: every so manieth, so that all are equally busy."""
    return range(process, items, processes)
