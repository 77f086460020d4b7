"""What the gateway adds, beside nginx and the LiteLLM proxy: `python -m bench.gateway [--quick] [--only P,..]`.

Same upstreams (bench/paced), same client (bench/proxy_load), in turn, round by round: straight to the upstream, and
through each proxy. The proxy has core 0 with one worker, upstream and client share core 1 (taskset).

**Added latency**, at 1, 16 and 64 connections in a closed loop, as an engine would answer: streamed, the first chunk
50 ms after the request and 19 more, 20 ms apart (the time is to the first event); plain, one answer after 200 ms (the
time is to its end). Added is a quantile through the proxy less the same quantile straight, of the same round.
**Cost**, at 64 connections: streamed, 100 chunks, 10 ms apart; plain, answered at once. Chunks, or requests, by the CPU
seconds (user and system) of the proxy's processes while they were served; so the proxy need not be full, and what
client and upstream cost is not in it.

A proxy that cannot keep up (LiteLLM at 64) queues: its added latency is then of its queue, and no property of a call.
Medians over rounds, of each cell the rounds' least and most beside it. `failed` calls are told; a figure with failures
is of those that did not fail. The last line is JSON.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import peers, proxies
from bench.proxies import Proxy

ROOT = Path(__file__).resolve().parents[1]
PROXY_CORE, OTHER_CORE = "0", "1"
PROXIES = ("direct", "ours", "nginx", "litellm")
CONNECTIONS = (1, 16, 64)
Figures = dict[str, float]
Found = dict[tuple[str, str], list[Figures]]  # (case, proxy) -> a round's figures each


@dataclass(frozen=True)
class Upstream:
    """bench/paced's words, and whether calls ask for a stream."""

    words: Sequence[str]
    is_streamed: bool


UPSTREAMS = {
    "streamed": Upstream(("--ttft-ms", "50", "--gap-ms", "20", "--chunks", "20"), is_streamed=True),
    "plain": Upstream(("--ttft-ms", "200", "--chunks", "20"), is_streamed=False),
    "chunks": Upstream(("--ttft-ms", "0", "--gap-ms", "10", "--chunks", "100"), is_streamed=True),
    "requests": Upstream(("--ttft-ms", "0", "--chunks", "20"), is_streamed=False),
}
CASES = [(kind, n) for kind in ("streamed", "plain") for n in CONNECTIONS] + [("chunks", 64), ("requests", 64)]


def main(words: Sequence[str]) -> None:
    asked = _options(words)
    found: Found = defaultdict(list)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        ports = {name: stack.enter_context(_upstream(one)) for name, one in UPSTREAMS.items()}
        running = [stack.enter_context(proxies.serving(name, ports, folder / name, PROXY_CORE)) for name in asked.only]
        for number in range(asked.rounds):
            for kind, connections in CASES:
                for proxy in running[number % len(running) :] + running[: number % len(running)]:
                    figures = measure(proxy, kind, connections, ports, asked.seconds)
                    found[f"{kind} {connections}", proxy.name].append(figures)
                    print(number, kind, connections, proxy.name, json.dumps(figures), file=sys.stderr, flush=True)
    print("\n".join(table(found)))
    print(json.dumps(summary(found) | {"rounds": asked.rounds, "versions": _versions(asked.only)}))


def _options(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.gateway", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one round of short cells")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each cell")
    parser.add_argument("--only", default=",".join(PROXIES), help="proxies, by comma; direct is always there")
    asked = parser.parse_args(words)
    if asked.quick:
        asked.rounds, asked.seconds = 1, 2.0
    asked.only = [name for name in PROXIES if name == "direct" or name in asked.only.split(",")]
    return asked


@contextmanager
def _upstream(one: Upstream) -> Iterator[int]:
    command = ["taskset", "-c", OTHER_CORE, sys.executable, "-m", "bench.paced", *one.words]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield int(server.stdout.readline())
        finally:
            server.terminate()


