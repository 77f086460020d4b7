"""judge: percentiles with bounds, SLO verdicts and costs of one run, from its rows. Writes judgement.json.

Counted is what was sent in the level's steady window (tasks/windows.py); what our own client cut off after the whole
drain is infinite, and what it cut off sooner is not counted (tasks/stats/series.py). Open loops are judged from the
intended send. Without a steady state a latency is one of many that the level had, so a verdict on it is INCONCLUSIVE
and says why; only failures that break the objective by themselves stay a FAIL. Declared overloads are not judged. An
invalid run is judged like any other and marked; its numbers are shown with the reasons and are never part of a
comparison. Verdicts are rows, not failures of this stage, unless the plan's `fail_on` says so; then the judgement is
stored first.

Sustained cost needs a level that keeps the agent tier's SLOs. A level whose SLO is INCONCLUSIVE is not thrown away: the
figure is given and its reason says `SLO inconclusive`, since a short run would otherwise show no figure at all.
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tasks import artifact, metrics, rows, slo, windows
from tasks.run import TIERS, Run
from tasks.run import read as read_run
from tasks.sizing.cost import all_in_usd_per_task, sustained_usd_per_task
from tasks.stage import StageFailed
from tasks.stats import series
from tasks.stats.percentile import Judged, Percentile

FORMAT = 1
QUANTILES = (0.5, 0.95, 0.99)
INTENDED = {"ttft_ms": "ttft_intended_ms", "e2e_ms": "e2e_intended_ms"}  # what an open loop is judged by
REQUEST_METRICS = ("ttft_ms", "ttfa_ms", "e2e_ms", "tpot_ms", "icl_ms", "schedule_delay_ms")
STEPS: dict[str, tuple[series.Steps, ...]] = {"gateway": ("all",), "agent": ("all", "first", "later")}

Rows = rows.Rows
Windows = dict[tuple[str, int], windows.Window]  # by tier and level
Levels = dict[tuple[str, str], dict[int, Rows]]  # (tier, "request" or "task") -> level -> rows
Document = dict[str, Any]


def judge(run_dir: Path) -> Path:
    """Write and store judgement.json. Raises BrokenArtifact; StageFailed where the plan's fail_on asks for it."""
    run = read_run(run_dir)
    path = run_dir / "judgement.json"
    if not path.exists():
        artifact.write_once(path, judgement(run))
    _store(run_dir)
    faults = [word for kind, word in _findings(run, artifact.read(path)) if kind in run.plan.fail_on]
    if faults:
        raise StageFailed(f"plan {run.plan_name} fails on {', '.join(run.plan.fail_on)}: {'; '.join(faults)}")
    return path


def judgement(run: Run) -> Document:
    """The content of judgement.json."""
    found = {(tier, level): w for tier in TIERS for level, w in windows.read(run.folder / tier).items()}
    levels = _levels(run, found)
    verdicts = list(_verdicts(run, levels, found))
    validation = artifact.optional(run.folder, "validation")
    return {
        "format": FORMAT,
        "is_valid": validation.get("is_valid"),
        "reasons": validation.get("reasons", ["not validated"]),
        "percentiles": list(_percentiles(run, levels)),
        "verdicts": verdicts,
        "costs": [_all_in(run), _sustained(run, found, verdicts)],
    }


def _levels(run: Run, found_windows: Windows) -> Levels:
    """Rows of the windows by tier, kind and level; of a tier without windows all rows. None leave an empty list."""
    found: Levels = {}
    for tier in TIERS:
        planned = range(1, 1 + len(getattr(run.plan.tiers, tier).levels))
        for kind, file in (("request", "requests"), ("task", "tasks")):
            by_level: dict[int, Rows] = {level: [] for level in planned}
            for row in rows.read(run.folder, tier, file):  # type: ignore[arg-type]
                window = found_windows.get((tier, row["level"]))
                if window is None or window.holds(windows.sent_ns(row)):
                    by_level.setdefault(row["level"], []).append(row)
            found[tier, kind] = by_level
    return found


def _drain_ms(run: Run, tier: str) -> float:
    return float(getattr(run.plan.tiers, tier).drain_s * 1e3)


def _is_open(run: Run, tier: str, level: int) -> bool:
    planned = getattr(run.plan.tiers, tier).levels
    return 0 < level <= len(planned) and planned[level - 1].rate_per_s is not None


