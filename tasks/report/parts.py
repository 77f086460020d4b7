"""The tables of one run, from the rows of the views."""

from typing import Any

from tasks.report.figures import Cell, Table, cell, estimate, percent, samples, usd, verdict
from tasks.report.figures import bounds as interval
from tasks.report.figures import number as figure
from tasks.report.honesty import broken, is_void
from tasks.report.stored import Row, Views

BOUNDS = (
    "In brackets: two-sided 95 % bounds. A failed call counts as infinite (∞); ? is a bound that n is too small for."
)
ONE_SIDED = (
    "PASS: the upper bound keeps the objective; FAIL: the lower bound breaks it. Bounds are one-sided, 95 % each."
)
STEPS = {"all": "all calls", "first": "first step", "later": "steps 2+"}
LENSES = {"all_in": "all-in", "sustained": "sustained"}
METRICS = ("task_ms", "ttft_ms", "ttfa_ms", "e2e_ms", "tpot_ms", "icl_ms")  # the order of the lines; others follow
QUANTILES = (0.5, 0.95, 0.99)
Key = tuple[Any, ...]


def head(run: Row) -> Table:
    """Who the run is, and whether it may be relied on."""
    golden = f"{run['golden_passed']} of {run['golden_cases']} cases passed (known limits of the model left out)"
    facts = [
        ("validity", verdict("valid" if run["is_valid"] else "INVALID"), run["invalid_reasons"] or ""),
        ("pipeline", verdict(run["state"]), " ".join(filter(None, (run["failed_stage"], run["error"])))),
        ("golden gate", verdict(run["gate"]), golden if run["golden_cases"] else "no case was evaluated"),
        ("arm", cell(run["arm"]), f"control: {run['control'] or 'none, it is one'}"),
        (
            "plan, target",
            cell(f"{run['plan']}, {run['target']}"),
            f"engine {run['engine']}; {run['gpu_model'] or 'no GPU seen'}",
        ),
        ("requests", cell(run["requests"]), f"{run['failed_requests']} failed (both tiers, warm-up included)"),
        ("agent tasks", cell(run["tasks"]), f"{run['successful_tasks']} ended right (warm-up included)"),
        ("held", cell(run["gpu_held_s"]), f"s from claim to proven release; start-up {figure(run['start_s'])} s"),
    ]
    rows = [[Cell(name), value, Cell(says, "muted")] for name, value, says in facts]
    return Table(f"Run {run['run_id']}, attempt {run['attempt']}", ["", "", ""], rows, is_grey=is_void(run, "run"))


def slos(found: Views) -> Table:
    """Each SLO's verdict with what it rests on."""
    rows = [
        [
            verdict(row["verdict"]),
            Cell(row["slo"]),
            Cell(f"{row['tier']}, {row['users']} users, {STEPS[row['steps']]}"),
            Cell(f"{percent(row['fraction'])} of {row['indicator']} ≤ {figure(row['objective'])} {row['unit']}"),
            Cell(f"{figure(row['estimate'])} [{interval(row)}] {row['unit']}", "number"),
            samples(row),
            Cell(row["reason"] or "", "muted"),
        ]
        for row in found["slo_verdict"]
    ]
    columns = ["verdict", "SLO", "where", "objective", "measured", "n", "why"]
    return Table("Does it keep the SLOs?", columns, rows, ONE_SIDED, **_void(found, found["slo_verdict"]))


def costs(found: Views) -> Table:
    """What one successful task cost, through both lenses."""
    rows = [
        [
            Cell(LENSES[row["lens"]]),
            Cell(usd(row["usd_per_task"]), "number"),
            cell(row["tasks"]),
            cell(row["gpu_s"]),
            Cell(price(row), "number"),
            Cell(row["reason"] or "", "muted"),
        ]
        for row in found["cost_per_task"]
    ]
    columns = ["lens", "per successful task", "tasks", "seconds paid", "price per hour", "rests on"]
    note = "All-in: from claim to proven release. Sustained: the steady window of the highest load that keeps the SLO."
    return Table("What does one successful task cost?", columns, rows, note, **_void(found, found["cost_per_task"]))


