"""What the client itself adds, as tables: how far its stamps can be trusted, and how much of a TTFT is ours.

A cell is `p50 / p99 / max` in the row's unit. Under load a figure is that of the worst level and process. What the
client alone could not keep is greyed: then no figure of the tier says anything about the arm.
"""

import math
from typing import Any

from tasks.report.figures import Cell, Table, cell, number, percent
from tasks.report.honesty import broken
from tasks.report.stored import Row, Views

TITLE = "What the client itself adds"
PATHS = {"direct": "alone", "through_gateway": "with the gateway", "load": "under load"}
LINES = (  # (column of report.client without its statistic, what a reader reads)
    ("ttft_floor_ms", "least TTFT that it can report, ms"),
    ("ttft_error_ms", "first chunk stamped late by, ms"),
    ("burst_ttft_error_ms", "the same, all streams starting at once, ms"),
    ("icl_error_ms", "gap between chunks wrong by, ms"),
    ("schedule_delay_ms", "sent late by, ms"),
    ("loop_lag_ms", "event loop late by, ms"),
    ("server_late_ms", "echo server late by (in none of the above), ms"),
)
STATISTICS = ("p50", "p99", "max")
NOTE = (
    "p50 / p99 / max. Alone, with the gateway: before the load, engine idle, against a server that answers at once; "
    "the server's own time is taken out. Under load: the worst level and process."
)
SHARE_NOTE = (
    "Client: the least TTFT that it can report. Gateway: what that grows by through the gateway; below 0: not seen. "
    "The p99 of few calls is their maximum, so that ours of p99 is rather too much."
)


def tables(found: Views) -> list[Table]:
    """Of one run: one table per tier, and the shares of TTFT."""
    tiers = list(dict.fromkeys(row["tier"] for row in found["client"]))
    return [*(_tier(found, tier) for tier in tiers), *([_shares(found)] if tiers else [])]


def compared(pair: tuple[Views, Views]) -> Table:
    """Of two runs, what must be alike for their difference to be the arms'."""
    columns = ["", "control", "arm"]
    tiers = list(dict.fromkeys(row["tier"] for found in pair for row in found["client"]))
    rows = [line for tier in tiers for line in _compared(pair, tier)]
    short = [_state(found, tier) for found in pair for tier in tiers if _is_short(found, tier)]
    return Table(TITLE, columns, rows, NOTE, is_grey=bool(short), why=" ".join(short))


def _tier(found: Views, tier: str) -> Table:
    paths = {path: _path(found, tier, path) for path in PATHS}
    rows = [[Cell(says), *(_spread(paths[path], name) for path in PATHS)] for name, says in LINES]
    counted = (
        ("share of one core, each process", _cpu),
        ("long gaps (stalls); alone: that the server did not make", lambda rows: _sum(rows, "stalls")),
        ("chunks per second", _rates),
        ("calls, failed", _calls),
    )
    rows += [[Cell(says), *(of(paths[path]) for path in PATHS)] for says, of in counted]
    title = f"{TITLE}, {tier} tier"
    is_short = _is_short(found, tier)
    note = NOTE if is_short else f"{_state(found, tier)} {NOTE}"
    why = _state(found, tier) if is_short else ""
    return Table(title, ["", *PATHS.values()], rows, note, is_grey=is_short, why=why)


def _of(found: Views, tier: str) -> list[Row]:
    return [row for row in found["client"] if row["tier"] == tier]


def _calibrations(found: Views, tier: str) -> list[Row]:
    return [row for row in _of(found, tier) if row["path"] != "load"]


def _is_short(found: Views, tier: str) -> bool:
    return any(row["is_enough"] is False for row in _calibrations(found, tier))


def _state(found: Views, tier: str) -> str:
    """Whether the client alone kept the planned rate, in words."""
    told = _calibrations(found, tier)
    if not told:
        return "NO CALIBRATION: nobody knows what the client adds."
    fault = f" {told[0]['fault']}." if told[0]["fault"] else ""
    if told[0]["is_enough"] is None:
        return f"NOT CALIBRATED: {told[0]['not_calibrated_because'] or 'no reason given'}.{fault}"
    if not told[0]["is_enough"]:
        return f"NOT ENOUGH, the client alone does not keep the planned load: {told[0]['reason']}.{fault}"
    level = f"{told[0]['streams']} streams, {number(told[0]['chunks_per_s'])} chunks/s"
    return f"Enough: the client alone keeps the load of level {told[0]['level']} ({level}).{fault}"


