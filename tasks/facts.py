"""What a run folder shows about its own honesty: one row of facts per run, and one per tier. Reads files alone.

A fact that cannot be known is None, and then the expectation about it is not met: silence is no evidence.

Tokens (rule 4). The client adds up the `usage` of its calls; the engine's counters grow by what it did between the
first and the last scrape of the tier. Calls without usage (failed, cut off) cost the engine tokens that the client
cannot know: for each of them the engine may be ahead by one whole prompt, or one whole answer. Beyond that,
`*_tokens_off` is the difference as a share of the engine's count.
"""

from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

from tasks import artifact, catalog, engines, metrics, rows
from tasks.run import Run
from tasks.stage import ORDER
from tasks.stats.percentile import nearest_rank

Facts = dict[str, Any]
Rows = rows.Rows
MEASURING = ORDER[1 : ORDER.index("release") + 1]


def of_run(run: Run, samples: Rows) -> Facts:
    """One row. `samples` are the engine's of all tiers. Raises BrokenArtifact for a file that cannot be read."""
    effective, release = artifact.optional(run.folder, "effective"), artifact.optional(run.folder, "release")
    differences = effective.get("differences")
    left = (release.get("proof") or {}).get("processes_left")
    return {
        "driver": run.target.driver,
        "config_source": effective.get("source"),
        "settings_not_in_effect": None if differences is None else len(differences),
        "which": "; ".join(
            f"{d.get('flag')}: {d.get('requested')} became {d.get('effective')}" for d in differences or []
        ),
        **_gate(run),
        "unfinished_stages": ", ".join(_unfinished(run.folder)),
        "engine_starts": _starts(run, effective, samples),
        "counter_drops": _drops(_series(samples, _name(run, "generation_tokens_total"))),
        "processes_left": None if left is None else len(left),
        "released_at": release.get("released_at"),
        "is_deregistered": (release.get("proof") or {}).get("gateway_deregistered"),
    }


def of_tier(run: Run, tier: str, requests: Rows, samples: Rows) -> Facts:
    """One row of a tier."""
    client = artifact.optional(run.folder / tier, "client")
    ended = [row for row in requests if not row.get("is_aborted")]
    failed = sum(row.get("failure") is not None for row in ended)
    return {
        "requests": len(requests),
        "steady_requests": sum(not row.get("is_warmup") for row in ended),
        "failed_requests": failed,
        "failure_ratio": failed / len(ended) if ended else None,
        "schedule_delay_ms_p99": _p99(metrics.BY_NAME["schedule_delay_ms"].of(row) for row in requests),
        "loop_lag_ms_p99": client.get("loop_lag_ms_p99"),
        "client_cpu_share": client.get("cpu_share"),
        "cache_is_proven_empty": (artifact.optional(run.folder / tier, "tier").get("cache") or {}).get("is_proven"),
        **_tokens(run, requests, samples, "prompt_tokens_total", used="input_tokens"),
        **_tokens(run, requests, samples, "generation_tokens_total", used="output_tokens"),
    }


def _gate(run: Run) -> Facts:
    """A plan may go without a gate and say why; that is `ungated`, and is not the same as a gate that saw nothing."""
    if run.plan.gate.none_because is not None:
        return {"gate_verdict": "ungated", "gate_cases_missed": 0, "gate_reason": run.plan.gate.none_because}
    gate = artifact.optional(run.folder, "gate")
    cases, evaluated = gate.get("cases"), gate.get("evaluated")
    return {
        "gate_verdict": gate.get("verdict"),
        "gate_cases_missed": None if not cases or evaluated is None else cases - evaluated,
        "gate_reason": gate.get("reason"),
    }


def _unfinished(folder: Path) -> list[str]:
    """Stages up to release whose last try left no note of a good end: failed, killed or never begun."""
    states: dict[str, str] = {}
    for path in sorted((folder / "phases").glob("*.*.json"), key=lambda p: (len(p.name), p.name)):
        note = artifact.read(path)
        states[str(note.get("stage"))] = str(note.get("state"))
    return [stage for stage in MEASURING if states.get(stage) != "done"]


def _name(run: Run, metric: str) -> str | None:
    """What the engine calls a metric. None: it is not known to have it, and what rests on it cannot be known."""
    names: dict[str, str] = catalog.module_of(engines, run.arm.engine).METRICS
    return names.get(metric)


def _series(samples: Rows, name: str | None) -> list[float]:
    """One engine metric over time, summed over its labels. A metric without a name was never sampled."""
    totals: dict[float, float] = {}
    for row in samples:
        if row["source"] == "engine" and row["name"] == name and row["value"] is not None:
            totals[row["at"]] = totals.get(row["at"], 0.0) + row["value"]
    return [totals[at] for at in sorted(totals)]


def _starts(run: Run, effective: Facts, samples: Rows) -> int | None:
    """Different start times of the engine's process seen between verify and the end. None: never seen."""
    seen = {*_series(samples, _name(run, "process_start_time")), effective.get("process_start_time")} - {None}
    return len({round(float(at), 1) for at in seen if at is not None}) or None


def _drops(counter: list[float]) -> int | None:
    """How often a counter fell: it only grows while the process lives."""
    return sum(b < a for a, b in pairwise(counter)) if counter else None


def _tokens(run: Run, requests: Rows, samples: Rows, metric: str, *, used: str) -> Facts:
    """Client's sum, engine's growth, and by what share of the engine's they differ beyond what is accounted for."""
    name = used.partition("_")[0]
    counted = [row[used] for row in requests if row.get(used) is not None]
    counter = _series(samples, _name(run, metric))
    client, engine = sum(counted), counter[-1] - counter[0] if counter else None
    facts = {f"client_{name}_tokens": client, f"engine_{name}_tokens": engine, f"{name}_tokens_off": None}
    if not engine or not counted:
        return facts
    unknown = (len(requests) - len(counted)) * max(counted)
    ahead = engine - client
    return facts | {f"{name}_tokens_off": max(0.0, -ahead, ahead - unknown) / engine}


def _p99(values: Iterable[float | None]) -> float | None:
    ordered = sorted(value for value in values if value is not None)
    return ordered[nearest_rank(len(ordered), 0.99) - 1] if ordered else None
