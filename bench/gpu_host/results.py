"""python -m bench.gpu_host.results PLAN LEVELS.parquet BLOCKS.out ...

What the table of summary.py says about the questions of a GPU run:

1. Each arm against the default. Runs in mirrored order (control arm arm control, or the mirror of it) are a block of
   two pairs of neighbours. Per pair the log ratio of an indicator, and the two-sided 95 % interval of its mean by t on
   the pairs; the same on the blocks, which counts what drifts within a block once. Holm over all indicators of an arm.
   The floor is what the control does against itself: the 95 % limit of a mean of so many ratios of two control runs, by
   t from the spread of its own runs. Better or worse needs 4 pairs whose tiers are all valid, a Holm-corrected p below
   0.05 and an effect beyond the floor; anything else is INCONCLUSIVE. All pairs are shown, valid or not. An arm without
   a block is shown against the control's run of the same repeat, which had the same workload, no more.
2. The claim that without chunked prefill the agent tail is 15.0 / 5.8 times as long: is that ratio in the interval?
3. Tokens per second by usage and by chunks, side by side.
4. Where the GPU's seconds went, from the lines that blocks.py printed.
"""

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

CONTROL, CLAIMED_ARM = "qwen2.5-3b-dummy-default", "qwen2.5-3b-dummy-no-chunked-prefill"
CLAIM = 15.0 / 5.8
INDICATORS: tuple[tuple[str, int, str], ...] = (
    ("agent", 32, "task_ms_p95"),
    ("agent", 32, "task_ms_p50"),
    ("agent", 4, "task_ms_p95"),
)
INDICATORS += (("gateway", 64, "ttft_ms_p95"), ("gateway", 64, "e2e_ms_p95"), ("gateway", 16, "ttft_ms_p95"))
BESIDE = (("gateway", 1, "tpot_ms_p50"), ("agent", 32, "tier_j_per_success"), ("gateway", 64, "tier_j_per_success"))
LEAST_PAIRS = 4
Row = dict[str, Any]
Pair = tuple[str, str]  # run ids: control, arm


def main() -> None:
    from pyarrow import parquet

    plan, table, *logs = sys.argv[1:]
    found = [row for row in parquet.read_table(table).to_pylist() if row["plan"] == plan]
    runs = [(arm, run_id) for _, arm, run_id in sorted({(row["at"], row["arm"], row["run_id"]) for row in found})]
    for arm in dict.fromkeys(arm for arm, _ in runs if arm != CONTROL):
        print(f"\n### {arm}\n")
        print("\n".join(_arm(found, runs, arm)))
    print(
        "\n| arm | run | tier | users | tokens/s by usage | by chunks | usage / chunks |\n|---|---|---|---|---|---|---|"
    )
    for row in found:
        if row["users"] > 1:
            words = [row["arm"], row["at"], row["tier"], row["users"]]
            words += [f"{row['tokens_per_s']:,.0f}", f"{row['chunks_per_s']:,.0f}", f"{row['tokens_per_chunk']:.2f}"]
            print("| " + " | ".join(map(str, words)) + " |")
    print("\n" + json.dumps(seconds([json.loads(line) for path in logs for line in _runs(Path(path))])))


def _arm(found: list[Row], runs: list[tuple[str, str]], arm: str) -> list[str]:
    blocks = mirrored([(a, b) for a, b in runs if a in (CONTROL, arm)], arm)
    if not blocks:
        return _unpaired(found, runs, arm)
    head = "| tier | users | indicator | pair ratios, arm by control | mean | 95 % by pairs | 95 % by blocks | floor |"
    lines = [head + " p, Holm | pairs | valid | blocks | verdict |", "|" + "---|" * 13]
    each = [_ratios(found, blocks, *where) for where in INDICATORS]
    corrected = holm([_p([x for block in logs for x in block]) for logs in each])
    for where, logs, p in zip(INDICATORS, each, corrected, strict=True):
        control = [_value(found, run_id, *where) for a, run_id in runs if a == CONTROL]
        lines.append(
            _compared(where, logs, p, floor_of(control, sum(map(len, logs))), _valid(found, blocks, *where[:2]))
        )
    for where in BESIDE:
        pairs = [x for block in _ratios(found, blocks, *where) for x in block]
        cells = [*where, _shown(pairs), _times(sum(pairs) / len(pairs)), *[""] * 4, len(pairs)]
        cells += [_valid(found, blocks, *where[:2]), len(blocks), "no hypothesis"]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    if arm == CLAIMED_ARM:
        lines += ["", _claim([x for block in each[0] for x in block], _valid(found, blocks, *INDICATORS[0][:2]))]
    return lines


def mirrored(runs: Sequence[tuple[str, str]], arm: str) -> list[list[Pair]]:
    """Blocks of runs in time order, each two pairs (control's run, arm's run); what fits no block is left out."""
    orders = ([CONTROL, arm, arm, CONTROL], [arm, CONTROL, CONTROL, arm])
    blocks, at = [], 0
    while at + 4 <= len(runs):
        four = runs[at : at + 4]
        if [a for a, _ in four] in orders:
            ids = [(run_id, a) for a, run_id in four]
            halves = (ids[:2], ids[2:])
            blocks.append([(x[0], y[0]) if x[1] == CONTROL else (y[0], x[0]) for x, y in halves])
            at += 4
        else:
            at += 1
    return blocks


def holm(ps: Sequence[float]) -> list[float]:
    """p-values corrected for all of them being looked at (Holm, Scandinavian Journal of Statistics 6, 1979)."""
    corrected, worst = [0.0] * len(ps), 0.0
    for rank, i in enumerate(sorted(range(len(ps)), key=lambda i: ps[i])):
        worst = max(worst, min(1.0, ps[i] * (len(ps) - rank)))
        corrected[i] = worst
    return corrected


