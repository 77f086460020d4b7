"""Ours and the peers' clients before the same paced server: `python -m bench.client [--quick] [--only T,..] [...]`.

One run is one tool against a fresh bench/paced: N streams, 50 chunks/s each, 50 chunks per answer, every stream asks
again when its answer is over. The server has core 0, the client with all that it starts core 1 (taskset); this process,
which only samples, is on core 0 as well. Tools take turns: round by round, each begins with another one.

**Window.** From the first arrival after the first wave (N calls) to the last arrival: all streams are busy. Only there
CPU is counted, so a tool's start, data preparation and report cost it nothing. Chunks are those that the server sent.
    chunks/core-s  chunks in the window / CPU seconds (user and system) of the client's whole process tree in it
    rss            peak over the tree of the sum of resident memory, MB; pages that processes share count in each
**Truth.** TTFT: the first content's send at the server minus the arrival of the request there, which the kernel
stamped. The other candidate, when the client wrote its request, is known of ours alone, and would take a connect that
lags for the server's time; so a client that starts its clock and then dawdles is charged with it. Gaps: between the
server's own sends. Errors are |told - true| in ms. With spread phases only answers after the first wave are judged; in
the burst all of them. A tool's calls are matched by id; inference-perf exports none, so by order of start, and then
its burst is matched loosely. `lost`: answers or chunks that its export does not have.
    stalls         gaps told longer than 250 ms (the bound of the metric `stalls`); the server's own are in `true`
**Open loop.** Offered against achieved rate: calls per second asked for, and between first and last arrival.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil

from bench.client_tools import OURS, TOOLS, Load, Told, Tool, prepare
from tasks.metrics import STALL_MS

ROOT = Path(__file__).resolve().parents[1]
SERVER_CORE, CLIENT_CORE = "0", "1"
RUN_S, SAMPLE_S = 60.0, 0.2
CALLS = {1: 8, 64: 7, 256: 6, 512: 5}  # per stream, about 1.05 s each; the first is the wave
RATE = 60.0
Row = dict[str, Any]
Figures = dict[str, Any]


def main(words: Sequence[str]) -> None:
    options = _options(words)
    os.sched_setaffinity(0, {int(SERVER_CORE)})
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what runs is stopped
    found: dict[tuple[str, str], list[Figures]] = defaultdict(list)
    until_s = time.monotonic() + options.within_s
    with tempfile.TemporaryDirectory() as scratch:
        given = Path(scratch)
        prepare(given, max(n * calls for n, calls in CALLS.items()))
        for name, tool, spread_ms, load in _turns(options):
            if time.monotonic() > until_s:
                print(f"stopped: {options.within_s:g} s are over", flush=True)
                break
            figures = measure(tool, load, spread_ms, given)
            print(f"{name:12} {tool.name:15} {json.dumps(figures)}", file=sys.stderr, flush=True)
            found[name, tool.name].append(figures)
    print("\n".join(table(found)))
    print(json.dumps(summary(found)))


def _options(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.client")
    parser.add_argument("--quick", action="store_true", help="one round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default=",".join(tool.name for tool in TOOLS), help="tools, by comma")
    parser.add_argument("--cases", default="256,1,64,512,burst,open", help="streams, burst (256 at once), open")
    parser.add_argument("--within-s", type=float, default=1e9, help="begin no run later; what was measured is told")
    return parser.parse_args(words)


def _turns(options: argparse.Namespace) -> Iterator[tuple[str, Tool, float, Load]]:
    chosen = [tool for tool in TOOLS if tool.name in options.only.split(",")]
    for number in range(1 if options.quick else options.rounds):
        order = chosen[number % len(chosen) :] + chosen[: number % len(chosen)]
        for case in options.cases.split(","):
            for tool in order:
                yield case, tool, *_load(case)


def _load(case: str) -> tuple[float, Load]:
    """How far the first wave is spread, in ms, and the load."""
    if case == "open":
        return 0.0, Load(256, int(RATE * 8), RATE)
    streams = 256 if case == "burst" else int(case)
    return 0.0 if case == "burst" else 1000.0, Load(streams, streams * CALLS[streams])


def measure(tool: Tool, load: Load, spread_ms: float, given: Path) -> Figures:
    """One run. What went wrong is told under `fault`."""
    with tempfile.TemporaryDirectory(dir=given) as scratch:
        folder = Path(scratch)
        with _serving(folder / "truth.json", spread_ms, 0 if load.rate else load.streams) as url:
            samples, code = _run(tool, tool.command(url, folder, load), folder)
        try:
            told = tool.read(folder)
        except (OSError, ValueError, KeyError, TypeError) as error:
            tail = (folder / "output.txt").read_text(errors="replace")[-300:]
            return {"fault": f"exit {code}, {type(error).__name__}: {error}; {tail}"}
        truth = json.loads((folder / "truth.json").read_text())
        return judged(truth, told, samples, load, is_spread=spread_ms > 0)


@contextmanager
def _serving(record: Path, spread_ms: float, wave: int) -> Iterator[str]:
    command = ["taskset", "-c", SERVER_CORE, sys.executable, "-m", "bench.paced"]
    command += ["--record", str(record), "--spread-ms", str(spread_ms), "--wave", str(wave)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield f"http://127.0.0.1:{int(server.stdout.readline())}"
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(timeout=30)


def _run(tool: Tool, command: list[str], folder: Path) -> tuple[list[tuple[int, float, int]], int | None]:
    """Samples of the process tree (monotonic ns, CPU seconds so far, bytes resident), and the exit code."""
    samples: list[tuple[int, float, int]] = []
    cpu_s: dict[int, float] = {}
    with (folder / "output.txt").open("wb") as out:
        process = subprocess.Popen(
            ["taskset", "-c", CLIENT_CORE, *command],
            cwd=folder,
            env=os.environ | tool.env,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
        until_s = time.monotonic() + RUN_S
        try:
            while process.poll() is None and time.monotonic() < until_s:
                samples.append(_sample(process.pid, cpu_s))
                time.sleep(SAMPLE_S)
            return samples, process.poll()
        finally:
            _stop_group(process)


def _sample(pid: int, cpu_s: dict[int, float]) -> tuple[int, float, int]:
    resident = 0
    try:
        root = psutil.Process(pid)
        for each in (root, *root.children(recursive=True)):
            try:
                times = each.cpu_times()
                cpu_s[each.pid] = times.user + times.system
                resident += each.memory_info().rss
            except psutil.Error:
                continue
    except psutil.Error:
        pass
    return time.monotonic_ns(), sum(cpu_s.values()), resident


def _stop_group(process: "subprocess.Popen[bytes]") -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(timeout=20)


def judged(
    truth: Row, told: list[Told], samples: Sequence[tuple[int, float, int]], load: Load, *, is_spread: bool
) -> Figures:
    """The figures of one run. `truth`: bench/paced's record."""
    answers = sorted((one for one in truth["answers"] if one["sent_ns"]), key=lambda one: one["arrived_ns"])
    is_first = {one["asked_id"]: is_spread and i < load.streams for i, one in enumerate(answers)}
    pairs = [(a, b) for a, b in _matched(answers, told) if not is_first[a["asked_id"]]]
    ttft = [abs(b.ttft_ms - _true_ttft_ms(a)) for a, b in pairs if b.ttft_ms is not None]
    whole = [(_gaps_ms(a), b.gaps_ms) for a, b in pairs if b.gaps_ms is not None]
    gaps = [abs(x - y) for true, said in whole if len(true) == len(said) for x, y in zip(true, said, strict=True)]
    arrivals = [one["arrived_ns"] for one in answers]
    figures: Figures = {
        "calls": len(answers),
        "judged": len(ttft),
        "lost": len(answers) - len(told) + sum(len(true) != len(said) for true, said in whole),
        "rss_mb": round(max(sample[2] for sample in samples) / 1e6),
        **_spread("ttft_error_ms", ttft),
        **_spread("gap_error_ms", gaps),
        "stalls": sum(gap > STALL_MS for _, said in whole for gap in said) if whole else None,
        "stalls_true": sum(gap > STALL_MS for one in answers for gap in _gaps_ms(one)),
        "late_reads": truth["late_reads"],
    }
    if load.rate:
        return figures | {"achieved_per_s": round((len(arrivals) - 1) / (arrivals[-1] - arrivals[0]) * 1e9, 2)}
    return figures | _cost(answers, samples, arrivals[min(load.streams, len(arrivals) - 1)], arrivals[-1])


