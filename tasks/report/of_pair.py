"""Control against arm: two deployments side by side, and what all alike deployments of both say together.

Two deployments cannot tell an arm's effect from the difference between any two deployments: the same arm deployed twice
differs too, and by how much (the noise floor) is known only from several of them. So the outcome of every line about
these two is INCONCLUSIVE, with the reason. What can be said is whether the bounds within them overlap. Outcomes over
all deployments are in a table of their own (tasks/report/deployments.py).
"""

import math
from collections.abc import Iterator
from typing import Any

from tasks import alike
from tasks.catalog import UnknownName
from tasks.report import charts, client, deployments, of_run, parts, stored
from tasks.report.figures import Cell, Report, Table, cell, estimate, moment, number, percent, samples, usd, verdict
from tasks.report.honesty import broken, is_void
from tasks.report.stored import Row, Views

WHY = "no noise floor in 1 deployment each"
NOTE = f"INCONCLUSIVE: {WHY}. The last column compares the bounds of these two deployments, and is no verdict."
COLUMNS = ["indicator", "control", "arm", "arm / control", "n control", "n arm", "outcome", "within these deployments"]
ALIKE = ("engine", "plan", "plan_digest", "target", "gpu_model", "golden_sha256")  # must not differ between two runs
RUN_TIERS = ("gateway", "agent")
FIRST = ("agent", "ttft_ms", "later")
BRIEF = (("ttft_ms", "e2e_ms", "tpot_ms", "task_ms"), (0.5, 0.95))  # in the terminal; all is on the page
Pair = tuple[Views, Views]


def build(control: str, arm: str) -> Report:
    """Of two arms' latest valid runs, or of two runs by id. Raises UnknownName, DatabaseAway."""
    runs = (_run(control), _run(arm))
    if runs[0]["run_id"] == runs[1]["run_id"]:
        raise UnknownName(
            f"{control} and {arm}: are the same run {runs[0]['run_id']}; a run needs another to compare with"
        )
    if len({run["engine"] == "sim" for run in runs}) > 1:
        raise UnknownName(f"{control} and {arm}: one is simulated and one is measured; they are never compared")
    pair = (stored.views(runs[0]), stored.views(runs[1]))
    names = [run["arm"] if runs[0]["arm"] != runs[1]["arm"] else run["run_id"] for run in runs]
    tables = [_first(pair), _latency(pair, "gateway"), _latency(pair, "agent"), _slos(pair), _costs(pair), _who(runs)]
    if not (_unlike(runs) or any(map(is_void, runs)) or runs[0]["arm"] == runs[1]["arm"]):
        tables.insert(1, deployments.table(*runs))
    tables += [client.compared(pair), _details(pair, "gateway"), _details(pair, "agent")]
    return Report(
        title=f"{names[0]} (control) against {names[1]}",
        name=f"{runs[0]['run_id']}-against-{runs[1]['run_id']}",
        tables=tables,
        charts=[chart for chart in (charts.latency(dict(zip(names, pair, strict=True))),) if chart],
        alarms=[*(words for run in runs for words in of_run.alarms(run)), *_alarms(runs)],
    )


def _run(name: str) -> Row:
    """A run by its id, else the latest valid run of an arm."""
    return found[0] if (found := stored.runs(run_id=name)) else stored.latest_valid(name)


def _alarms(runs: tuple[Row, Row]) -> list[str]:
    return [f"NOT ALIKE: {words}" for words in (*_unlike(runs), *_unrelated(runs))]


def _unlike(runs: tuple[Row, Row]) -> list[str]:
    """Differences that are not the arm's, and make any comparison doubtful."""
    found = [f"{what}: {runs[0][what]} and {runs[1][what]}" for what in ALIKE if runs[0][what] != runs[1][what]]
    varies = {key for run in runs for key in run["varies"] or []}
    return found + alike.version_differences(runs[0]["versions"], runs[1]["versions"], varies)


