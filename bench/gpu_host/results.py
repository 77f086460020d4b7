"""python -m bench.gpu_host.results PLAN LEVELS.parquet BLOCKS.out ...

What the table of summary.py says about the questions of a GPU run:

1. Each arm against the default, by tasks/stats/effect.py: Student's t over the pairs of mirrored blocks (control arm
   arm control, or the mirror of it), corrected by Holm over all indicators of the arm, against the noise floor of the
   control's own runs. Only pairs whose tiers are both valid count; the others are shown in brackets. `by blocks`: the
   same interval over the means of whole blocks, which counts what drifts within a block once. An arm without a block
   is shown against the control's run of the same repeat, which had the same workload, no more.
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

from tasks.report import deployments
from tasks.stats import effect

CONTROL, CLAIMED_ARM = "qwen2.5-3b-dummy-default", "qwen2.5-3b-dummy-no-chunked-prefill"
CLAIM = 15.0 / 5.8
Where = tuple[str, int, str]  # tier, users, indicator
INDICATORS: tuple[Where, ...] = (
    ("agent", 32, "task_ms_p95"),
    ("agent", 32, "task_ms_p50"),
    ("agent", 4, "task_ms_p95"),
)
INDICATORS += (("gateway", 64, "ttft_ms_p95"), ("gateway", 64, "e2e_ms_p95"), ("gateway", 16, "ttft_ms_p95"))
BESIDE = (("gateway", 1, "tpot_ms_p50"), ("agent", 32, "tier_j_per_success"), ("gateway", 64, "tier_j_per_success"))
Row = dict[str, Any]
Run = tuple[str, str]  # arm, run id; in time order
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


def _arm(found: list[Row], runs: list[Run], arm: str) -> list[str]:
    pairs = deployments.pairs([(a == arm, run_id) for a, run_id in runs if a in (CONTROL, arm)])
    if not pairs:
        return _unpaired(found, runs, arm)
    head = "| tier | users | indicator | pair ratios, arm by control | mean | 95 % by pairs | 95 % by blocks | floor |"
    lines = [head + " p, Holm | valid pairs | verdict |", "|" + "---|" * 11]
    asked = [where for where in INDICATORS if _has(found, where)]
    each = {where: _logs(found, pairs, where) for where in asked}
    ps = [_of(logs).p if len(logs) > 1 else 1.0 for logs in each.values()]
    for where, p in zip(asked, effect.holm(ps), strict=True):
        cells = [*where, _shown_pairs(found, pairs, where), *_verdict(found, runs, pairs, where, p)]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    for where in (one for one in BESIDE if _has(found, one)):
        logs = _logs(found, pairs, where)
        cells = [*where, _shown_pairs(found, pairs, where), _times(sum(logs) / len(logs)) if logs else ""]
        lines.append("| " + " | ".join(map(str, [*cells, *[""] * 4, len(logs), "no hypothesis"])) + " |")
    return [*lines, "", _claim(each[INDICATORS[0]])] if arm == CLAIMED_ARM else lines


def _has(found: list[Row], where: Where) -> bool:
    return any((row["tier"], row["users"]) == where[:2] for row in found)


def _verdict(found: list[Row], runs: list[Run], pairs: list[Pair], where: Where, p: float) -> list[Any]:
    """From the mean to the verdict; where too few pairs are valid, the verdict alone."""
    logs = _logs(found, pairs, where)
    blocks = [_logs(found, pairs[at : at + 2], where) for at in range(0, len(pairs), 2)]
    control = [
        _value(found, run_id, where) for a, run_id in runs if a == CONTROL and _is_valid(found, run_id, *where[:2])
    ]
    if len(logs) < 2 or len(control) < 2:
        return [*[""] * 5, len(logs), f"INCONCLUSIVE: valid pairs {len(logs)}, needed {effect.LEAST_PAIRS}"]
    told = effect.judged(_of(logs), p, effect.floor([control], len(logs)), better="lower", margin=deployments.MARGIN)
    whole = [sum(block) / 2 for block in blocks if len(block) == 2]
    by_blocks = _range(_of(whole)) if len(whole) > 1 else ""
    cells = [_times(told.effect.mean), _range(told.effect), by_blocks, f"±{told.floor:.1%}", f"{p:.3g}", len(logs)]
    return [*cells, f"{told.outcome}: {told.reason}"]


def _of(logs: Sequence[float]) -> effect.Effect:
    return effect.paired([(1.0, math.exp(x)) for x in logs])


def _logs(found: list[Row], pairs: Sequence[Pair], where: Where) -> list[float]:
    """Of the pairs both of whose tiers validate called valid."""
    return [
        math.log(_value(found, arm, where) / _value(found, control, where))
        for control, arm in pairs
        if _is_valid(found, control, *where[:2]) and _is_valid(found, arm, *where[:2])
    ]


def _shown_pairs(found: list[Row], pairs: Sequence[Pair], where: Where) -> str:
    words = []
    for control, arm in pairs:
        ratio = f"{_value(found, arm, where) / _value(found, control, where):.3f}"
        words.append(ratio if _logs(found, [(control, arm)], where) else f"({ratio})")
    return ", ".join(words)


def _unpaired(found: list[Row], runs: list[Run], arm: str) -> list[str]:
    lines = [
        "| tier | users | indicator | ratios to the control's same repeat | n | blocks | verdict |",
        "|" + "---|" * 7,
    ]
    repeat_of = {row["run_id"]: row["repeat"] for row in found}
    control_of = {repeat_of[run_id]: run_id for a, run_id in runs if a == CONTROL}
    pairs = [
        (control_of[repeat_of[run_id]], run_id) for a, run_id in runs if a == arm and repeat_of[run_id] in control_of
    ]
    for where in (one for one in (*INDICATORS, *BESIDE) if _has(found, one)):
        cells = [*where, _shown_pairs(found, pairs, where), len(pairs), 0, "INCONCLUSIVE: no mirrored block"]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return lines


def _claim(logs: Sequence[float]) -> str:
    """Refuted needs as many valid pairs as any verdict."""
    about = f"The claimed ratio {CLAIM:.2f} of {' '.join(map(str, INDICATORS[0]))}"
    if len(logs) < effect.LEAST_PAIRS:
        return f"{about}: not settled, {len(logs)} valid pairs of the {effect.LEAST_PAIRS} needed."
    told = _of(logs)
    is_in = told.lower <= math.log(CLAIM) <= told.upper
    return f"{about} {'is' if is_in else 'is not'} in the interval, {_range(told)}: {'not ' * is_in}refuted."


def _value(found: list[Row], run_id: str, where: Where) -> float:
    """Raises SystemExit where a tier failed: its rows are no measurement."""
    tier, users, name = where
    row = _row(found, run_id, tier, users)
    if row["tier_failure"] is not None:
        sys.exit(f"results: {run_id}: tier {tier} failed: {row['tier_failure']}")
    return float(row[name])


def _row(found: list[Row], run_id: str, tier: str, users: int) -> Row:
    (row,) = (r for r in found if (r["run_id"], r["tier"], r["users"]) == (run_id, tier, users))
    return row


def _is_valid(found: list[Row], run_id: str, tier: str, users: int) -> bool:
    return _row(found, run_id, tier, users).get("validity") == "valid"


def _times(log: float) -> str:
    return f"{math.exp(log):.3f}"


def _range(of: effect.Effect) -> str:
    return f"{math.exp(of.lower):.3f} to {math.exp(of.upper):.3f}"


def _runs(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines() if line.startswith('{"arm"')]


def seconds(runs: list[Row]) -> Row:
    """Seconds by use over all runs; `load_share` is load / (held - start)."""
    total = {name: sum(row[f"{name}_s"] or 0.0 for row in runs) for name in ("start", "load", "held", "wall")}
    share = round(total["load"] / (total["held"] - total["start"]), 3)
    return {"runs": len(runs)} | {f"{k}_s": round(v, 1) for k, v in total.items()} | {"load_share": share}


if __name__ == "__main__":
    main()
