"""python -m bench.gpu_host.results LEVELS.parquet BLOCKS.out ...

What the table of summary.py says about the questions of a first GPU run:

1. no chunked prefill against the default: runs paired in the order in which they were made (each run of one arm with
   its neighbour of the other), the log ratio of each indicator per pair, and the two-sided 95 % interval of its mean by
   t on the pairs. A verdict needs an even number of at least 4 blocks whose tier did not fail; else INCONCLUSIVE;
2. tokens per second by usage and by chunks, side by side;
3. where the GPU's seconds went, from the lines that blocks.py printed.
"""

import json
import math
import sys
from pathlib import Path
from typing import Any

CONTROL, ARM = "qwen2.5-3b-dummy-default", "qwen2.5-3b-dummy-no-chunked-prefill"
INDICATORS = (("agent", 32, "task_ms_p95"), ("agent", 32, "task_ms_p50"), ("agent", 4, "task_ms_p95"))
INDICATORS += (("gateway", 64, "ttft_ms_p95"), ("gateway", 64, "e2e_ms_p95"), ("gateway", 16, "ttft_ms_p95"))
LEAST_BLOCKS = 4
Row = dict[str, Any]


def main() -> None:
    from pyarrow import parquet

    found = parquet.read_table(sys.argv[1]).to_pylist()
    pairs = _pairs(found)
    print("| tier | users | indicator | ratios, arm by control | mean | 95 % of the mean | n | whole | verdict |")
    print("|---|---|---|---|---|---|---|---|---|")
    for tier, users, name in INDICATORS:
        print(_compared(found, pairs, tier, users, name))
    print(
        "\n| arm | run | tier | users | tokens/s by usage | by chunks | usage / chunks |\n|---|---|---|---|---|---|---|"
    )
    for row in found:
        if row["plan"] == "gpu-first" and row["users"] > 1:
            words = [row["arm"], row["at"], row["tier"], row["users"]]
            words += [f"{row['tokens_per_s']:,.0f}", f"{row['chunks_per_s']:,.0f}", f"{row['tokens_per_chunk']:.2f}"]
            print("| " + " | ".join(map(str, words)) + " |")
    print("\n" + json.dumps(_seconds([json.loads(line) for path in sys.argv[2:] for line in _runs(Path(path))])))


def _pairs(found: list[Row]) -> list[tuple[str, str]]:
    """(control's run, arm's run), by time: neighbours."""
    runs = sorted({(row["at"], row["arm"], row["run_id"]) for row in found if row["arm"] in (CONTROL, ARM)})
    return [
        (a[2], b[2]) if a[1] == CONTROL else (b[2], a[2])
        for a, b in zip(runs[::2], runs[1::2], strict=False)
        if a[1] != b[1]
    ]


def _compared(found: list[Row], pairs: list[tuple[str, str]], tier: str, users: int, name: str) -> str:
    from scipy import stats

    at = {row["run_id"]: row for row in found if row["tier"] == tier and row["users"] == users}
    logs = [math.log(at[arm][name] / at[control][name]) for control, arm in pairs]
    n, mean = len(logs), sum(logs) / len(logs)
    half = stats.t.ppf(0.975, n - 1) * math.sqrt(sum((x - mean) ** 2 for x in logs) / (n - 1) / n)
    whole = sum(all(at[one]["tier_failure"] is None for one in pair) for pair in pairs)
    verdict = (
        "by rule" if whole >= LEAST_BLOCKS and whole % 2 == 0 else f"INCONCLUSIVE: {whole} whole of {n} blocks, needs 4"
    )
    ratios = ", ".join(f"{math.exp(x):.3f}" for x in logs)
    interval = f"{math.exp(mean - half):.2f} to {math.exp(mean + half):.2f}"
    return f"| {tier} | {users} | {name} | {ratios} | {math.exp(mean):.3f} | {interval} | {n} | {whole} | {verdict} |"


def _runs(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines() if line.startswith('{"arm"')]


def _seconds(runs: list[Row]) -> Row:
    total = {name: sum(row[f"{name}_s"] or 0.0 for row in runs) for name in ("start", "load", "held", "wall")}
    after = total["held"] - total["start"]
    return (
        {"runs": len(runs)} | {f"{k}_s": round(v, 1) for k, v in total.items()} | {"load_share": total["load"] / after}
    )


if __name__ == "__main__":
    main()
