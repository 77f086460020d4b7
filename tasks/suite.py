"""A suite: expectations about one table of a run folder, as a file. One YAML file in deploy/expectations.

What is expected is data; Great Expectations evaluates it. Two things are ours: every expectation names the rule of an
honest result that it serves (tasks/honesty.py), and one that looked at nothing is not met, since "no row broke it" says
nothing about no rows. Where nothing to look at is a good state, the file says `optional`; of a fact of a tier or a run
that nobody can know then, the result is `unverified`.

A `finding` that is not met is told and breaks nothing: what a reader must know before reading a number that stands.

Tables: requests, tasks (rows of a tier), golden (cases of the gate), tier (one row of facts per tier), run (one row).
"""

import logging
import os
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from math import isnan
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from tasks import catalog, settings
from tasks.document import Document, read

if TYPE_CHECKING:
    from pandas import DataFrame

NOTHING = "nothing to look at"
SHOWN = 5  # unexpected values, and ids of rows, that a result names
IDS = ("request_id", "task_id", "case_id")  # which row it was, in the order in which a table is asked for one


class Expectation(Document):
    """`type` and `kwargs` are Great Expectations'; {$PARAMETER: name} in kwargs is a value of the run."""

    rule: int = Field(ge=0, le=12)  # of tasks/honesty.py
    says: str = Field(min_length=10)
    because: str | None = Field(default=None, min_length=20)  # why this bound; without it, why the rule
    source: list[str] = []  # beside the rule's
    kind: Literal["fault", "finding"] = "fault"
    only_if: str | None = None  # a column of a one-row table: where it is false, the expectation does not apply
    type: str = Field(pattern="^expect_")
    kwargs: dict[str, Any] = Field(default_factory=dict)
    rows: Literal["all", "good"] = "all"  # good: neither failed nor cut off
    optional: bool = False  # no value to look at is fine
    unverifiable_on: list[str] = Field(
        default_factory=list
    )  # drivers under which nobody can know: `unverified`, no fault
    show: list[str] = Field(default_factory=list)  # columns of a one-row table whose values explain the result

    def is_of_facts(self, table: "DataFrame") -> bool:
        """Whether it asks for one fact of one row, and not for rows."""
        return len(table) == 1 and "column" in self.kwargs and not any(name in table for name in IDS)


class Suite(Document):
    """The content of one file in deploy/expectations."""

    says: str = Field(min_length=10)
    table: Literal["requests", "tasks", "golden", "tier", "run"]
    expectations: list[Expectation] = Field(min_length=1)


@dataclass(frozen=True)
class Result:
    success: bool
    observed: str
    expected: str
    is_unverified: bool = False
    examples: tuple[str, ...] = ()  # ids of rows that broke it


def names() -> list[str]:
    return catalog.names(settings.deploy("expectations"), ".yaml")


def load(name: str) -> Suite:
    """Raises UnknownName, InvalidDocument."""
    return read(catalog.path_of(settings.deploy("expectations"), name, ".yaml"), Suite)


def evaluate(
    wanted: list[Expectation], table: "DataFrame", *, parameters: Mapping[str, Any], driver: str
) -> Iterator[Result]:
    """One result per expectation, in order. Raises ImportError where Great Expectations is not installed."""
    if wanted:
        found = _validate(table, wanted, parameters)
        for number, expectation in enumerate(wanted):
            yield _result(expectation, found[number], table, parameters, driver)


@cache
def _context() -> Any:
    """Great Expectations, quietly: no analytics, no progress bars, no warnings of its imports, no log lines."""
    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import great_expectations

        context: Any = great_expectations.get_context(mode="ephemeral")
    logging.getLogger("great_expectations").setLevel(logging.CRITICAL)
    context.variables.progress_bars = {"globally": False, "metric_calculations": False}
    return context


def _validate(table: "DataFrame", wanted: list[Expectation], parameters: Mapping[str, Any]) -> dict[int, Any]:
    """Results by place in `wanted`: Great Expectations puts those that stumbled first."""
    context = _context()
    from great_expectations import ExpectationSuite

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        given = [{"type": e.type, "kwargs": e.kwargs, "meta": {"number": i}} for i, e in enumerate(wanted)]
        suite = ExpectationSuite(name="suite", expectations=given)
        batch = context.data_sources.pandas_default.read_dataframe(table)
        results = batch.validate(suite, expectation_parameters=dict(parameters)).results
    return {result.expectation_config.meta["number"]: result for result in results}


