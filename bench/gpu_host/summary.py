"""python -m bench.gpu_host.summary OUT.parquet RUN_FOLDER ...

One row per run, tier and level, computed from the run folders alone, as a small Parquet file and a printed table. What
was sent in the warm-up (windows.json, else the client's own mark) does not count; a failed call counts as infinite in a
percentile. `validity` is what validate said of the tier (`armwise load` runs it), None where it has not. `tokens_per_s`
counts tokens by the server's usage, `chunks_per_s` what a tool without usage takes for tokens. Energy is of the whole
tier, by the GPU's own counter, over its calls that were answered or its good tasks.
"""

import math
import sys
from pathlib import Path
from typing import Any

from tasks import artifact, rows, run
from tasks.stats.percentile import nearest_rank

Row = dict[str, Any]
SHOWN = (
    *("arm", "at", "tier", "users", "calls", "failed", "ttft_ms_p50", "ttft_ms_p95", "tpot_ms_p50", "task_ms_p50"),
    *("task_ms_p95", "tasks", "tokens_per_s", "chunks_per_s", "tokens_per_chunk", "tier_j_per_success"),
    *("client_cpu_share", "window", "validity"),
)


def main() -> None:
    out, *folders = map(Path, sys.argv[1:])
    found = [row for folder in folders for row in _of_run(folder)]
    found.sort(key=lambda row: (row["tier"], row["level"], row["arm"], row["at"]))
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.Table.from_pylist(found), out)
    print("| " + " | ".join(SHOWN) + " |\n|" + "---|" * len(SHOWN))
    for row in found:
        print("| " + " | ".join(_words(row[name]) for name in SHOWN) + " |")


def _of_run(folder: Path) -> list[Row]:
    this = run.read(folder)
    effective = artifact.optional(folder, "effective")
    deployment, release = artifact.optional(folder, "deployment"), artifact.optional(folder, "release")
    memory = (release.get("proof") or {}).get("gpu_memory_mib") or {}
    about = {
        "run_id": this.run_id,
        "arm": this.arm_name,
        "at": this.run_id.rsplit("-", 2)[-2],
        "plan": this.plan_name,
        "repeat": this.repeat,
        "start_s": deployment.get("start_s"),
        "gpu_held_s": release.get("held_s"),
        "memory_before_mib": (memory.get("before") or [None])[0],
        "memory_after_mib": (memory.get("after") or [None])[0],
        "weight_bytes": effective.get("weight_bytes"),
        "kv_pool_tokens": effective.get("kv_pool_tokens"),
    }
    return [about | row for tier in run.TIERS for row in _of_tier(folder, tier)]


def _of_tier(folder: Path, tier: str) -> list[Row]:
    sent, played = rows.read(folder, tier, "requests"), rows.read(folder, tier, "tasks") if tier == "agent" else []
    told, valid = artifact.optional(folder / tier, "tier"), artifact.optional(folder, "validation")
    validity = ("invalid" if {tier, "run"} & set(valid["invalid_scopes"]) else "valid") if valid else None
    client = {level["level"]: level for level in artifact.optional(folder / tier, "client").get("levels", [])}
    windows = {w["level"]: w for w in artifact.optional(folder / tier, "windows").get("levels", [])}
    energy = _energy_j(rows.read(folder, tier, "engine"))
    done = sum(bool(row["is_success"]) for row in played) if tier == "agent" else sum(not r["failure"] for r in sent)
    found = []
    for level in sorted({row["level"] for row in sent}):
        calls = [row for row in sent if row["level"] == level and not row["is_warmup"] and not row["is_aborted"]]
        tasks = [row for row in played if row["level"] == level and not row["is_warmup"] and not row["is_aborted"]]
        if calls:
            about = {"tier": tier, "level": level, "users": calls[0]["users"], "tier_failure": told.get("failure")}
            about |= {"validity": validity}
            about |= {"tier_energy_j": energy, "tier_j_per_success": energy / done if energy and done else None}
            about |= {"window": windows.get(level, {}).get("state")}
            about |= {"client_cpu_share": client.get(level, {}).get("cpu_share")}
            found.append(about | _figures(calls, tasks))
    return found


def _energy_j(samples: list[Row]) -> float | None:
    read = [row["value"] for row in samples if row["source"] == "gpu" and row["name"] == "energy_j_total"]
    return max(read) - min(read) if read else None


def _figures(calls: list[Row], tasks: list[Row]) -> Row:
    good = [row for row in calls if row["failure"] is None]
    seconds = (max(r["t_end_ns"] for r in calls) - min(r["t_send_ns"] for r in calls)) / 1e9
    tokens, chunks = sum(row["output_tokens"] for row in good), sum(row["chunks"] for row in good)
    found: Row = {"calls": len(calls), "failed": len(calls) - len(good), "window_s": seconds}
    for name in ("ttft_ms", "tpot_ms", "e2e_ms"):
        found |= _percentiles(name, calls)
    found |= {"tasks": len(tasks), "tasks_succeeded": sum(bool(row["is_success"]) for row in tasks)}
    found |= _percentiles("task_ms", tasks)
    found |= {"output_tokens": tokens, "chunks": chunks, "tokens_per_chunk": tokens / chunks if chunks else None}
    return found | {"tokens_per_s": tokens / seconds, "chunks_per_s": chunks / seconds}


def _percentiles(name: str, of: list[Row]) -> Row:
    ordered = sorted(math.inf if row["failure"] else row[name] for row in of if row["failure"] or row[name] is not None)
    return {f"{name}_p{q}": ordered[nearest_rank(len(ordered), q / 100) - 1] if ordered else None for q in (50, 95, 99)}


def _words(value: Any) -> str:
    return (
        ""
        if value is None
        else f"{value:,.3g}"
        if isinstance(value, float) and abs(value) < 100
        else (f"{value:,.0f}" if isinstance(value, float) else str(value))
    )


if __name__ == "__main__":
    main()