def _percentiles(run: Run, levels: Levels) -> Iterator[Document]:
    for tier in TIERS:
        cut_ms = _drain_ms(run, tier)
        for level, sent in levels[tier, "request"].items():
            for steps in STEPS[tier]:
                for name in (*REQUEST_METRICS, *(INTENDED.values() if _is_open(run, tier, level) else ())):
                    found = series.of(sent, metrics.BY_NAME[name], steps=steps, cut_after_ms=cut_ms)
                    yield from _quantiles(found, tier=tier, level=level, steps=steps, metric=name)
    for level, tasks in levels["agent", "task"].items():
        found = series.of(tasks, metrics.BY_NAME["task_ms"], cut_after_ms=_drain_ms(run, "agent"))
        yield from _quantiles(found, tier="agent", level=level, steps="all", metric="task_ms")


def _quantiles(found: series.Series, **place: Any) -> Iterator[Document]:
    for q in QUANTILES if found.values else ():
        yield place | {"q": q} | _figures(found.quantile(q))


def _figures(found: Percentile) -> Document:
    return {
        "estimate": _json(found.estimate),
        "lower": _json(found.lower),
        "upper": _json(found.upper),
        "n": found.n,
        "failed": found.failed,
        "effective_n": round(found.effective_n, 1),
    }


def _json(value: float | None) -> float | str | None:
    """JSON has no infinity: a failed request's latency is the string "inf"."""
    return "inf" if value is not None and math.isinf(value) else value


def _verdicts(run: Run, levels: Levels, found_windows: Windows) -> Iterator[Document]:
    for name in run.plan.slos:
        wanted = slo.load(name)
        for level, found in levels[wanted.tier, metrics.BY_NAME[wanted.indicator].row].items():
            is_open = _is_open(run, wanted.tier, level)
            metric = metrics.BY_NAME[INTENDED.get(wanted.indicator, wanted.indicator) if is_open else wanted.indicator]
            cut_ms = max(_drain_ms(run, wanted.tier), wanted.objective)  # sooner, it might have kept the objective
            judged = series.of(found, metric, steps=wanted.steps, cut_after_ms=cut_ms).judge(
                objective=wanted.objective, fraction=wanted.fraction, unit=wanted.unit
            )
            figures = {key: value for key, value in _figures(judged.percentile).items() if key != "failed"}
            yield {
                "slo": name,
                "tier": wanted.tier,
                "level": level,
                "steps": wanted.steps,
                "indicator": metric.name,
                "objective": wanted.objective,
                "unit": wanted.unit,
                "fraction": wanted.fraction,
                **figures,
                **_limited(judged, found_windows.get((wanted.tier, level))),
            }


def _limited(judged: Judged, window: windows.Window | None) -> Document:
    """Verdict and reason: no level without a steady window is judged by its latencies."""
    said = {"verdict": judged.verdict, "reason": judged.reason}
    if judged.percentile.n == 0 or (window is not None and window.state == "steady"):
        return said
    is_failing = judged.verdict == "FAIL" and math.isinf(judged.percentile.lower or 0)
    if window is None:
        reason = "windows.json is missing: nobody looked for a steady window"
    elif window.state == "overload":
        return {"verdict": "INCONCLUSIVE", "reason": f"not judged: {window.reason}"}
    else:
        reason = f"{window.state.replace('_', ' ')}: {window.reason}"
    return said if is_failing else {"verdict": "INCONCLUSIVE", "reason": reason}


def _cost(run: Run, lens: str, **figures: Any) -> Document:
    price = run.price.usd_per_hour
    return {
        "lens": lens,
        "usd_per_task": None,
        "tasks": None,
        "gpu_s": None,
        "price_usd_per_hour": None if isinstance(price, str) else price,
        "price_key": run.arm.price,
        "is_nominal": run.price.is_nominal,
        "reason": None,
    } | figures


def _all_in(run: Run) -> Document:
    """From the moment the slot was bound until its release was proven, over every task that succeeded."""
    tasks = sum(_is_success(row) for row in rows.read(run.folder, "agent", "tasks"))
    held_s, why_not = _held_s(run)
    price = run.price.usd_per_hour
    if held_s is None:
        return _cost(run, "all_in", tasks=tasks, reason=why_not)
    if isinstance(price, str):
        return _cost(run, "all_in", tasks=tasks, gpu_s=held_s, reason=_no_price(run))
    usd = all_in_usd_per_task(usd_per_hour=price, held_s=held_s, tasks=tasks)
    reason = "no task succeeded" if usd is None else "from claim to proven release, over every successful task"
    return _cost(run, "all_in", usd_per_task=usd, tasks=tasks, gpu_s=held_s, reason=reason)


