"""What a null calibration offers, and what is read from its calls. Pure: no clock, no I/O.

Offered is the tier's highest level against a server that answers at once, in as few seconds as show something:

- A closed loop of N users is N streams. An open loop of rate r has r x (length of an answer) streams in flight, the
  answer being `output_tokens` long, or max_tokens where the plan fixes no length (then it is the most it can be).
- Each stream brings CHUNKS_PER_S. That is assumed: what the arm will do is not known yet. The report shows beside it
  how many chunks the load really brought.
- A stream begins an answer as often as planned, or more often: so that a path gets about CALLS of them. Short answers
  cost the client more than long ones, so this errs towards `not enough`.
- All streams start at once (the burst, told apart). After their first chunk each has a phase of its own, so that chunks
  are spread as those of calls that began at different times.

Direct and through the gateway take turns (ROUNDS each): a machine that becomes slower meanwhile must not look like a
gateway (archestra-ai/archestra#7888 compares a proxy with none in alternating warmed blocks for that reason).

Figures, of one path. Server and client read one clock, the machine's monotonic one, and the server's stamps come with
the answer (tasks/traffic/echo.py):

- ttft_floor_ms: the TTFT that the client would have reported, less what the server took from having read the request
  to sending the first chunk. What no server can be below. Calls of the burst are not in it: they wait for each other.
- ttft_error_ms, burst_ttft_error_ms: the client's stamp of the first chunk minus the server's, right before it sent.
- icl_error_ms: |gap between two chunks at the client - the same gap at the server|.
- cut: calls that had not ended well after their round. All are planned to end with it, so something was late.
- stalls: gaps of more than STALL_MS (tasks/metrics.py) at the client that were shorter at the server.
- schedule_delay_ms, loop_lag_ms, cpu_share: as under load; of several processes the worst one's.
- server_late_ms: sent minus due. The server's own lateness; it is in none of the others, but for requests that lay in
  the socket before the server woke up. A late server leaves the client unmeasured, so that is told as `not enough`.

With n below 100 a p99 is the maximum; n stands beside it. The gateway's share is the difference between the percentiles
of the two paths, which for p99 is not the percentile of a difference. It can be below zero, which means: not seen.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from tasks import plan
from tasks.metrics import STALL_MS
from tasks.traffic import echo, level

CHUNKS_PER_S = 50.0  # of one stream: the rate at which this client is held against its peers (bench/client)
CALLS = 50  # per path, about: enough to place a p50
SHORTEST = 5  # chunks of an answer
ROUNDS = 2  # per path
DIRECT, GATEWAY = "direct", "through_gateway"
PATHS = (DIRECT, GATEWAY)
SPREADS = ("ttft_floor_ms", "ttft_error_ms", "burst_ttft_error_ms", "icl_error_ms", "server_late_ms")
OWN = ("schedule_delay_ms", "loop_lag_ms")
Figures = dict[str, Any]
Row = dict[str, Any]


@dataclass(frozen=True)
class Offered:
    """One path's load: `streams` at once, each beginning an answer of `chunks` chunks every chunks x gap."""

    level: int  # of the plan, from 1
    streams: int
    rate_per_s: float | None  # of arrivals, in open loop
    chunks: int
    round_s: float

    @property
    def chunks_per_s(self) -> float:
        return self.streams * CHUNKS_PER_S

    def calls(self, stream: int) -> Iterator[tuple[float, int, float]]:
        """(seconds after the round's start, chunks, seconds from the first to the second chunk) of a stream's calls.

        The first answers end one after the other, as those of a load that has run for a while; the last ones end with
        the round.
        """
        gap = 1 / CHUNKS_PER_S
        phase = (stream * 0.6180339887498949) % 1  # spread evenly, whatever the number of streams
        chunks = 1 + (stream * self.chunks) // self.streams
        at, first_gap = 0.0, gap * (1 + phase)
        while at < self.round_s:
            chunks = max(1, min(chunks, int((self.round_s - at) / gap)))
            yield at, chunks, first_gap
            at += first_gap + (chunks - 1) * gap
            chunks, first_gap = self.chunks, gap


def technique(arm: str) -> str:
    """What the echo server is registered as. One name per arm: a gateway keeps metrics of every name it ever had."""
    return f"{arm[:80]}.null-calibration"


def offered(tier: plan.Tier) -> Offered:
    """The highest load of a tier, in the seconds that it gives to calibration."""
    answer_s = (tier.output_tokens or tier.max_tokens) / CHUNKS_PER_S
    streams = [_streams(one, answer_s) for one in tier.levels]
    most = max(streams)
    number = streams.index(most)
    path_s = tier.calibrate_s / len(PATHS)
    chunks = min(answer_s, most * path_s / CALLS) * CHUNKS_PER_S
    rate = tier.levels[number].rate_per_s
    return Offered(number + 1, most, rate, max(SHORTEST, math.ceil(chunks)), path_s / ROUNDS)


def _streams(one: plan.Level, answer_s: float) -> int:
    if one.users is not None:
        return one.users
    rates = [rate for rate in (one.rate_per_s, one.ramp_to_per_s) if rate is not None]
    return max(1, math.ceil(max(rates) * answer_s))


