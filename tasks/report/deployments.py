"""Control against arm over all their deployments, on the indicators of the plan's SLOs, which stood before the data.

Runs belong together if they measured the same (plan by content, target, accelerator, golden set, versions but for what
the arm varies). In the order of their claims they make mirrored blocks (control, arm, arm, control, or the other way
round); each half is a pair. Runs that fit no block pair with nobody; where no two pairs are whole and valid, all
deployments are compared unpaired. tasks/stats/effect.py has the method. A tier that broke a rule takes no part.
"""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from tasks import alike
from tasks.report import stored
from tasks.report.figures import Cell, Table, number, percent, verdict
from tasks.report.parts import STEPS
from tasks.report.stored import Row

ALIKE = ("engine", "plan_digest", "target", "gpu_model", "golden_sha256")
MARGIN = 0.05  # a smaller effect is not worth having
COLUMNS = ["indicator", "control", "arm", "arm / control", "n", "p, Holm", "outcome", "noise floor", "why"]
NOTE = (
    "The unit is the deployment: medians over deployments, the mean ratio with its two-sided 95 % interval; n is of "
    f"mirrored pairs, or of deployments of each where there are none. EQUIVALENT is within {MARGIN:.0%}."
)
T = TypeVar("T")
Values = dict[tuple[str, int], float]  # (SLO, level) -> what was measured at its fraction
Run = tuple[bool, Values]  # whether of the arm, and its values


def table(control: Row, arm: Row) -> Table:
    """Of all runs like these two. Raises DatabaseAway."""
    from tasks.stats import effect

    runs, rows = _runs(control, arm), _declared(arm)
    found = [_effect(runs, (row["slo"], row["level"])) for row in rows]
    corrected = iter(effect.holm([one.p for one in found if isinstance(one, effect.Effect)]))
    cells = [
        [Cell(_says(row)), *_cells(runs, (row["slo"], row["level"]), one, corrected)]
        for row, one in zip(rows, found, strict=True)
    ]
    return Table("Arm against control, over deployments", COLUMNS, cells, NOTE)


def _runs(control: Row, arm: Row) -> list[Run]:
    """In the order of their claims."""
    varies = set(arm["varies"] or []) | set(control["varies"] or [])
    found = [
        row for name in (control["arm"], arm["arm"]) for row in stored.runs(arm=name) if _is_like(row, arm, varies)
    ]
    ordered = sorted(found, key=lambda row: row["claimed_at"])
    return [(row["arm"] == arm["arm"], _values(row)) for row in ordered]


def _is_like(row: Row, other: Row, varies: set[str]) -> bool:
    if row["state"] != "done" or any(row[name] != other[name] for name in ALIKE):
        return False
    return not alike.version_differences(row["versions"], other["versions"], varies)


def _values(run: Row) -> Values:
    rows = stored.of(run, "slo_verdict")
    return {
        (row["slo"], row["level"]): row["estimate"] for row in rows if row["is_valid"] and row["estimate"] is not None
    }


def _declared(arm: Row) -> list[Row]:
    return stored.of(arm, "slo_verdict")


def _effect(runs: Sequence[Run], key: tuple[str, int]) -> Any:
    """The effect, or in words why there is none."""
    from tasks.stats import effect

    whole = [(a, b) for a, b in ((c.get(key), d.get(key)) for c, d in pairs(runs)) if a is not None and b is not None]
    control, arm = (_of(runs, key, is_arm=is_arm) for is_arm in (False, True))
    try:
        return effect.paired(whole) if len(whole) > 1 else effect.welch(control, arm)
    except ValueError as error:
        return str(error)


def _of(runs: Sequence[Run], key: tuple[str, int], *, is_arm: bool) -> list[float]:
    return [values[key] for of_arm, values in runs if of_arm is is_arm and key in values]


def pairs(runs: Sequence[tuple[bool, T]]) -> list[tuple[T, T]]:
    """(control, arm) of each half of each mirrored block; what fits no block is left out. The bool: is of the arm."""
    found, at = [], 0
    while at + 4 <= len(runs):
        four = runs[at : at + 4]
        order = [is_arm for is_arm, _ in four]
        if order[0] == order[3] and order[1] == order[2] and order[0] != order[1]:
            found += [_sorted(*four[:2]), _sorted(*four[2:])]
            at += 4
        else:
            at += 1
    return found


def _sorted(one: tuple[bool, T], other: tuple[bool, T]) -> tuple[T, T]:
    return (other[1], one[1]) if one[0] else (one[1], other[1])


def _cells(runs: Sequence[Run], key: tuple[str, int], found: Any, corrected: Iterator[float]) -> list[Cell]:
    from tasks.stats import effect

    control, arm = (_of(runs, key, is_arm=is_arm) for is_arm in (False, True))
    medians = [Cell(number(statistics.median(some)) if some else "–", "number") for some in (control, arm)]
    if not isinstance(found, effect.Effect):
        dash = Cell("–", "muted")
        return [*medians, dash, dash, dash, verdict("INCONCLUSIVE"), dash, Cell(found, "muted")]
    p, floor = next(corrected), effect.floor([control], found.n)
    told = effect.judged(found, p, floor, better="lower", margin=MARGIN)
    mean, low, high = found.shown
    cells = [f"{mean:.3f} [{low:.3f} to {high:.3f}]", f"{found.n} {_unit(found.method)}", f"{p:.3g}"]
    ends = [verdict(told.outcome), Cell(f"±{floor:.1%}", "number"), Cell(told.reason, "muted")]
    return [*medians, *(Cell(text, "number") for text in cells), *ends]


def _unit(method: str) -> str:
    return "pairs" if method == "paired" else "each, unpaired"


def _says(row: Mapping[str, Any]) -> str:
    load = f"{row['users']} users" if row["users"] is not None else f"level {row['level']}"
    return (
        f"{row['slo']}: {percent(row['fraction'])} of {row['indicator']} ({row['unit']}), {load}, {STEPS[row['steps']]}"
    )
