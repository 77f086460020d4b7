"""validate: is this run an honest measurement? Every expectation of deploy/expectations on the run folder's tables.

Works on whatever a run left: a file that is missing or broken is an expectation that is not met, in words, never a
crash. An invalid run is stored with its reasons; it is never dropped and never averaged in. A tier without any row
gives one reason, not twenty.

`is_valid` is the strict conjunction: no rule broken anywhere. `invalid_scopes` says where one was (run, gateway,
agent): what was broken in one tier takes nothing from the other's numbers, and what was broken in the run takes all.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks import alike, artifact, facts, honesty, record, rows, suite
from tasks.run import TIERS, Run
from tasks.run import read as read_run
from tasks.stage import StageFailed

if TYPE_CHECKING:
    from pandas import DataFrame

FORMAT = 1  # 2026-11: the first
COLUMNS = {"requests": list(record.REQUEST), "tasks": list(record.TASK), "golden": list(record.GOLDEN)}
Document = dict[str, Any]
Rows = rows.Rows


@dataclass
class Found:
    """Tables by (name, scope), and what could not be read."""

    tables: dict[tuple[str, str], Rows] = field(default_factory=dict)
    faults: list[Document] = field(default_factory=list)

    def take(self, table: str, scope: str, of: Callable[[], Rows]) -> Rows:
        """Read one table; a fault leaves it empty."""
        try:
            found = of()
        except (artifact.BrokenArtifact, KeyError, TypeError, AttributeError) as error:
            self.faults.append(_unreadable(table, scope, error))
            found = []
        self.tables[table, scope] = found
        return found


@dataclass(frozen=True)
class Checked:
    """One expectation's row, and what it was about."""

    row: Document
    table: str
    is_unverified: bool
    is_of_nothing: bool  # it looked at no value


def validate(run_dir: Path) -> Path:
    """Write validation.json. Raises BrokenArtifact without run.json, StageFailed without Great Expectations."""
    path = run_dir / "validation.json"
    if path.exists():
        return path
    try:
        return artifact.write_once(path, validation(read_run(run_dir)))
    except ImportError as error:
        raise StageFailed(f"validate needs Great Expectations ({error}): pip install great-expectations") from error


def validation(run: Run) -> Document:
    """The content of validation.json."""
    found = _read(run)
    parameters = _parameters(run)
    checked = [one for name in suite.names() for one in _check(name, run, found, parameters)]
    broken = found.faults + list(_broken(checked, found))
    return {
        "format": FORMAT,
        "is_valid": not broken,
        "reasons": [_reason(row) for row in broken],
        "invalid_scopes": sorted({row["scope"] for row in broken}),
        "findings": [_reason(one.row) for one in checked if one.row["kind"] == "finding" and not one.row["success"]],
        "unverified": [one.row["says"] for one in checked if one.is_unverified],
        "expectations": found.faults + [one.row for one in checked],
    }


def _read(run: Run) -> Found:
    found, samples, sent = Found(), {}, {}
    (alike_to,) = found.take("control", "run", lambda: [alike.facts(run)]) or [alike.NOTHING]
    for tier in TIERS:
        samples[tier] = found.take("engine", tier, lambda tier=tier: rows.read(run.folder, tier, "engine"))  # type: ignore[misc]
        sent[tier] = found.take("requests", tier, lambda tier=tier: rows.read(run.folder, tier, "requests"))  # type: ignore[misc]
        if tier == "agent":
            found.take("tasks", tier, lambda: rows.read(run.folder, "agent", "tasks"))
        ratio = alike_to["control_hit_ratio"].get(tier)
        found.take(
            "tier",
            tier,
            lambda tier=tier, ratio=ratio: [facts.of_tier(run, tier, sent[tier], samples[tier], ratio)],  # type: ignore[misc]
        )
    found.take("gate", "run", lambda: [artifact.optional(run.folder, "gate")])
    if run.plan.gate.none_because is None:
        found.take("golden", "run", lambda: artifact.read_rows(run.folder / "golden.jsonl"))
    found.take("run", "run", lambda: [facts.of_run(run, samples, sent, alike_to)])
    return found


def _parameters(run: Run) -> Document:
    """What expectations may refer to as {$PARAMETER: name}."""
    return {
        "techniques": [run.technique],
        "max_failure_ratio": run.plan.max_failure_ratio,
        "golden_cases": facts.golden_cases(run),
        "failures": list(record.FAILURES),
        "task_failures": list(record.TASK_FAILURES),
        "request_columns": COLUMNS["requests"],
        "task_columns": COLUMNS["tasks"],
    }


def _check(name: str, run: Run, found: Found, parameters: Document) -> Iterator[Checked]:
    """One suite on every table that it is about."""
    wanted = suite.load(name)
    for scope in ("run", *TIERS):
        if (wanted.table, scope) not in found.tables:
            continue
        table = found.tables[wanted.table, scope]
        for kind in ("all", "good"):
            chosen = [one for one in wanted.expectations if one.rows == kind]
            frame = _frame(wanted.table, table if kind == "all" else [row for row in table if _is_good(row)])
            results = suite.evaluate(chosen, frame, parameters=parameters, driver=run.target.driver)
            for expectation, result in zip(chosen, results, strict=True):
                row = _row(name, scope, expectation, result)
                yield Checked(row, wanted.table, result.is_unverified, result.observed == suite.NOTHING)


def _frame(table: str, found: Rows) -> "DataFrame":
    from pandas import DataFrame

    columns = None if found else COLUMNS.get(table)
    return DataFrame.from_records(found, columns=columns)


def _is_good(row: Document) -> bool:
    return row.get("failure") is None and not row.get("is_aborted")


def _row(name: str, scope: str, wanted: suite.Expectation, result: suite.Result) -> Document:
    column = wanted.kwargs.get("column") or wanted.kwargs.get("column_A") or ""
    rule = honesty.rules()[wanted.rule]
    return {
        "suite": name,
        "rule": wanted.rule,
        "expectation": f"{wanted.type}({column})",
        "scope": scope,
        "kind": wanted.kind,
        "success": result.success,
        "is_unverified": result.is_unverified,
        "observed": result.observed,
        "expected": result.expected,
        "examples": list(result.examples),
        "says": wanted.says,
        "because": wanted.because or rule.because,
        "source": [*wanted.source, *rule.source],
    }


def _unreadable(table: str, scope: str, error: Exception) -> Document:
    words = str(error) if isinstance(error, artifact.BrokenArtifact) else f"{type(error).__name__}: {error}"
    wanted = suite.Expectation(rule=0, says=f"the files behind {table} can be read", type="expect_files")
    return _row("files", scope, wanted, suite.Result(False, words, f"the table {table} can be read"))


def _broken(checked: list[Checked], found: Found) -> Iterator[Document]:
    """Rows of the expectations that are not met; of an empty table, and of a tier without calls, only that it is so."""
    silent = {tier for tier in TIERS if not found.tables["requests", tier]}
    for one in checked:
        scope = one.row["scope"]
        is_empty = not found.tables[one.table, scope]
        is_told = one.table != "requests" and scope in silent
        is_fine = one.row["success"] or one.row["kind"] == "finding"
        if not (is_fine or is_told or (is_empty and one.is_of_nothing)):
            yield one.row


def _reason(row: Document) -> str:
    """One line, with the ids of some rows that broke it."""
    examples = f"; for example {', '.join(row['examples'][:2])}" if row["examples"] else ""
    return f"rule {row['rule']} ({row['scope']}): {row['says']}: {row['observed']}{examples}"
