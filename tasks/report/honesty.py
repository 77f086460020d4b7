"""What the rules that keep a result honest said of a run, and which of its numbers are not to be relied on for it."""

from tasks.report.figures import Cell, Table, verdict
from tasks.report.stored import Row, Views

NOTE = (
    "BROKEN: the numbers of its scope are not to be relied on. finding: the numbers stand, and a reader must know. "
    "unverified: nobody can know. docs/honesty.md has every rule with its reason."
)
COLUMNS = ["outcome", "rule", "scope", "what must hold", "what was seen", "bound", "why this bound", "asked for by"]


def tables(found: Views) -> list[Table]:
    """What was not kept, to be read before any number; all that was checked, as a detail."""
    rows = found["honesty"]
    told = sorted((row for row in rows if row["outcome"] != "kept"), key=lambda row: _ORDER.index(row["outcome"]))
    kept = len(rows) - len(told)
    title = "Can the numbers be relied on?"
    note = f"{kept} of {len(rows)} checks kept. {NOTE}" if rows else "Nothing was checked: the run was not validated."
    return [
        Table(title, COLUMNS, [_cells(row) for row in told], note),
        Table("Every check", COLUMNS, [_cells(row) for row in rows], is_detail=True),
    ]


_ORDER = ("BROKEN", "finding", "unverified", "kept")


def _cells(row: Row) -> list[Cell]:
    seen = row["observed"] or ""
    return [
        verdict(row["outcome"]),
        Cell(str(row["rule"])),
        Cell(row["scope"]),
        Cell(row["says"]),
        Cell(seen + (f" (for example {row['examples']})" if row["examples"] else "")),
        Cell(row["bound"] or "", "muted"),
        Cell(row["because"] or "", "muted"),
        Cell(row["source"] or "", "muted"),
    ]


def is_void(run: Row, *tiers: str) -> bool:
    """Whether a rule was broken in the run as a whole or in one of these tiers; with none named, anywhere."""
    scopes = set(filter(None, (run["invalid_scopes"] or "").split(", ")))
    return bool(scopes & {"run", *tiers}) if tiers else not run["is_valid"]


def broken(found: Views, *tiers: str) -> str:
    """What was broken there, in words."""
    all_broken = [row for row in found["honesty"] if row["outcome"] == "BROKEN"]
    here = [row for row in all_broken if not tiers or row["scope"] in ("run", *tiers)]
    words = dict.fromkeys(f"rule {row['rule']} ({row['scope']}): {row['says']}: {row['observed']}" for row in here)
    return "; ".join(words)
