"""A run folder as rows: table -> rows, read from files alone.

A folder may be of a run that failed half way: what is missing is no row, what is broken is a BrokenArtifact. The phases
`load` and `judge` themselves are left out, so that loading a folder again finds the same rows.

The state of a run: the first stage, in order, whose last try failed or that left no note. A stage that was killed
leaves none. Where the golden gate said no, the tiers were rightly skipped, and the run is `gate_failed`.
"""

import hashlib
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tasks import artifact, metrics, record, rows
from tasks.document import UNRESOLVED
from tasks.run import TIERS, Run
from tasks.stage import ORDER

Row = dict[str, Any]
Tables = dict[str, list[Row]]
MEASURING = ORDER[1 : ORDER.index("load")]
LATER = ("load", "judge")
SUFFIXES = (".json", ".jsonl", ".parquet")
OFFERED = ("level", "streams", "rate_per_s", "chunks_per_s", "processes")
LOAD = ("users", "rate_per_s", "arrivals", "burstiness", "ramp_to_per_s", "duration_s", "overload")
WINDOW = (
    *("level", "state", "reason", "method", "warmup_ends_ns", "window_start_ns", "window_end_ns", "window_s"),
    *("requests", "effective_n", "trend_per_minute", "trend_lower", "trend_upper"),
)
PROCESS = (
    "process",
    "pid",
    "cpu_share",
    *(f"{name}_{which}" for name in ("loop_lag_ms", "schedule_delay_ms") for which in ("p50", "p99", "max")),
)


def measured(run: Run) -> Tables:
    """Everything but what was judged. Raises BrokenArtifact."""
    phases = list(_phases(run.folder))
    return {
        "run": [_run(run, phases)],
        "phase": phases,
        "golden": list(_golden(run.folder)),
        "request": [row for tier in TIERS for row in _tier(run.folder, tier, "requests")],
        "agent_task": list(_tier(run.folder, "agent", "tasks")),
        "engine_sample": [row for tier in TIERS for row in _samples(run.folder, tier)],
        "calibration": [row for tier in TIERS for row in _calibration(run.folder, tier)],
        "client_process": [row for tier in TIERS for row in _client_processes(run.folder, tier)],
        "tier_level": [row for tier in TIERS for row in _levels(run, tier)],
        "expectation": [
            {"number": number} | {key: _words(value) for key, value in row.items()}
            for number, row in enumerate(artifact.optional(run.folder, "validation").get("expectations", []), start=1)
        ],
    }


def judged(run: Run) -> Tables:
    """What judgement.json says; no rows before it is there. Raises BrokenArtifact."""
    found = artifact.optional(run.folder, "judgement")
    return {table: found.get(f"{table}s", []) for table in ("percentile", "verdict", "cost")}


def digests(folder: Path) -> tuple[str, str | None]:
    """sha256 of the files that `measured` reads and of the one that `judged` reads (None: not judged)."""
    judgement = folder / "judgement.json"
    files = [p for p in sorted(folder.rglob("*")) if p.suffix in SUFFIXES and p != judgement and p.is_file()]
    total = hashlib.sha256()
    for path in files:
        name = path.relative_to(folder)
        if not path.name.startswith(".") and not (name.parts[0] == "phases" and path.name.startswith(LATER)):
            total.update(f"{name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\0".encode())
    return total.hexdigest(), hashlib.sha256(judgement.read_bytes()).hexdigest() if judgement.exists() else None


def ended_at(phases: list[Row]) -> float | None:
    return max((phase["ended_at"] for phase in phases), default=None)


def _run(run: Run, phases: list[Row]) -> Row:
    deployment, release = artifact.optional(run.folder, "deployment"), artifact.optional(run.folder, "release")
    state, failed_stage, error = _outcome(run, phases)
    return {
        **_identity(run),
        "state": state,
        "failed_stage": failed_stage,
        "error": error,
        **_validity(run.folder),
        **_gate(run),
        **_effective(run.folder, deployment),
        "image": deployment.get("image"),
        "argv": deployment.get("argv"),
        "gpu_model": deployment.get("gpu_model"),
        "started_at": deployment.get("started_at"),
        "ready_at": deployment.get("ready_at"),
        "start_s": deployment.get("start_s"),
        "released_at": release.get("released_at"),
        "gpu_held_s": release.get("held_s"),
        "ended_at": ended_at(phases),
        "workload_sha256": workload(run.folder),
        "documents": {name: artifact.optional(run.folder, name) for name in ("run", "lease", "deployment", "release")},
    }


def _identity(run: Run) -> Row:
    price = run.price.usd_per_hour
    return {
        "arm": run.arm_name,
        "arm_digest": run.arm.digest(),
        "technique": run.technique,
        "engine": run.arm.engine,
        "question": run.arm.question,
        "control": run.arm.control,
        "plan": run.plan_name,
        "plan_digest": run.plan.digest(),
        "target": run.target_name,
        "driver": run.target.driver,
        "slot": run.slot,
        "repeat": run.repeat,
        "seed": run.seed,
        "claimed_at": run.claimed_at,
        "price_key": run.arm.price,
        "price_usd_per_hour": None if price == UNRESOLVED else price,
        "price_is_nominal": run.price.is_nominal,
    }