def measure(proxy: Proxy, kind: str, connections: int, ports: Mapping[str, int], seconds: float) -> Figures:
    """One cell: {first_ms_p50, first_ms_p99 or whole_ms_..., per_core_s, calls, failed}; ms, and 1/s of CPU."""
    asked = proxy.asked(kind, ports[kind])
    body = {"model": asked.pop("model"), "messages": [{"role": "user", "content": "hello"}], "max_tokens": 100}
    body |= {"stream": True} if UPSTREAMS[kind].is_streamed else {}
    given = json.dumps(asked | {"body": body, "connections": connections, "seconds": seconds})
    before = proxy.cpu_s()
    command = ["taskset", "-c", OTHER_CORE, sys.executable, "-m", "bench.proxy_load", given]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=seconds + 120, check=True)
    return figures(json.loads(done.stdout), proxy.cpu_s() - before, kind)


def figures(told: Mapping[str, Any], cpu_s: float, kind: str) -> Figures:
    """`told`: what bench/proxy_load printed."""
    found = {"calls": told["calls"], "failed": told["failed"]}
    if kind in ("chunks", "requests"):
        done = told["words" if kind == "chunks" else "calls"]
        return found | ({"per_core_s": round(done / cpu_s)} if cpu_s else {})
    times = sorted(told["first_ms" if kind == "streamed" else "whole_ms"])
    return found | {name: round(times[min(len(times) - 1, int(q * len(times)))], 3) for name, q in AT.items() if times}


AT = {"p50": 0.5, "p99": 0.99}


def added(found: Found, case: str, proxy: str, name: str) -> list[float]:
    """Per round: a quantile through the proxy less the same one without it, ms."""
    pairs = zip(found.get((case, proxy), []), found.get((case, "direct"), []), strict=False)
    return [round(through[name] - straight[name], 3) for through, straight in pairs if name in through]


def costs(found: Found, case: str, proxy: str) -> list[float]:
    return [one["per_core_s"] for one in found.get((case, proxy), []) if "per_core_s" in one]


def table(found: Found) -> Iterator[str]:
    yield f"proxy on core {PROXY_CORE}, upstream and client on core {OTHER_CORE}; medians over rounds [least, most]"
    yield f"{'case':12} {'proxy':8} {'added p50, ms':>24} {'added p99, ms':>27} {'per core-second':>28} {'failed':>6}"
    for (case, proxy), rounds in found.items():
        if proxy == "direct":
            continue
        is_cost = case.split()[0] in ("chunks", "requests")
        cells = [[], [], costs(found, case, proxy)] if is_cost else [added(found, case, proxy, q) for q in AT] + [[]]
        failed = sum(one["failed"] for one in rounds)
        wide = [f"{_cell(values):>{width}}" for values, width in zip(cells, (24, 27, 28), strict=True)]
        yield f"{case:12} {proxy:8} {' '.join(wide)} {failed:6}"


def _cell(values: Sequence[float]) -> str:
    if not values:
        return "-"
    return f"{statistics.median(values):,.6g} [{min(values):,.6g}, {max(values):,.6g}]"


def summary(found: Found) -> dict[str, Any]:
    """The last line. A ratio or an addition is None where its proxy was not measured."""
    sixteen = [added(found, f"{kind} 16", "ours", "p50") for kind in ("streamed", "plain")]
    return {
        "added_ms_p50_16": max((statistics.median(one) for one in sixteen if one), default=None),
        "ratio_to_litellm_chunks": _ratio(found, "chunks 64", "litellm"),
        "ratio_to_nginx_chunks": _ratio(found, "chunks 64", "nginx"),
        "ratio_to_litellm_requests": _ratio(found, "requests 64", "litellm"),
        "ratio_to_nginx_requests": _ratio(found, "requests 64", "nginx"),
        "failed": sum(one["failed"] for (_, proxy), rounds in found.items() if proxy == "ours" for one in rounds),
    }


def _ratio(found: Found, case: str, peer: str) -> float | None:
    """Of the medians of ours and a peer."""
    ours, others = costs(found, case, "ours"), costs(found, case, peer)
    return round(statistics.median(ours) / statistics.median(others), 3) if ours and others else None


def _versions(names: Sequence[str]) -> dict[str, str]:
    found = {"litellm": peers.version("litellm")} if "litellm" in names else {}
    return found | ({"nginx": proxies.nginx_version()} if "nginx" in names else {})


if __name__ == "__main__":
    main(sys.argv[1:])
