"""Figures as a person reads them, and the tables that hold them. A figure never stands without unit, bounds and n.

An infinite figure is one where failures reach the rank; a bound that is not there is `?`: too few samples to know.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

Kind = Literal["", "number", "muted", "pass", "fail", "inconclusive", "invalid"]
VERDICTS: dict[str, Kind] = {
    "PASS": "pass",
    "FAIL": "fail",
    "INCONCLUSIVE": "inconclusive",
    "BETTER": "pass",
    "WORSE": "fail",
    "EQUIVALENT": "muted",
    "INVALID": "invalid",
    "UNGATED": "invalid",
    "BROKEN": "invalid",
    "finding": "inconclusive",
    "unverified": "muted",
    "kept": "pass",
    "valid": "pass",
    "done": "pass",
    "failed": "fail",
    "gate_failed": "fail",
}
UNKNOWN = "–"


@dataclass(frozen=True)
class Cell:
    text: str
    kind: Kind = ""


@dataclass(frozen=True)
class Table:
    """`note` says how to read it; `is_detail`: on the page, not in the terminal.

    `is_grey`: not to be relied on, `grey_rows` the same of some rows; `why` says for which reason.
    """

    title: str
    columns: list[str]
    rows: list[list[Cell]]
    note: str = ""
    is_grey: bool = False
    grey_rows: frozenset[int] = frozenset()
    why: str = ""
    is_detail: bool = False


@dataclass(frozen=True)
class Chart:
    """A Vega-Lite specification, data included."""

    title: str
    spec: Mapping[str, Any]
    note: str = ""


@dataclass(frozen=True)
class Report:
    """What one page, or one print in the terminal, holds. `alarms` stand on top of everything."""

    title: str
    name: str  # of the file, without suffix
    tables: list[Table]
    charts: list[Chart] = field(default_factory=list)
    alarms: list[str] = field(default_factory=list)


def cell(value: Any, kind: Kind = "") -> Cell:
    """A cell of any value; None is a dash, a number is set as one."""
    if value is None:
        return Cell(UNKNOWN, kind or "muted")
    if isinstance(value, bool):
        return Cell("yes" if value else "no", kind)
    return Cell(number(value), kind or "number") if isinstance(value, int | float) else Cell(str(value), kind)


def verdict(word: str | None) -> Cell:
    """A verdict, so that each looks different."""
    return Cell(word or "not judged", VERDICTS.get(word or "", "muted"))


def number(value: float | None) -> str:
    """Three digits that count, no exponent: 0.00123, 1.23, 123, 12,300."""
    if value is None:
        return UNKNOWN
    if math.isinf(value):
        return "∞"
    if value == 0 or value == int(value):
        return f"{int(value):,}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{digits}f}"


def bounds(row: Mapping[str, Any]) -> str:
    """`lower to upper` of a row; ? is a bound that so few samples cannot give."""
    lower, upper = (number(row[end]) if row[end] is not None else "?" for end in ("lower", "upper"))
    return f"{lower} to {upper}"


def estimate(row: Mapping[str, Any] | None) -> Cell:
    """A percentile with its bounds: `123 [110 to 140]`."""
    if row is None or row["estimate"] is None:
        return Cell(UNKNOWN, "muted")
    return Cell(f"{number(row['estimate'])} [{bounds(row)}]", "number")


def samples(row: Mapping[str, Any] | None) -> Cell:
    """`n 72, worth 60`: the samples, and how many independent ones they are worth."""
    if row is None:
        return Cell(UNKNOWN, "muted")
    n, worth = row["n"], row["effective_n"]
    return Cell(f"{n}" if worth is None or round(worth) == n else f"{n}, worth {worth:.0f}", "number")


def usd(value: float | None) -> str:
    return UNKNOWN if value is None else f"{number(value)} USD"


def moment(at: datetime) -> str:
    """To the minute, in UTC, whatever zone the database speaks in."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def percent(q: float) -> str:
    """0.95 is p95."""
    return f"p{q * 100:g}"
