"""Do the one-sided 95 % bounds of p50, p95 and p99 hold the truth as often as they say? `python -m bench.coverage`

A level is a queue of the sim's scheduler (tasks.engines.sim.play) that serves one request at a time: Poisson arrivals,
exponential work, so that waits follow each other as strongly as in any queue of that load. Each level starts empty, as
a real one does, and goes the whole way of a real one: warm-up is found and cut, what the rest is worth is estimated,
the bounds are taken. The truth is the percentile of one run 100 times as long. Independent draws have a known truth:
lognormal values, and the same with failures.

Covered: the lower bound is at most the truth and the upper one at least; where there are too few values for a bound
there is no claim, and none can be wrong. `claims` says in how many levels there was one, and `of claims` how often
those held, which is less: a level that claims is more often one that happened to be calm.
The criterion: a one-sided binomial test at 5 % does not place the rate under 95 %. Of 1,000 levels that is 938.

Prints a table and, last, one line of JSON. Exits 1 if a row does not pass. --quick: 100 levels of each. `--longer 1`
shows what bounds are worth whose batches are just as long as the correlation time, `--requests N` what longer or
shorter levels are; `--levels N` sets how many.
"""

import json
import math
import random
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

import numpy as np

from tasks.engines.sim.play import play
from tasks.engines.sim.scheduler import Limits, Request, Scheduler
from tasks.stats import dependence, percentile, steady

QUANTILES = (0.5, 0.95, 0.99)
SERVICE_S = 0.1  # mean work of a request
TOKENS = 100  # mean prompt
REQUESTS = 12_000  # of a level: fewer have no upper bound of p95 at load 0.8
DRAWS = 400  # independent values of a level
TRUTH_TIMES = 100  # a level is the run that knows the truth
Bounds = list[tuple[float | None, float | None]]
Row = dict[str, Any]


def main(argv: list[str]) -> int:
    began, levels = time.monotonic(), _set(argv)
    with ProcessPoolExecutor(2) as pool:
        rows = []
        for load in (0.5, 0.8):
            truth = pool.submit(_truth, load)
            found = list(pool.map(partial(_queue_level, load), range(levels), chunksize=10))
            rows += _rows(f"queue, load {load}", found, truth.result())
        for name, draw, truths in _independent():
            found = list(pool.map(partial(_drawn_level, draw), range(levels), chunksize=50))
            rows += _rows(name, found, truths)
    print("what                       q     bound  covered    claims  effective n  of claims bound/truth")
    for row in rows:
        shares = "".join(
            f"{'-' if value is None else format(value, '.3f'):>11s}" for value in (row["of_claims"], row["ratio"])
        )
        mark = "" if row["passes"] else "  under 95 %"
        print(
            "{what:26s} {q:<5} {bound:6s} {covered:4d}/{levels:<5d} {claims:6d} {effective_n:12.0f}".format(**row)
            + shares
            + mark
        )
    states = {row["what"]: row["states"] for row in rows if row["states"]}
    for what, counts in states.items():
        print(f"{what}: " + ", ".join(f"{count} {state}" for state, count in counts.items()))
    passes = all(row["passes"] for row in rows)
    seconds = round(time.monotonic() - began, 1)
    print(json.dumps({"passes": passes, "levels": levels, "rows": rows, "states": states, "seconds": seconds}))
    return 0 if passes else 1


def _set(argv: list[str]) -> int:
    """How many levels; the rest before the processes are forked, so that they have it too."""
    global REQUESTS
    given = {name: float(argv[argv.index(name) + 1]) for name in ("--longer", "--requests", "--levels") if name in argv}
    dependence.LONGER = given.get("--longer", dependence.LONGER)
    REQUESTS = int(given.get("--requests", REQUESTS))
    return int(given.get("--levels", 100 if "--quick" in argv else 1000))


def queue(load: float, requests: int, rng: random.Random) -> list[float]:
    """Seconds from arrival to first token of each request, in order of arrival; begins empty."""
    now_s, arrivals = 0.0, []
    for number in range(requests):
        now_s += rng.expovariate(load / SERVICE_S)
        tokens = 1 + int(rng.expovariate(1 / (TOKENS - 0.5)))
        arrivals.append(Request(str(number), tokens, 1, arrived_s=now_s))
    limits = Limits(max_num_seqs=1, max_num_batched_tokens=1 << 20, block_size=1 << 20, blocks=2, prefix_caching=False)
    scheduler = Scheduler(limits, lambda batch: batch.tokens * SERVICE_S / TOKENS)
    return [served.ttft_s for served in play(scheduler, arrivals)]