def _unrelated(runs: tuple[Row, Row]) -> list[str]:
    """Two runs that nobody declared to be compared: doubtful, and no rule's business."""
    found = []
    if None not in (runs[0]["control"], runs[1]["control"]):
        found.append(f"neither arm is the other's control ({runs[0]['control']}, {runs[1]['control']})")
    elif runs[1]["control"] not in (None, runs[0]["arm"]):
        found.append(f"control of {runs[1]['arm']} is {runs[1]['control']}, not {runs[0]['arm']}")
    return found


def _who(runs: tuple[Row, Row]) -> Table:
    facts: list[tuple[str, list[Cell]]] = [
        ("run", [Cell(f"{run['run_id']}, attempt {run['attempt']}") for run in runs]),
        ("arm", [Cell(run["arm"]) for run in runs]),
        ("validity", [verdict("valid" if run["is_valid"] else "INVALID") for run in runs]),
        ("pipeline", [verdict(run["state"]) for run in runs]),
        ("golden gate", [verdict(run["gate"]) for run in runs]),
        ("golden cases passed", [Cell(f"{run['golden_passed']} of {run['golden_cases']}", "number") for run in runs]),
        ("requests, failed", [Cell(f"{run['requests']}, {run['failed_requests']}", "number") for run in runs]),
        ("agent tasks, ended right", [Cell(f"{run['tasks']}, {run['successful_tasks']}", "number") for run in runs]),
        ("plan, target", [Cell(f"{run['plan']}, {run['target']}") for run in runs]),
        ("claimed", [Cell(moment(run["claimed_at"])) for run in runs]),
    ]
    return Table("Which runs?", ["", "control", "arm"], [[Cell(name), *cells] for name, cells in facts])


def _first(pair: Pair) -> Table:
    """The line to read first: the wait for the first token after the first step, where prompts repeat."""
    rows = [row for row in _lines(pair) if row[0] == FIRST and row[1] == 0.5]
    cells = [cells for _, _, cells in rows]
    return Table("TTFT p50 of agent steps 2+", COLUMNS, cells, f"{parts.BOUNDS} {NOTE}", **_void(pair, "agent"))


def _latency(pair: Pair, tier: str) -> Table:
    rows = [cells for place, q, cells in _lines(pair) if place[0] == tier and _is_brief(place[1], q)]
    return Table(f"Latency, {tier} tier", COLUMNS, rows, **_void(pair, tier))


def _details(pair: Pair, tier: str) -> Table:
    rows = [cells for place, q, cells in _lines(pair) if place[0] == tier and not _is_brief(place[1], q)]
    return Table(f"Latency, {tier} tier: the rest", COLUMNS, rows, **_void(pair, tier), is_detail=True)


def _is_brief(metric: str, q: float) -> bool:
    return metric in BRIEF[0] and q in BRIEF[1]


def _lines(pair: Pair) -> Iterator[tuple[tuple[str, str, str], float, list[Cell]]]:
    """((tier, metric, steps), quantile, cells) of every indicator that either run has."""
    control, arm = (parts.grouped(found["latency"]) for found in pair)
    for place in [*control, *(place for place in arm if place not in control)]:
        tier, users, metric, steps, unit = place
        if metric not in parts.METRICS:
            continue
        for q in parts.QUANTILES:
            rows = (control.get(place, {}).get(q), arm.get(place, {}).get(q))
            name = f"{percent(q)} of {metric} ({unit}), {tier}, {users} users, {parts.STEPS[steps]}"
            yield (tier, metric, steps), q, [Cell(name), *_compared(pair, tier, *rows)]


def _compared(pair: Pair, tier: str, control: Row | None, arm: Row | None) -> list[Cell]:
    return [
        estimate(control),
        estimate(arm),
        Cell(ratio(control, arm), "number"),
        samples(control),
        samples(arm),
        outcome(pair, tier),
        Cell(overlap(control, arm), "muted"),
    ]


def outcome(pair: Pair, tier: str) -> Cell:
    """What may be concluded from one deployment each: nothing (WHY)."""
    return verdict("INVALID" if _grey(pair, tier) else "INCONCLUSIVE")


