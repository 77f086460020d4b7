"""What a run folder shows about its own honesty: one row of facts per run, and one per tier. Reads files alone.

A fact that cannot be known is None, and then the expectation about it is not met: silence is no evidence.

Tokens (rule 4). The client adds up the `usage` of its calls; the engine's counters grow by what it did between the
first and the last scrape of the tier. Calls without usage (failed, cut off) cost the engine tokens that the client
cannot know: for each of them the engine may be ahead by one whole prompt, or one whole answer. Beyond that,
`*_tokens_off` is the difference as a share of the engine's count.

Tokens per chunk (rule 5) are stated of all good calls, and separately of answers in plain text: a tool-call parser
holds tokens back until it knows the tool's name, so calls of tools come in fewer chunks on any server.
"""

from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from tasks import alike, artifact, behaviour, catalog, engines, metrics, rows
from tasks.agent import golden
from tasks.document import InvalidDocument
from tasks.engines import _weights
from tasks.run import Run
from tasks.stage import ORDER
from tasks.stats.percentile import nearest_rank

Facts = dict[str, Any]
Rows = rows.Rows
MEASURING = ORDER[1 : ORDER.index("release") + 1]
LOG_ROUNDING_BYTES = 0.005 * 2**30


def of_run(run: Run, samples: Mapping[str, Rows], requests: Mapping[str, Rows], alike_to: Facts | None = None) -> Facts:
    """One row. `samples` of the engine and `requests` by tier. Raises BrokenArtifact for a file that cannot be read."""
    effective, release = artifact.optional(run.folder, "effective"), artifact.optional(run.folder, "release")
    differences, proof = effective.get("differences"), release.get("proof") or {}
    left, scraped = proof.get("processes_left"), [row for tier in samples.values() for row in tier]
    return {
        "driver": run.target.driver,
        "config_source": effective.get("source"),
        "settings_not_in_effect": None if differences is None else len(differences),
        "which": "; ".join(
            f"{d.get('flag')}: {d.get('requested')} became {d.get('effective')}" for d in differences or []
        ),
        **_weigh(run, effective),
        **_behaviour(run, effective, samples, requests),
        **_gate(run),
        "unfinished_stages": ", ".join(_unfinished(run.folder)),
        "engine_starts": _starts(run, effective, scraped),
        "counter_drops": _drops(_series(scraped, _name(run, "generation_tokens_total"))),
        "processes_left": None if left is None else len(left),
        "has_gpu": run.arm.resources.gpus > 0,
        "gpu_memory_left_mib": _memory_left(proof.get("gpu_memory_mib")),
        "released_at": release.get("released_at"),
        "is_deregistered": proof.get("gateway_deregistered"),
        **{key: value for key, value in (alike_to or alike.NOTHING).items() if key != "control_hit_ratio"},
    }


def of_tier(run: Run, tier: str, requests: Rows, samples: Rows, control_hit_ratio: float | None = None) -> Facts:
    """One row of a tier. `control_hit_ratio`: of the run that this one will be compared with, if there is one."""
    client = artifact.optional(run.folder / tier, "client")
    calibration = artifact.optional(run.folder / tier, "calibration")
    ended = [row for row in requests if not row.get("is_aborted")]
    failed = sum(row.get("failure") is not None for row in ended)
    good = [row for row in ended if row.get("failure") is None]
    return {
        "requests": len(requests),
        "steady_requests": sum(not row.get("is_warmup") for row in ended),
        "failed_requests": failed,
        "failure_ratio": failed / len(ended) if ended else None,
        "schedule_delay_ms_p99": _p99(metrics.BY_NAME["schedule_delay_ms"].of(row) for row in requests),
        "loop_lag_ms_p99": client.get("loop_lag_ms_p99"),
        "client_cpu_share": client.get("cpu_share"),
        "client_cpu_wait_share": client.get("cpu_wait_share"),
        "calibration": _calibration(calibration),
        "calibration_reason": calibration.get("reason") or calibration.get("not_calibrated_because") or "none",
        "cache_is_proven_empty": (artifact.optional(run.folder / tier, "tier").get("cache") or {}).get("is_proven"),
        **_chunks(run, good),
        **_windows(run.folder / tier),
        **_hits(good, control_hit_ratio),
        **_tokens(run, requests, samples, "prompt_tokens_total", used="input_tokens"),
        **_tokens(run, requests, samples, "generation_tokens_total", used="output_tokens"),
    }


def _weigh(run: Run, effective: Facts) -> Facts:
    """Bytes of the weights that are held, and those that the model has in the precision asked for.

    A log says GiB with two digits: what half of the last one leaves open is no difference.
    """
    held = effective.get("weight_bytes")
    expected = _weights.expected_bytes(run.arm, effective.get("effective") or {})
    is_rounded = str(effective.get("weight_bytes_from")).startswith("log")
    apart = max(0.0, abs((held or 0) - (expected or 0)) - (LOG_ROUNDING_BYTES if is_rounded else 0))
    return {
        "weights_are_known": held is not None and expected is not None,
        "weight_bytes": held,
        "weight_bytes_expected": expected,
        "weight_bytes_off": apart / expected if held is not None and expected else None,
    }