def _truth(load: float) -> list[float]:
    ordered = sorted(queue(load, TRUTH_TIMES * REQUESTS, random.Random(f"truth/{load}")))
    return [ordered[percentile.nearest_rank(len(ordered), q) - 1] for q in QUANTILES]


def _queue_level(load: float, seed: int) -> tuple[Bounds, list[float], str]:
    values = queue(load, REQUESTS, random.Random(f"level/{load}/{seed}"))
    kept = values[steady.warmup(values) :]
    trend = steady.trend(kept, [number * SERVICE_S / load for number in range(len(kept))])
    state = "too_short" if trend is None else "drift" if trend.is_drift else "steady"
    state += ", warm-up cut" if len(kept) < len(values) else ""
    return *_bounds(kept), state


def _drawn_level(draw: Callable[[Any, int], Any], seed: int) -> tuple[Bounds, list[float], str]:
    return *_bounds([float(v) for v in draw(np.random.default_rng(seed), DRAWS)]), ""


def _bounds(values: list[float]) -> tuple[Bounds, list[float]]:
    worth = [dependence.effective_n(values, q) for q in QUANTILES]
    found = [
        percentile.percentile(values, q, effective_n=m, one_sided=True) for q, m in zip(QUANTILES, worth, strict=True)
    ]
    return [(one.lower, one.upper) for one in found], worth


def _lognormal(rng: Any, n: int) -> Any:
    return rng.lognormal(0.0, 1.0, n)


def _with_failures(rng: Any, n: int) -> Any:
    return np.where(rng.random(n) < 0.03, math.inf, rng.lognormal(0.0, 1.0, n))


def _independent() -> list[tuple[str, Callable[[Any, int], Any], list[float]]]:
    """Name, draw, true quantiles: exp of the normal quantiles; with 3 % failures p95 is the 0.95 / 0.97 quantile."""
    plain = [math.exp(z) for z in (0.0, 1.6448536, 2.3263479)]
    failing = [math.exp(z) for z in (0.0387700, 2.0418977)]  # normal quantiles of 0.50 / 0.97 and 0.95 / 0.97
    return [
        ("independent", _lognormal, plain),
        ("independent, 3 % failures", _with_failures, [*failing, math.inf]),
    ]


def _rows(what: str, found: list[tuple[Bounds, list[float], str]], truth: list[float]) -> list[Row]:
    rows = []
    for place, (q, true) in enumerate(zip(QUANTILES, truth, strict=True)):
        worth = float(np.median([m[place] for _, m, _ in found]))
        for side, bound in enumerate(("lower", "upper")):
            claimed = [b for bounds, _, _ in found if (b := bounds[place][side]) is not None]
            wrong = sum(b > true if bound == "lower" else b < true for b in claimed)
            rows.append(
                {
                    "what": what,
                    "q": q,
                    "bound": bound,
                    "levels": len(found),
                    "covered": len(found) - wrong,
                    "claims": len(claimed),
                    "of_claims": 1 - wrong / len(claimed) if claimed else None,
                    "effective_n": worth,
                    "ratio": float(np.median(claimed)) / true if claimed and math.isfinite(true) else None,
                    "passes": _is_not_under(len(found) - wrong, len(found)),
                    "states": {},
                }
            )
    states = [state for _, _, state in found if state]
    rows[0]["states"] = {state: states.count(state) for state in sorted(set(states))}
    return rows


def _is_not_under(covered: int, levels: int, *, rate: float = 0.95) -> bool:
    """Is so little, or less, more likely than 5 % at a true rate of 95 %? Counted out."""
    log_terms = (
        math.lgamma(levels + 1)
        - math.lgamma(k + 1)
        - math.lgamma(levels - k + 1)
        + k * math.log(rate)
        + (levels - k) * math.log(1 - rate)
        for k in range(covered + 1)
    )
    return sum(map(math.exp, log_terms)) > 0.05


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
