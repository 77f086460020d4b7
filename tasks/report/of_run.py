"""The report of one run."""

from tasks.report import charts, client, energy, honesty, parts, stored
from tasks.report.figures import Report


def build(run_id: str | None = None, attempt: int | None = None) -> Report:
    """Of the latest attempt of a run, or of the latest run of all. Raises UnknownName, DatabaseAway."""
    run = stored.latest(run_id, attempt)
    found = stored.views(run)
    tables = [parts.head(run), parts.slos(found), parts.costs(found), parts.latency(found), parts.golden(found)]
    return Report(
        title=f"{run['arm']}: run {run['run_id']}",
        name=run["run_id"],
        tables=[*tables, *energy.tables(found), *client.tables(found), *honesty.tables(found), parts.phases(found)],
        charts=[chart for chart in (charts.latency({run["arm"]: found}), charts.phases(found)) if chart],
        alarms=alarms(run),
    )


def alarms(run: stored.Row) -> list[str]:
    """What a reader must know before any number."""
    words = []
    if not run["is_valid"]:
        where = run["invalid_scopes"]
        of = "" if "run" in where.split(", ") else f" in tier {where.replace(', ', ' and ')}"
        words.append(f"INVALID{of}, not to be relied on: {run['run_id']} ({run['arm']}): {run['invalid_reasons']}")
    if run["findings"]:
        words.append(f"TO KNOW: {run['run_id']} ({run['arm']}): {run['findings']}")
    if run["state"] == "failed":
        words.append(f"FAILED in {run['failed_stage']}: {run['run_id']} ({run['arm']}): {run['error']}")
    if run["gate"] == "UNGATED":
        words.append(f"UNGATED: nobody checked that the answers of {run['run_id']} ({run['arm']}) are right")
    if run["engine"] == "sim":
        words.append(f"SIMULATED: {run['run_id']} ({run['arm']}) ran on the sim engine; these are no measurements")
    return words