def _matched(answers: list[Row], told: list[Told]) -> Iterator[tuple[Row, Told]]:
    by_id = {one["asked_id"]: one for one in answers}
    if all(one.id in by_id for one in told):
        yield from ((by_id[one.id], one) for one in told if one.id)
    else:
        yield from zip(answers, sorted(told, key=lambda one: one.begun), strict=False)


def _true_ttft_ms(answer: Row) -> float:
    return float(answer["sent_ns"][0] - answer["arrived_ns"]) / 1e6


def _gaps_ms(answer: Row) -> list[float]:
    return [(b - a) / 1e6 for a, b in pairwise(answer["sent_ns"])]


def _spread(name: str, values: list[float]) -> Figures:
    """p50, p99 (the order statistic at or above it) and the most; None where there is nothing."""
    ranked = sorted(values)
    at = {"p50": 0.5, "p99": 0.99, "max": 1.0}
    return {
        f"{name}_{q}": round(ranked[min(len(ranked) - 1, int(p * len(ranked)))], 3) if ranked else None
        for q, p in at.items()
    }


def _cost(answers: list[Row], samples: Sequence[tuple[int, float, int]], from_ns: int, to_ns: int) -> Figures:
    chunks = sum(from_ns <= at <= to_ns for one in answers for at in one["sent_ns"])
    cpu_s = _cpu_at(samples, to_ns) - _cpu_at(samples, from_ns)
    seconds = (to_ns - from_ns) / 1e9
    return {
        "chunks_per_core_s": round(chunks / cpu_s) if cpu_s > 0 else None,
        "chunks_per_s": round(chunks / seconds) if seconds > 0 else None,
        "core_share": round(cpu_s / seconds, 3) if seconds > 0 else None,
    }