def _spread(rows: list[Row], name: str) -> Cell:
    """p50 / p99 / max of the worst row."""
    found = [_most(rows, f"{name}_{which}") for which in STATISTICS]
    if all(value is None for value in found):
        return cell(None)
    return Cell(" / ".join(map(number, found)), "number")


def _most(rows: list[Row], name: str) -> Any:
    return max((row[name] for row in rows if row[name] is not None), default=None)


def _sum(rows: list[Row], name: str) -> Cell:
    values = [row[name] for row in rows if row[name] is not None]
    return cell(sum(values) if values else None)


def _cpu(rows: list[Row]) -> Cell:
    """Of each process the level in which it used the most."""
    processes = sorted({row["process"] for row in rows}, key=lambda process: process or 0)
    found = [_most([row for row in rows if row["process"] == process], "cpu_share") for process in processes]
    return cell(None) if not found else Cell(", ".join(map(number, found)), "number")


def _rates(rows: list[Row]) -> Cell:
    """Of the level with the most; its processes together."""
    levels = sorted({row["level"] for row in rows if row["level"] is not None})
    rates = [_together([row for row in rows if row["level"] == level]) for level in levels]
    return cell(max((rate for rate in rates if rate is not None), default=None))


def _together(rows: list[Row]) -> float | None:
    values = [row["chunks_per_s"] for row in rows if row["chunks_per_s"] is not None]
    return sum(values) if values else None


def _calls(rows: list[Row]) -> Cell:
    values = [[row[name] or 0 for row in rows if row["calls"] is not None] for name in ("calls", "failed")]
    return cell(None) if not values[0] else Cell(", ".join(number(sum(one)) for one in values), "number")


def _shares(found: Views) -> Table:
    rows = [
        [
            Cell(f"{row['tier']}, level {row['level']}, {percent(row['q'])}"),
            Cell(number(row["ttft_ms"]), "number"),
            Cell(number(row["client_ms"]), "number"),
            Cell(number(row["gateway_ms"]), "number"),
            _share(row["ours_share"]),
            cell(row["n"]),
            cell(row["floor_calls"]),
        ]
        for row in found["ttft_share"]
        if row["level"] is not None
    ]
    columns = ["where", "TTFT (ms)", "client (ms)", "gateway (ms)", "ours", "n", "n of client, gateway"]
    short = dict.fromkeys(_state(found, row["tier"]) for row in found["ttft_share"] if row["is_enough"] is False)
    why = broken(found, "gateway", "agent") if not all(row["is_valid"] for row in found["ttft_share"]) else ""
    title = "How much of the time to the first token is ours?"
    is_grey = bool(short or why)
    return Table(title, columns, rows, SHARE_NOTE, is_grey=is_grey, why=" ".join([*short, why]).strip())


def _share(value: float | None) -> Cell:
    if value is None or math.isinf(value):
        return cell(None)
    return Cell(f"{number(100 * value)} %", "number")


def _compared(pair: tuple[Views, Views], tier: str) -> list[list[Cell]]:
    lines = (
        ("least TTFT alone, ms", "direct", "ttft_floor_ms"),
        ("least TTFT with the gateway, ms", "through_gateway", "ttft_floor_ms"),
        ("event loop late under load by, ms", "load", "loop_lag_ms"),
        ("sent late under load by, ms", "load", "schedule_delay_ms"),
    )
    cells = [("kept the planned rate alone", [_enough(found, tier) for found in pair])]
    cells += [(says, [_spread(_path(found, tier, path), name) for found in pair]) for says, path, name in lines]
    cells += [("share of one core under load, each process", [_cpu(_path(found, tier, "load")) for found in pair])]
    return [[Cell(f"{tier}: {says}"), *both] for says, both in cells]


def _path(found: Views, tier: str, path: str) -> list[Row]:
    return [row for row in _of(found, tier) if row["path"] == path]


def _enough(found: Views, tier: str) -> Cell:
    told = _calibrations(found, tier)
    if not told or told[0]["is_enough"] is None:
        return Cell("not asked" if told else "not known", "muted")
    return Cell("yes", "pass") if told[0]["is_enough"] else Cell("NO", "fail")