def floor_of(control: Sequence[float], pairs: int) -> float:
    """The 95 % limit of the mean log ratio of so many pairs, if both of each pair were the control."""
    from scipy import stats

    logs = [math.log(value) for value in control]
    mean = sum(logs) / len(logs)
    spread = math.sqrt(sum((x - mean) ** 2 for x in logs) / (len(logs) - 1))
    return float(stats.t.ppf(0.975, len(logs) - 1) * spread * math.sqrt(2 / pairs))


def interval(logs: Sequence[float]) -> tuple[float, float]:
    """Two-sided 95 % interval of the mean, by t."""
    from scipy import stats

    n, mean = len(logs), sum(logs) / len(logs)
    half = float(stats.t.ppf(0.975, n - 1) * math.sqrt(sum((x - mean) ** 2 for x in logs) / (n - 1) / n))
    return mean - half, mean + half


def _p(logs: Sequence[float]) -> float:
    from scipy import stats

    return float(stats.ttest_1samp(logs, 0.0).pvalue)


def _compared(where: tuple[str, int, str], logs: list[list[float]], p: float, floor: float, valid: int) -> str:
    pairs, blocks = [x for block in logs for x in block], [sum(block) / len(block) for block in logs]
    mean = sum(pairs) / len(pairs)
    by_blocks = _range(interval(blocks)) if len(blocks) > 1 else ""
    is_told = valid >= LEAST_PAIRS and p < 0.05 and abs(mean) > floor
    verdict = ("arm is higher" if mean > 0 else "arm is lower") if is_told else "INCONCLUSIVE: no difference shown"
    if valid < LEAST_PAIRS:
        verdict = f"INCONCLUSIVE: valid pairs {valid}, needed {LEAST_PAIRS}"
    cells = [*where, _shown(pairs), _times(mean), _range(interval(pairs)), by_blocks, _range((-floor, floor))]
    return "| " + " | ".join(map(str, [*cells, f"{p:.2f}", len(pairs), valid, len(blocks), verdict])) + " |"


def _unpaired(found: list[Row], runs: list[tuple[str, str]], arm: str) -> list[str]:
    lines = [
        "| tier | users | indicator | ratios to the control's same repeat | n | blocks | verdict |",
        "|" + "---|" * 7,
    ]
    repeat_of = {row["run_id"]: row["repeat"] for row in found}
    control_of = {repeat_of[run_id]: run_id for a, run_id in runs if a == CONTROL}
    pairs = [
        (control_of[repeat_of[run_id]], run_id) for a, run_id in runs if a == arm and repeat_of[run_id] in control_of
    ]
    for where in (*INDICATORS, *BESIDE):
        ratios = _ratios(found, [pairs], *where)[0]
        cells = [*where, _shown(ratios), len(ratios), 0, "INCONCLUSIVE: no mirrored block"]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return lines


def _claim(logs: Sequence[float], valid: int) -> str:
    """Refuted needs as many valid pairs as any verdict; the interval is of all pairs."""
    low, high = interval(logs)
    is_in = low <= math.log(CLAIM) <= high
    outcome = "refuted" if valid >= LEAST_PAIRS and not is_in else f"not settled, valid pairs {valid} of {len(logs)}"
    found = f"{'is' if is_in else 'is not'} in the interval of all pairs, {_range((low, high))}"
    return f"The claimed ratio {CLAIM:.2f} of {' '.join(map(str, INDICATORS[0]))} {found}: {outcome}."


def _ratios(found: list[Row], blocks: list[list[Pair]], tier: str, users: int, name: str) -> list[list[float]]:
    at = (tier, users, name)
    return [[math.log(_value(found, arm, *at) / _value(found, control, *at)) for control, arm in b] for b in blocks]


def _value(found: list[Row], run_id: str, tier: str, users: int, name: str) -> float:
    """Raises SystemExit where a tier failed: its rows are no measurement."""
    row = _row(found, run_id, tier, users)
    if row["tier_failure"] is not None:
        sys.exit(f"results: {run_id}: tier {tier} failed: {row['tier_failure']}")
    return float(row[name])


def _row(found: list[Row], run_id: str, tier: str, users: int) -> Row:
    (row,) = (r for r in found if (r["run_id"], r["tier"], r["users"]) == (run_id, tier, users))
    return row


def _valid(found: list[Row], blocks: list[list[Pair]], tier: str, users: int) -> int:
    """Pairs both of whose tiers validate called valid."""
    pairs = [pair for block in blocks for pair in block]
    return sum(all(_row(found, one, tier, users).get("validity") == "valid" for one in pair) for pair in pairs)


def _times(log: float) -> str:
    return f"{math.exp(log):.3f}"


def _shown(logs: Sequence[float]) -> str:
    return ", ".join(map(_times, logs))


def _range(logs: tuple[float, float]) -> str:
    return f"{math.exp(logs[0]):.2f} to {math.exp(logs[1]):.2f}"


def _runs(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines() if line.startswith('{"arm"')]


def seconds(runs: list[Row]) -> Row:
    """Seconds by use over all runs; `load_share` is load / (held - start)."""
    total = {name: sum(row[f"{name}_s"] or 0.0 for row in runs) for name in ("start", "load", "held", "wall")}
    share = round(total["load"] / (total["held"] - total["start"]), 3)
    return {"runs": len(runs)} | {f"{k}_s": round(v, 1) for k, v in total.items()} | {"load_share": share}


if __name__ == "__main__":
    main()
