"""What the views of schema report hold about a run. Nothing is computed here: what it meant stands in sql/report."""

from typing import Any

from tasks import database
from tasks.catalog import UnknownName

Row = dict[str, Any]
Views = dict[str, list[Row]]
OF_A_RUN: tuple[str, ...] = ("run", "latency", "slo_verdict", "cost_per_task", "golden", "phase", "honesty")
OF_A_RUN += ("client", "ttft_share", "energy")
ORDER = {
    "latency": ("tier", "level", "metric", "steps", "q"),
    "slo_verdict": ("slo", "level"),
    "cost_per_task": ("lens",),
    "golden": ("case_id",),
    "phase": ("began_at",),
    "honesty": ("number",),
    "client": ("tier", "path", "level", "process"),
    "ttft_share": ("tier", "level", "q"),
    "energy": ("tier",),
}


def runs(**equal: Any) -> list[Row]:
    """Rows of report.run whose columns equal the given values, the latest claim first. Raises DatabaseAway."""
    return _ask("run", equal, ("claimed_at", "attempt"))[::-1]


def latest(run_id: str | None = None, attempt: int | None = None) -> Row:
    """The latest attempt: of a run, or of all. Raises UnknownName with the known ids, DatabaseAway."""
    wanted = {"run_id": run_id, "attempt": attempt}
    found = runs(**{key: value for key, value in wanted.items() if value is not None})
    if found:
        return found[0]
    known = list(dict.fromkeys(row["run_id"] for row in runs()))[:5]
    what = f"run '{run_id}'" if run_id else "run"
    raise UnknownName(f"the database holds no {what}; latest: {', '.join(known) or 'none yet: armwise run ARM'}")


def latest_valid(arm: str) -> Row:
    """The latest valid run of an arm. Raises UnknownName: why there is none, or which arms have runs."""
    found = runs(arm=arm)
    valid = [row for row in found if row["is_valid"]]
    if valid:
        return valid[0]
    if found:
        raise UnknownName(
            f"arm '{arm}' has no valid run to compare. The latest, {found[0]['run_id']}, broke: "
            f"{found[0]['invalid_reasons']}. Name the run itself to see it anyway"
        )
    known = sorted({row["arm"] for row in runs()})
    raise UnknownName(f"no run of an arm '{arm}' and no such run id; arms with runs: {', '.join(known) or 'none'}")


def views(run: Row) -> Views:
    """Every view's rows of one attempt."""
    return {view: of(run, view) for view in OF_A_RUN}


def of(run: Row, view: str) -> list[Row]:
    """One view's rows of one attempt. Raises DatabaseAway."""
    return _ask(view, {"run_id": run["run_id"], "attempt": run["attempt"]}, ORDER.get(view, ()))


def _ask(view: str, equal: dict[str, Any], order: tuple[str, ...]) -> list[Row]:
    import sqlalchemy as sa

    asked = sa.select(sa.text("*")).select_from(sa.table(view, schema="report"))
    for name, value in equal.items():
        asked = asked.where(sa.column(name) == value)
    with database.engine().connect() as connection:
        found = connection.execute(asked.order_by(*map(sa.column, order)))
        return [dict(row) for row in found.mappings()]
