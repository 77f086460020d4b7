"""The charts of a report, as Vega-Lite specifications with their data inside. Colours of text come from the page."""

import math
from collections.abc import Mapping
from typing import Any

from tasks.report.figures import Chart, bounds, number, percent
from tasks.report.parts import STEPS
from tasks.report.stored import Row, Views

SHOWN = (("ttft_ms", "e2e_ms", "task_ms"), (0.5, 0.95))
ARMS = ["#4c8dff", "#ff9f43"]  # told apart by people who see no red or green
SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"  # a name, never fetched


def latency(by_arm: Mapping[str, Views]) -> Chart | None:
    """Percentiles with their two-sided bounds. What is infinite or unknown is not drawn, and the note says so."""
    rows = [_point(arm, row) for arm, found in by_arm.items() for row in found["latency"] if _is_shown(row)]
    drawn = [row for row in rows if row["estimate"] is not None]
    if not drawn:
        return None
    y = {"field": "where", "type": "nominal", "title": None, "sort": None, "axis": {"labelLimit": 320}}
    x = {"type": "quantitative", "scale": {"type": "log"}, "title": "ms (logarithmic)"}
    color = {"field": "arm", "type": "nominal", "title": None, "scale": {"domain": list(by_arm), "range": ARMS}}
    offset = {"field": "arm", "type": "nominal", "scale": {"domain": list(by_arm)}}
    shared = {"y": y, "color": color, "yOffset": offset}
    tip = [{"field": name, "type": "nominal"} for name in ("arm", "where", "figure", "n")]
    rule = {"mark": {"type": "rule", "strokeWidth": 3}}
    rule |= {"encoding": shared | {"opacity": _opacity(0.6), "x": x | {"field": "lower"}, "x2": {"field": "upper"}}}
    point = {"mark": {"type": "point", "filled": True, "size": 70}}
    point |= {"encoding": shared | {"opacity": _opacity(1), "x": x | {"field": "estimate"}, "tooltip": tip}}
    missing = len(rows) - len(drawn)
    return Chart(
        "Latency: percentile and 95 % bounds",
        {"$schema": SCHEMA, "data": {"values": drawn}, "width": 900, "height": {"step": 15}, "layer": [rule, point]},
        "A bar that ends at its dot has no bound on that side: n is too small."
        + (f" {missing} infinite percentiles (failures) are not drawn." if missing else "")
        + ("" if all(row["is_valid"] for row in drawn) else " Pale: of a tier or run that broke a rule."),
    )


def _opacity(full: float) -> dict[str, Any]:
    """Pale for what is not to be relied on."""
    return {"condition": {"test": "datum.is_valid", "value": full}, "value": 0.2}


def _is_shown(row: Row) -> bool:
    return row["metric"] in SHOWN[0] and row["q"] in SHOWN[1]


def _point(arm: str, row: Row) -> dict[str, Any]:
    estimate = _finite(row["estimate"])
    return {
        "arm": arm,
        "where": f"{percent(row['q'])} {row['metric']}, {row['tier']}, {row['users']} users, {STEPS[row['steps']]}",
        "estimate": estimate,
        "lower": _finite(row["lower"]) or estimate,
        "upper": _finite(row["upper"]) or estimate,
        "figure": f"{number(row['estimate'])} [{bounds(row)}] {row['unit']}",
        "n": row["n"],
        "is_valid": row["is_valid"],
    }


def _finite(value: float | None) -> float | None:
    """None for what a logarithmic axis cannot show."""
    return None if value is None or math.isinf(value) or value <= 0 else value


def phases(found: Views) -> Chart | None:
    """Seconds of each stage, in order."""
    drawn = [{"stage": row["stage"], "seconds": row["seconds_s"], "state": row["state"]} for row in found["phase"]]
    if not drawn:
        return None
    encoding = {
        "y": {"field": "stage", "type": "nominal", "title": None, "sort": None},
        "x": {"field": "seconds", "type": "quantitative", "title": "seconds"},
        "color": {
            "field": "state",
            "type": "nominal",
            "title": None,
            "scale": {"domain": ["done", "failed"], "range": [ARMS[0], "#e5484d"]},
        },
        "tooltip": [{"field": "stage", "type": "nominal"}, {"field": "seconds", "type": "quantitative"}],
    }
    spec = {"$schema": SCHEMA, "data": {"values": drawn}, "width": 900, "height": {"step": 18}, "mark": "bar"}
    return Chart("Where the time went", spec | {"encoding": encoding})