def _cpu_at(samples: Sequence[tuple[int, float, int]], at_ns: int) -> float:
    """CPU seconds so far, on the line between the samples around."""
    for (t0, c0, _), (t1, c1, _) in pairwise(samples):
        if t0 <= at_ns <= t1:
            return c0 + (c1 - c0) * (at_ns - t0) / (t1 - t0)
    return samples[-1][1]


COLUMNS = (
    *("chunks_per_core_s", "chunks_per_s", "core_share"),
    *("ttft_error_ms_p50", "ttft_error_ms_p99", "ttft_error_ms_max"),
    *("gap_error_ms_p50", "gap_error_ms_p99", "gap_error_ms_max"),
    *("stalls", "stalls_true", "lost", "rss_mb", "achieved_per_s"),
)


def middle(runs: list[Figures], name: str) -> float | None:
    """The median over the rounds that have it."""
    values = [run[name] for run in runs if run.get(name) is not None]
    return round(statistics.median(values), 3) if values else None


def worst(runs: list[Figures], name: str) -> float | None:
    """The most over the rounds: a median of rounds hides one in which the client lost its core."""
    return max((run[name] for run in runs if run.get(name) is not None), default=None)


def table(found: dict[tuple[str, str], list[Figures]]) -> Iterator[str]:
    yield f"server on core {SERVER_CORE}, client on core {CLIENT_CORE}; medians over rounds; errors in ms, p50/p99/max"
    yield f"open loop: {RATE:g} calls/s offered; burst: 256 streams at once; - is not exported or not asked"
    yield f"{'case':6} {'tool':15} {'n':>2} " + " ".join(f"{name:>17}" for name in COLUMNS)
    for (case, tool), runs in found.items():
        cells = [middle(runs, name) for name in COLUMNS]
        yield f"{case:6} {tool:15} {len(runs):2} " + " ".join(f"{'-' if cell is None else cell:>17}" for cell in cells)
        if (most := worst(runs, "ttft_error_ms_p99")) is not None and len(runs) > 1:
            yield f"       worst round: TTFT error p99 {most:g} ms"
        yield from (f"       fault: {run['fault']}" for run in runs if "fault" in run)


def summary(found: dict[tuple[str, str], list[Figures]]) -> Row:
    """The last line: ratios to the best peer (None without one), and everything by case and tool."""
    costs = {tool: middle(runs, "chunks_per_core_s") for (case, tool), runs in found.items() if case == "256"}
    best = max((cost for tool, cost in costs.items() if tool != OURS and cost), default=None)
    ours = costs.get(OURS)
    return {
        "ratio_to_best_peer": round(ours / best, 3) if ours and best else None,
        "ttft_error_ms_p99_256": middle(found.get(("256", OURS), []), "ttft_error_ms_p99"),
        "ttft_error_ms_p99_1": middle(found.get(("1", OURS), []), "ttft_error_ms_p99"),
        "ttft_error_ms_p99_256_worst_round": worst(found.get(("256", OURS), []), "ttft_error_ms_p99"),
        "offered_per_s": RATE,
        "cases": {
            f"{case}/{tool}": {"rounds": len(runs)} | {name: middle(runs, name) for name in COLUMNS}
            for (case, tool), runs in found.items()
        },
    }


if __name__ == "__main__":
    main(sys.argv[1:])