def _result(wanted: Expectation, found: Any, table: "DataFrame", parameters: Mapping[str, Any], driver: str) -> Result:
    expected = bound(wanted, parameters)
    if wanted.only_if and wanted.only_if in table and len(table) and not table[wanted.only_if].iloc[0]:
        return Result(True, f"does not apply: {wanted.only_if} is false", expected)
    looked_at = _looked_at(found)
    if looked_at == 0 and driver in wanted.unverifiable_on:
        return Result(True, f"unverified: driver {driver} cannot show it", expected, is_unverified=True)
    if looked_at == 0 and not wanted.optional:
        return Result(False, NOTHING, expected)
    shown = "".join(f"; {name} {_value(table[name].iloc[0])}" for name in wanted.show if name in table and len(table))
    if looked_at == 0 and wanted.is_of_facts(table):
        is_fault = wanted.kind == "fault"
        words = "unverified: nothing shows it" if is_fault else "nothing to compare"
        return Result(True, words + shown, expected, is_unverified=is_fault)
    observed = _observed(wanted, found, table) + shown
    return Result(bool(found.success), observed, expected, examples=_examples(found, table))


def _examples(found: Any, table: "DataFrame") -> tuple[str, ...]:
    """Ids of the first rows that broke it, of a table whose rows have one."""
    column = next((name for name in IDS if name in table), None)
    places = found.result.get("partial_unexpected_index_list") or []
    if column is None or found.success:
        return ()
    return tuple(str(table[column].iloc[place]) for place in places[:SHOWN])


def _looked_at(found: Any) -> int:
    """Values that decided it. A table's expectation (row count, columns) always looks at something."""
    if "element_count" not in found.result:
        return 1
    return int(found.result["element_count"] - (found.result.get("missing_count") or 0))


def _observed(wanted: Expectation, found: Any, table: "DataFrame") -> str:
    result, column = found.result, wanted.kwargs.get("column")
    if not result:
        return _error(found.exception_info)
    if "observed_value" in result:
        missing = (result.get("details") or {}).get("mismatched", {}).get("missing")
        observed = result["observed_value"]
        whole = f"{len(observed)} columns" if isinstance(observed, list) else str(observed)
        return f"missing: {', '.join(missing)}" if missing else whole
    if column in table and len(table) == 1:
        return f"{column} {_value(table[column].iloc[0])}"
    count, total = result["unexpected_count"], result["element_count"]
    some = ", ".join(str(_value(value)) for value in result.get("partial_unexpected_list", [])[:SHOWN])
    return f"not so in {count} of {total}: {some}" if count else f"so in all {total}"


def _error(info: Mapping[str, Any]) -> str:
    """The first line of what Great Expectations says it stumbled over (a missing column)."""
    if "exception_message" in info:
        return str(info["exception_message"]).splitlines()[0]
    return next((_error(inner) for inner in info.values() if isinstance(inner, Mapping)), "no result")


def bound(wanted: Expectation, parameters: Mapping[str, Any] | None = None) -> str:
    """The expectation in words: its type and arguments, with the run's own values put in, or their names."""
    given = {key: _resolved(value, parameters) for key, value in wanted.kwargs.items() if key != "ignore_row_if"}
    words = ", ".join(f"{key} {value}" for key, value in given.items())
    return f"{wanted.type.removeprefix('expect_').replace('_', ' ')}: {words}"


def _resolved(value: Any, parameters: Mapping[str, Any] | None) -> Any:
    if not isinstance(value, dict) or "$PARAMETER" not in value:
        return value
    return f"of the run ({value['$PARAMETER']})" if parameters is None else parameters[value["$PARAMETER"]]


def _value(value: Any) -> Any:
    """A cell as a person writes it."""
    value = value.item() if hasattr(value, "item") else value
    if value is None or (isinstance(value, float) and isnan(value)):
        return "not known"
    if isinstance(value, float):
        return int(value) if value.is_integer() else f"{value:.4g}"
    return value