def _validity(folder: Path) -> Row:
    validation = artifact.optional(folder, "validation")
    reasons = validation.get("reasons", ["not validated: validation.json is missing"])
    if not validation.get("is_valid") and not reasons:
        reasons = ["validation.json says invalid and gives no reason"]
    scopes = validation.get("invalid_scopes") or ["run"]
    return {
        "is_valid": not reasons,
        "invalid_reasons": reasons,
        "invalid_scopes": scopes if reasons else [],
        "findings": validation.get("findings", []),
    }


def _gate(run: Run) -> Row:
    gate = artifact.optional(run.folder, "gate")
    return {
        "is_gated": run.plan.gate.none_because is None,
        "gate_verdict": gate.get("verdict"),
        "gate_reason": gate.get("reason") or run.plan.gate.none_because,
        "golden_set": gate.get("golden_set"),
        "golden_sha256": gate.get("golden_sha256"),
    }


def _effective(folder: Path, deployment: Row) -> Row:
    """What runs: versions are those of the host, known at deploy, and those that the engine told verify."""
    found = artifact.optional(folder, "effective")
    keys = ("effective", "differences", "unverified", "weight_bytes", "kv_pool_tokens")
    versions = (deployment.get("versions") or {}) | (found.get("versions") or {})
    return {
        "effective_source": found.get("source"),
        "versions": versions or None,
        **{key: found.get(key) for key in keys},
    }


def workload(folder: Path) -> str | None:
    """Of both tiers together. None if one of them did not say."""
    found = [artifact.optional(folder / tier, "tier").get("workload_sha256") for tier in TIERS]
    return None if None in found else hashlib.sha256("".join(map(str, found)).encode()).hexdigest()


def _outcome(run: Run, phases: list[Row]) -> tuple[str, str | None, str | None]:
    """(state, failed stage, its error)."""
    gate = artifact.optional(run.folder, "gate")
    is_refused = run.plan.gate.none_because is None and gate.get("verdict") in ("FAIL", "INVALID")
    last = {phase["stage"]: phase for phase in sorted(phases, key=lambda phase: phase["try"])}
    for stage in MEASURING:
        if is_refused and stage.startswith("drive"):
            continue
        if stage not in last:
            return "failed", stage, f"{stage} left no note of its end: it was killed, or never begun"
        if last[stage]["state"] != "done":
            return "failed", stage, last[stage]["error"]
    return ("gate_failed" if is_refused else "done"), None, None


def _phases(folder: Path) -> Iterator[Row]:
    for path in sorted((folder / "phases").glob("*.*.json")):
        stage, number, _ = path.name.split(".")
        if stage not in LATER and number.isdigit():
            note = artifact.read(path)
            try:
                told = {key: note[key] for key in ("state", "began_at", "ended_at", "error")}
            except KeyError as error:
                raise artifact.BrokenArtifact(f"{path}: lacks {error}") from error
            yield {"stage": stage, "try": int(number)} | told


def _golden(folder: Path) -> Iterator[Row]:
    for row in artifact.read_rows(folder / "golden.jsonl"):
        yield {name: row.get(name) for name in record.GOLDEN}


def _tier(folder: Path, tier: str, kind: rows.Kind) -> Iterator[Row]:
    of: Any = "task" if kind == "tasks" else "request"
    for row in rows.read(folder, tier, kind):
        yield metrics.computed(row, of) | {"tier": tier} | row


def _samples(folder: Path, tier: str) -> Iterator[Row]:
    for row in rows.read(folder, tier, "engine"):
        sample = {name: row.get(name) for name in ("at", "source", "name", "value")}
        yield sample | {"tier": tier, "labels": _labels(row.get("labels"))}


def _calibration(folder: Path, tier: str) -> Iterator[Row]:
    """One row per path; of a path that was not measured, only that it was not."""
    told = artifact.optional(folder / tier, "calibration")
    if not told:
        return
    shared = {name: told.get(name) for name in ("is_enough", "not_calibrated_because", "reason", "fault")}
    shared |= {name: (told.get("offered") or {}).get(name) for name in OFFERED}
    for path in ("direct", "through_gateway"):
        measured = {name: value for name, value in (told.get(path) or {}).items() if name != "processes"}
        yield {"tier": tier, "path": path} | shared | measured


def _client_processes(folder: Path, tier: str) -> Iterator[Row]:
    """One row per level and process of the client under load."""
    for level in artifact.optional(folder / tier, "client").get("levels", []):
        for process in level.get("processes") or [level | {"process": 0}]:
            yield {"tier": tier, "level": level.get("level")} | {name: process.get(name) for name in PROCESS}


def _levels(run: Run, tier: str) -> Iterator[Row]:
    """One row per level that has a window: what was offered, and whether it stood still."""
    planned = getattr(run.plan.tiers, tier).levels
    for level in artifact.optional(run.folder / tier, "windows").get("levels", []):
        offered = planned[level["level"] - 1].model_dump() if level["level"] <= len(planned) else {}
        yield {"tier": tier} | {name: offered.get(name) for name in LOAD} | {name: level.get(name) for name in WINDOW}


def _labels(found: Any) -> Any:
    """Parquet gives back a mapping as text, as pairs, or with a null for each label that other rows have."""
    if isinstance(found, str):
        return json.loads(found or "{}")
    pairs = found.items() if isinstance(found, dict) else found or []
    return {key: value for key, value in pairs if value is not None}


def _words(value: Any) -> Any:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return value if value is None or isinstance(value, str | bool | int) else json.dumps(value, default=str)


def clock(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, tz=UTC).isoformat(timespec="seconds")