def _held_s(run: Run) -> tuple[float | None, str]:
    """Seconds from the lease to the proven release, or None and why they are not known."""
    release, lease = artifact.optional(run.folder, "release"), artifact.optional(run.folder, "lease")
    began = release.get("billed_from") or lease.get("acquired_at")
    ended = release.get("released_at")
    if began is None or ended is None:
        return None, "release is not proven: release.json is missing or has no time"
    left = (release.get("proof") or {}).get("processes_left")
    if left:
        return None, f"release is not proven: {len(left)} processes were left"
    return max(0.0, ended - began), ""


def _sustained(run: Run, found_windows: Windows, verdicts: list[Document]) -> Document:
    """In the window of the highest level of the agent tier that keeps the tier's SLOs, or at least breaks none."""
    level, reason = _best_level(run, found_windows, verdicts)
    if level is None:
        return _cost(run, "sustained", reason=reason)
    window = found_windows["agent", level]
    window_s, tasks = window.window_s, _ended_in(window, rows.read(run.folder, "agent", "tasks"))
    if not window_s:
        return _cost(run, "sustained", reason=f"no window: {window.reason}")
    price = run.price.usd_per_hour
    if isinstance(price, str):
        return _cost(run, "sustained", tasks=tasks, gpu_s=window_s, reason=_no_price(run))
    usd = sustained_usd_per_task(usd_per_hour=price, window_s=window_s, tasks=tasks)
    reason = "no task succeeded in the steady window" if usd is None else reason
    return _cost(run, "sustained", usd_per_task=usd, tasks=tasks, gpu_s=window_s, reason=reason)


def _best_level(run: Run, found_windows: Windows, verdicts: list[Document]) -> tuple[int | None, str]:
    """The highest load at which no SLO of the agent tier is broken, and in words how sure that is."""
    ours = [verdict for verdict in verdicts if verdict["tier"] == "agent"]
    loads = {number: offered for number, offered in enumerate(run.plan.tiers.agent.levels, start=1)}
    for level in sorted(loads, key=lambda number: -(loads[number].users or loads[number].rate_per_s or 0)):
        window = found_windows.get(("agent", level))
        here = [verdict for verdict in ours if verdict["level"] == level]
        is_broken = any(verdict["verdict"] == "FAIL" for verdict in here)
        if window is None or window.state in ("overload", "no_steady_state") or is_broken:
            continue
        unsure = [verdict["slo"] for verdict in here if verdict["verdict"] != "PASS"]
        at = f"at {loads[level].says}"
        if unsure:
            return level, f"SLO inconclusive {at}: {', '.join(unsure)}"
        kept = ", ".join(verdict["slo"] for verdict in here)
        return level, f"{at}, which keep {kept}" if kept else f"{at}; the plan has no SLO of the agent tier"
    broken = sorted({verdict["slo"] for verdict in ours if verdict["verdict"] == "FAIL"})
    if broken:
        return None, f"no level of the agent tier keeps {', '.join(broken)}"
    return None, "no level of the agent tier has a steady window"


def _ended_in(window: windows.Window, tasks: Rows) -> int:
    """Successful tasks of the level that ended in its window, begun in it or not."""
    start_ns, end_ns = window.window_start_ns or 0, window.window_end_ns or 0
    own = (row for row in tasks if row["level"] == window.level and row.get("t_end_ns") is not None)
    return sum(_is_success(row) and start_ns < row["t_end_ns"] <= end_ns for row in own)


def _is_success(row: dict[str, Any]) -> bool:
    return bool(row.get("is_success")) and not row.get("is_aborted") and not row.get("failure")


def _no_price(run: Run) -> str:
    return f"price '{run.arm.price}' is unresolved: read it from the list named in deploy/prices/{run.arm.price}.yaml"


def _findings(run: Run, found: Document) -> Iterator[tuple[str, str]]:
    """What a plan may fail on, in words."""
    for verdict in found["verdicts"]:
        if verdict["verdict"] == "FAIL":
            yield "slo_fail", f"{verdict['slo']}: {verdict['reason']}"
    gate = artifact.optional(run.folder, "gate")
    if gate.get("verdict") != "PASS" and run.plan.gate.none_because is None:
        yield "gate_fail", f"gate: {gate.get('verdict', 'not done')}: {gate.get('reason', 'gate.json is missing')}"
    if not found["is_valid"]:
        yield "invalid", f"invalid: {'; '.join(found['reasons'])}"


def _store(run_dir: Path) -> None:
    """Into the database, where there is one; elsewhere `armwise load` does it later."""
    from tasks import database

    if database.available():
        from tasks.stages.load import load

        load(run_dir)