def ratio(control: Row | None, arm: Row | None) -> str:
    """Estimate over estimate, or a dash where that is no number."""
    return times(*(row["estimate"] if row else None for row in (control, arm)))


def times(control: float | None, arm: float | None) -> str:
    """`1.2x`: how many times the control's value the arm's is."""
    if not control or arm is None or math.isinf(control) or math.isinf(arm):
        return "–"
    return f"{arm / control:.2f}x"


def overlap(control: Row | None, arm: Row | None) -> str:
    """Whether the two-sided bounds within each deployment overlap."""
    if control is None or arm is None:
        return "only one of them has it"
    if _is_below(arm, control) or _is_below(control, arm):
        return "differs within these two deployments"
    if None in (control["lower"], control["upper"], arm["lower"], arm["upper"]):
        return "not known: n is too small for a bound"
    return "bounds overlap"


def _is_below(low: Row, high: Row) -> bool:
    return low["upper"] is not None and high["lower"] is not None and low["upper"] < high["lower"]


def _slos(pair: Pair) -> Table:
    control, arm = ({(row["slo"], row["users"]): row for row in found["slo_verdict"]} for found in pair)
    rows = []
    for key in [*control, *(key for key in arm if key not in control)]:
        some = control.get(key) or arm[key]
        says = f"{percent(some['fraction'])} of {some['indicator']} ≤ {number(some['objective'])} {some['unit']}"
        cells = [
            c
            for row in (control.get(key), arm.get(key))
            for c in (verdict(row["verdict"] if row else None), estimate(row))
        ]
        why = [row["reason"] for row in (control.get(key), arm.get(key)) if row]
        rows.append(
            [Cell(f"{key[0]}, {key[1]} users"), Cell(says), *cells, Cell("; ".join(dict.fromkeys(why)), "muted")]
        )
    columns = ["SLO", "objective", "control", "measured", "arm", "measured", "why"]
    return Table("SLO verdicts, each run by itself", columns, rows, parts.ONE_SIDED, **_void(pair, *RUN_TIERS))


def _costs(pair: Pair) -> Table:
    control, arm = ({row["lens"]: row for row in found["cost_per_task"]} for found in pair)
    rows = []
    for lens, name in parts.LENSES.items():
        both = [found.get(lens) for found in (control, arm)]
        usds = [row["usd_per_task"] if row else None for row in both]
        why = "; ".join(dict.fromkeys(row["reason"] or "" for row in both if row))
        cells = [Cell(usd(value), "number") for value in usds]
        tasks = [cell(row["tasks"] if row else None) for row in both]
        ends = [outcome(pair, "agent"), Cell(why, "muted")]
        rows.append([Cell(name), *cells, Cell(times(*usds), "number"), *tasks, *ends])
    columns = ["lens", "control", "arm", "arm / control", "tasks control", "tasks arm", "outcome", "rests on"]
    prices = {parts.price(row) for found in (control, arm) for row in found.values()}
    note = f"USD per successful task; price per hour: {'; '.join(sorted(prices)) or 'none'}."
    return Table("Cost of one successful task", columns, rows, note, **_void(pair, "agent"))


def _grey(pair: Pair, *tiers: str) -> bool:
    """Whether either run broke a rule there, or the two are not alike (rule 11): then nothing can be compared."""
    runs = (pair[0]["run"][0], pair[1]["run"][0])
    return any(is_void(run, *tiers) for run in runs) or bool(_unlike(runs))


def _void(pair: Pair, *tiers: str) -> dict[str, Any]:
    is_grey = _grey(pair, *tiers)
    return {"is_grey": is_grey, "why": _why(pair, *tiers) if is_grey else ""}


def _why(pair: Pair, *tiers: str) -> str:
    """For which reason it is grey, in words."""
    unlike = _unlike((pair[0]["run"][0], pair[1]["run"][0]))
    return "; ".join([*filter(None, (broken(found, *tiers) for found in pair)), *(f"rule 11: {one}" for one in unlike)])
