"""Arrivals against theory: means, spread, rates under a ramp. Bounds are 5 standard deviations, by the formula told."""

import math
import random
import statistics
from itertools import pairwise
from typing import Any

import pytest

from tasks.plan import Level
from tasks.traffic import schedule

S = 1e9


def offsets(seed: int = 1, **level: Any) -> list[float]:
    shape = {"rate_per_s": 50.0, "arrivals": "poisson", "duration_s": 400.0} | level
    return [ns / S for ns in schedule.arrivals_ns(Level(**shape), random.Random(seed))]


def gaps(found: list[float]) -> list[float]:
    return [b - a for a, b in pairwise(found)]


def test_constant_arrivals_are_even_and_just_as_many_as_asked_for() -> None:
    assert offsets(arrivals="constant", rate_per_s=4.0, duration_s=2.0) == pytest.approx(
        [0.125, 0.375, 0.625, 0.875, 1.125, 1.375, 1.625, 1.875]
    )


@pytest.mark.parametrize(
    ("arrivals", "cv"), [("poisson", 1.0), ("gamma", 0.5), ("gamma", 1.0), ("gamma", 3.0)], ids=str
)
def test_mean_and_spread_are_those_of_the_kind(arrivals: str, cv: float) -> None:
    """A renewal process of rate r: N in T with variance about cv^2 r T; gaps of mean 1/r and deviation cv/r."""
    level = {"arrivals": arrivals, "burstiness": cv if arrivals == "gamma" else None}
    found = offsets(**level)
    assert abs(len(found) - 20_000) < 5 * cv * math.sqrt(20_000)
    between = gaps(found)
    assert statistics.mean(between) == pytest.approx(1 / 50, rel=5 * cv / math.sqrt(20_000))
    assert statistics.stdev(between) * 50 == pytest.approx(cv, rel=0.1)


def test_poisson_counts_in_seconds_spread_as_their_mean_and_gaps_do_not_remember() -> None:
    found = offsets()
    per_second = [0] * 400
    for at in found:
        per_second[int(at)] += 1
    assert statistics.variance(per_second) / statistics.mean(per_second) == pytest.approx(1, abs=0.35)
    between = gaps(found)
    mean = statistics.mean(between)
    together = statistics.mean((a - mean) * (b - mean) for a, b in pairwise(between))
    assert abs(together) / statistics.variance(between) < 5 / math.sqrt(len(between))
    longer = sum(gap > 2 * mean for gap in between) / len(between)
    assert longer == pytest.approx(math.exp(-2), abs=5 * math.sqrt(0.135 * 0.865 / len(between)))


def test_bursts_neither_delay_nor_hurry_the_beginning() -> None:
    """Without the first gap's own draw, bursty arrivals would begin with (cv^2 - 1) / 2 = 4 too many."""
    first = [len(offsets(seed, arrivals="gamma", burstiness=3.0, duration_s=1.0)) for seed in range(3000)]
    assert statistics.mean(first) == pytest.approx(50, abs=5 * 3 * math.sqrt(50) / math.sqrt(3000) * 1.2)


@pytest.mark.parametrize("arrivals", ["constant", "poisson"])
@pytest.mark.parametrize(("begin", "end"), [(10.0, 90.0), (90.0, 10.0)])
def test_a_ramp_goes_evenly(arrivals: str, begin: float, end: float) -> None:
    """Half of the time has the rate of a quarter of the way on average: (3 begin + end) / 4 times T / 2."""
    found = offsets(arrivals=arrivals, rate_per_s=begin, ramp_to_per_s=end)
    first, second = 200 * (3 * begin + end) / 4, 200 * (begin + 3 * end) / 4
    slack = 1 if arrivals == "constant" else 5
    halves = sum(at < 200 for at in found), sum(at >= 200 for at in found)
    assert abs(halves[0] - first) <= slack * (1 if arrivals == "constant" else math.sqrt(first))
    assert abs(halves[1] - second) <= slack * (1 if arrivals == "constant" else math.sqrt(second))


def test_all_lie_in_the_level_and_in_order() -> None:
    for level in ({}, {"arrivals": "gamma", "burstiness": 4.0}, {"ramp_to_per_s": 1.0}, {"arrivals": "constant"}):
        found = offsets(duration_s=3.0, **level)
        assert found == sorted(found) and found[0] >= 0 and found[-1] < 3


def test_the_generator_alone_decides() -> None:
    assert offsets(7) == offsets(7) != offsets(8)


def test_a_closed_loop_has_no_arrivals() -> None:
    with pytest.raises(ValueError, match="a closed loop of 2 users has no arrivals"):
        schedule.arrivals_ns(Level(users=2, duration_s=1), random.Random(1))