def price(row: Row) -> str:
    nominal = ", nominal: not a market price" if row["is_nominal"] else ""
    return f"{usd(row['price_usd_per_hour'])} ({row['price_key']}{nominal})"


def latency(found: Views) -> Table:
    """Three percentiles of every metric, tier, level and kind of step."""
    rows = []
    for place, by_q in grouped(found["latency"]).items():
        tier, users, metric, steps, unit = place
        some = next(iter(by_q.values()))
        where = f"{tier}, {users} users"
        rows.append(
            [Cell(where), Cell(STEPS[steps]), Cell(f"{metric} ({unit})")]
            + [estimate(by_q.get(q)) for q in QUANTILES]
            + [samples(some), cell(some["failed"])]
        )
    columns = ["where", "which", "metric", *map(percent, QUANTILES), "n", "failed"]
    shown = [next(iter(by_q.values())) for by_q in grouped(found["latency"]).values()]
    return Table("How long does it take?", columns, rows, BOUNDS, **_void(found, shown))


def grouped(rows: list[Row]) -> dict[Key, dict[float, Row]]:
    """(tier, users, metric, steps, unit) -> quantile -> row, in the order in which a person asks."""
    places: dict[Key, dict[float, Row]] = {}
    for row in sorted(rows, key=_asked_first):
        place = (row["tier"], row["users"], row["metric"], row["steps"], row["unit"])
        places.setdefault(place, {})[row["q"]] = row
    return places


def _asked_first(row: Row) -> Key:
    metric = row["metric"]
    place = METRICS.index(metric) if metric in METRICS else len(METRICS)
    return (row["tier"], row["level"], place, list(STEPS).index(row["steps"]))


def golden(found: Views) -> Table:
    """The cases that did not pass, and why."""
    rows = [
        [
            Cell(row["case_id"]),
            Cell(row["category"] or ""),
            Cell(row["outcome"], "muted" if row["is_known_limit"] else "fail"),
            Cell("known limit of the model" if row["is_known_limit"] else ""),
            Cell(row["reason"] or "", "muted"),
        ]
        for row in found["golden"]
        if row["outcome"] != "pass"
    ]
    total = len(found["golden"])
    note = f"{total - len(rows)} of {total} evaluated cases passed." if total else "No case was evaluated."
    columns = ["case", "kind", "outcome", "", "why"]
    return Table("Which answers were wrong?", columns, rows, note, is_grey=_is_void(found, "run"))


def phases(found: Views) -> Table:
    """Where the time went."""
    rows = [
        [
            Cell(row["stage"] + (f" (try {row['try']})" if row["try"] > 1 else "")),
            verdict(row["state"]),
            cell(row["seconds_s"]),
            cell(row["held_s"]),
            Cell((row["error"] or "").partition("\n")[0], "muted"),
        ]
        for row in found["phase"]
    ]
    return Table("Where did the time go?", ["stage", "state", "seconds", "of them held", "error"], rows)


def _is_void(found: Views, *tiers: str) -> bool:
    return any(is_void(run, *tiers) for run in found["run"])


def _void(found: Views, shown: list[Row]) -> dict[str, Any]:
    """How a table of rows of both tiers is greyed: as a whole, or those of the tier in which a rule was broken."""
    grey = frozenset(number for number, row in enumerate(shown) if not row["is_valid"])
    if _is_void(found, "run"):
        return {"is_grey": True, "why": broken(found, "run")}
    tiers = {shown[number].get("tier", "agent") for number in grey}
    if not grey:
        return {}
    is_all = len(grey) == len(shown)
    return {"is_grey": is_all, "grey_rows": frozenset() if is_all else grey, "why": broken(found, *tiers)}