def measured(answer_text: str, row: Mapping[str, Any], chunks_ns: Sequence[int], *, asked: int, is_burst: bool) -> Row:
    """What one call shows. Gaps and lateness are lists, in ms; a chunk that was sent and not heard is `lost`."""
    try:
        sent = echo.stamps(answer_text)
    except ValueError:
        sent = []
    pairs = list(zip(chunks_ns, sent, strict=False))
    gaps = [((b - a) / 1e6, (to - at) / 1e6) for (a, (_, at)), (b, (_, to)) in pairwise(pairs)]
    found: Row = {
        "is_burst": is_burst,
        "failure": row["failure"] and f"{row['failure']}: {row['failure_detail']}",
        "is_cut": row["is_aborted"],
        "lost": 0 if row["is_aborted"] or row["failure"] else asked - len(pairs),
        "schedule_delay_ms": (row["t_send_ns"] - row["t_intended_ns"]) / 1e6,
        "chunks": len(pairs),
        "icl_error_ms": [abs(here - there) for here, there in gaps],
        "stalls": sum(here > STALL_MS >= there for here, there in gaps),
        "server_late_ms": [(at - due) / 1e6 for due, at in sent],
    }
    if pairs:
        first_ns, (heard_ns, sent_ns) = pairs[0]
        found["ttft_floor_ms"] = (first_ns - row["t_send_ns"] - (sent_ns - heard_ns)) / 1e6
        found["ttft_error_ms"] = (first_ns - sent_ns) / 1e6
    return found


def figures(processes: Sequence[Mapping[str, Any]]) -> Figures:
    """Of one path: {rows, loop_lag_ms (a list), cpu_share, pid} per client process."""
    rows = [row for process in processes for row in process["rows"]]
    failures = [row["failure"] for row in rows if row["failure"]]
    each = [
        {"process": number, "pid": one["pid"], "cpu_share": one["cpu_share"]}
        | level.spread("loop_lag_ms", one["loop_lag_ms"])
        | level.spread("schedule_delay_ms", [row["schedule_delay_ms"] for row in one["rows"]])
        for number, one in enumerate(processes)
    ]
    worst = {key: _most(one[key] for one in each) for name in OWN for key in _keys(name)}
    calm = [row for row in rows if not row["is_burst"]]
    values = {name: [row[name] for row in calm if name in row] for name in ("ttft_floor_ms", "ttft_error_ms")}
    values["burst_ttft_error_ms"] = [row["ttft_error_ms"] for row in rows if row["is_burst"] and "ttft_error_ms" in row]
    for name in ("icl_error_ms", "server_late_ms"):
        values[name] = [value for row in rows for value in row[name]]
    return {
        "calls": len(rows),
        "calls_after_burst": len(values["ttft_floor_ms"]),
        "chunks": sum(row["chunks"] for row in rows),
        "failed": len(failures),
        "first_failure": failures[0] if failures else None,
        "cut": sum(row["is_cut"] for row in rows),
        "lost_chunks": sum(row["lost"] for row in rows),
        "stalls": sum(row["stalls"] for row in rows),
        **{key: value for name in SPREADS for key, value in level.spread(name, values[name]).items()},
        **worst,
        "cpu_share": _most(one["cpu_share"] for one in each),
        "processes": each,
    }


def _keys(name: str) -> list[str]:
    return [f"{name}_{which}" for which in ("p50", "p99", "max")]


def _most(values: Iterator[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def gateway_share(direct: Figures | None, through: Figures | None) -> Figures:
    """What the gateway adds to TTFT, by the percentiles of the two paths. None where a path was not measured."""
    share: Figures = {}
    for which in ("p50", "p99"):
        ends = [path and path[f"ttft_floor_ms_{which}"] for path in (direct, through)]
        share[f"ttft_ms_{which}"] = None if None in ends else round(ends[1] - ends[0], 3)  # type: ignore[operator]
    return share


def shortcomings(found: Figures | None, bounds: Mapping[str, float]) -> list[str]:
    """Why one path's calibration does not show a client that keeps the planned rate; nothing if it does."""
    if found is None:
        return ["it was not measured"]
    if not found["calls_after_burst"]:
        why = f": {found['first_failure']}" if found["failed"] else ""
        return [f"no call brought a first chunk after the burst ({found['failed']} of {found['calls']} failed{why})"]
    words = [
        f"{name} is {'not known' if found[name] is None else format(found[name], 'g')}, and rule 6 allows {most:g}"
        for name, most in bounds.items()
        if found[name] is None or found[name] > most
    ]
    late, most = found["server_late_ms_p99"], bounds["loop_lag_ms_p99"]
    if late > most:
        words.append(f"the echo server itself was late (p99 {late:g} ms): the machine is too busy to calibrate")
    if found["failed"]:
        words.append(f"{found['failed']} of {found['calls']} calls failed: {found['first_failure']}")
    if found["cut"]:
        words.append(f"{found['cut']} of {found['calls']} calls had not ended when their round was long over")
    if found["lost_chunks"]:
        words.append(f"{found['lost_chunks']} chunks that the server sent were not heard")
    return words