def _behaviour(run: Run, effective: Facts, samples: Mapping[str, Rows], requests: Mapping[str, Rows]) -> Facts:
    """What the engine did, against the settings that it shows: in all tiers together."""
    found: dict[str, behaviour.Observed] = {}
    for tier, scraped in samples.items():
        trace = behaviour.Trace(
            flags=dict(run.arm.flags),
            series=lambda name, scraped=scraped: _series(scraped, _name(run, name)),  # type: ignore[misc]
            requests=requests.get(tier, []),
        )
        for one in behaviour.observed(trace):
            found[one.flag] = behaviour.stronger(found.get(one.flag), one)
    belied = [f"{one.flag}: {one.words}" for one in found.values() if one.state == "belied"]
    is_weighed = bool(_weigh(run, effective)["weights_are_known"])
    unshown = behaviour.unshown(run.arm.varies, list(found.values()), is_weighed=is_weighed)
    return {
        "has_rows": any(requests.values()),
        "settings_belied": len(belied) if found else None,
        "belied": "; ".join(belied),
        "settings_unshown": len(unshown),
        "unshown": "; ".join(unshown),
    }


def _memory_left(memory: Mapping[str, list[int]] | None) -> int | None:
    """MiB that the fullest GPU of the slot holds more than before the claim. None: not seen."""
    before, after = ((memory or {}).get(when) or [] for when in ("before", "after"))
    return max((b - a for a, b in zip(before, after, strict=False)), default=None)


def _chunks(run: Run, good: Rows) -> Facts:
    """Tokens per chunk, gaps between chunks, and how many answers began with reasoning."""
    text = [row for row in good if not row.get("tool_calls")]
    stalls = [row["stalls"] for row in good if row.get("stalls") is not None]
    return {
        "tokens_per_chunk": _per_chunk(good),
        "tokens_per_text_chunk": _per_chunk(text),
        "is_one_token_each": bool(text) and "speculative-config" not in run.arm.flags,
        "gap_ms_max": max((row["icl_ms_max"] for row in good if row.get("icl_ms_max") is not None), default=None),
        "stalls": sum(stalls) if stalls else None,
        "calls": len(good),
        "reasoning_first": sum(bool(row.get("reasoning_chunks")) for row in good),
    }


def _per_chunk(good: Rows) -> float | None:
    counted = [row for row in good if row.get("output_tokens") is not None and row.get("chunks")]
    chunks = sum(row["chunks"] for row in counted)
    return sum(row["output_tokens"] for row in counted) / chunks if chunks else None


def _windows(folder: Path) -> Facts:
    """Levels without a steady window, and those too short to tell."""
    levels = artifact.optional(folder, "windows").get("levels") or []

    def of(state: str) -> list[str]:
        return [f"level {level['level']}: {level.get('reason')}" for level in levels if level["state"] == state]

    unsteady, short = of("no_steady_state"), of("too_short")
    return {
        "unsteady_levels": len(unsteady) if levels else None,
        "unsteady": "; ".join(unsteady),
        "short_levels": len(short) if levels else None,
        "short": "; ".join(short),
    }


def _hits(good: Rows, control: float | None) -> Facts:
    """Share of the prompt tokens that were found cached, here and in the control's run."""
    told = [row for row in good if row.get("cached_input_tokens") is not None and row.get("input_tokens")]
    ratio = sum(row["cached_input_tokens"] for row in told) / sum(row["input_tokens"] for row in told) if told else None
    return {
        "hit_ratio": ratio,
        "control_hit_ratio": control,
        "hit_ratio_off": None if ratio is None or control is None else abs(ratio - control),
    }


def _calibration(told: Facts) -> str | None:
    """Whether the client alone kept the planned rate. `not asked`: the plan says why it is not calibrated."""
    if told.get("not_calibrated_because"):
        return "not asked"
    return {True: "enough", False: "not enough"}.get(told.get("is_enough"))  # type: ignore[arg-type]


def _gate(run: Run) -> Facts:
    """A plan may go without a gate and say why; that is `ungated`, and is not the same as a gate that saw nothing."""
    if run.plan.gate.none_because is not None:
        because = run.plan.gate.none_because
        return {"gate_verdict": "ungated", "gate_cases_missed": 0, "gate_is_in_time": True, "gate_reason": because}
    gate = artifact.optional(run.folder, "gate")
    cases, evaluated = golden_cases(run), gate.get("evaluated")
    return {
        "gate_verdict": gate.get("verdict"),
        "gate_cases_missed": None if not cases or evaluated is None else cases - evaluated,
        "gate_is_in_time": _gate_in_time(run.folder),
        "gate_reason": gate.get("reason"),
    }


def golden_cases(run: Run) -> int:
    """The golden set's own count of its cases, not the gate's; 0 if the set cannot be read."""
    try:
        return len(golden.load(run.plan.gate.golden_set))
    except (catalog.UnknownName, InvalidDocument, OSError):
        return 0


def _gate_in_time(folder: Path) -> bool | None:
    """After this attempt's deploy, and before its load. A later try of a stage that was done does nothing."""
    deploy, gate, drive = (_done_note(folder, name) for name in ("deploy", "gate", "drive_gateway"))
    if not deploy or not gate:
        return None
    is_after = deploy["ended_at"] <= gate["began_at"]
    return bool(is_after and (not drive or gate["ended_at"] <= drive["began_at"]))


def _done_note(folder: Path, stage: str) -> Facts:
    """Of the first try that worked; empty if none did."""
    paths = sorted((folder / "phases").glob(f"{stage}.*.json"), key=lambda path: (len(path.name), path.name))
    return next((note for path in paths if (note := artifact.read(path)).get("state") == "done"), {})


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
