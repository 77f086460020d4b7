"""Every file in deploy/expectations keeps the contract of a suite; adding one needs no other edit."""

import warnings

import pytest

from tasks import facts, record, run, suite
from tasks.document import InvalidDocument, parse

pytestmark = pytest.mark.services  # Great Expectations

NAMES = suite.names()
GOOD = {"rule": 4, "says": "long enough to say something", "type": "expect_column_values_to_be_unique"}


def test_the_folder_is_not_empty():
    assert NAMES


def test_together_they_serve_the_rules_that_a_run_can_show():
    """Rule 10 (planned output lengths) and 11 (compared runs are alike) are no matter of one run of these plans."""
    rules = {one.rule for name in NAMES for one in suite.load(name).expectations}
    assert rules == set(suite.RULES) - {10, 11}


@pytest.mark.parametrize("name", NAMES)
def test_loads_and_great_expectations_knows_each_type(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own imports
        import great_expectations.expectations as known
    for one in suite.load(name).expectations:
        assert hasattr(known, "".join(part.title() for part in one.type.split("_"))), one.type


@pytest.mark.parametrize("name", NAMES)
def test_each_column_is_one_of_its_table(name, tmp_path):
    """A misspelt column would be a broken rule in every run."""
    import measured_run

    this = run.read(measured_run.make(tmp_path))
    columns = {
        "requests": set(record.REQUEST),
        "tasks": set(record.TASK),
        "golden": {"case_id", "outcome"},
        "tier": set(facts.of_tier(this, "gateway", [], [])),
        "run": set(facts.of_run(this, [])),
    }
    wanted = suite.load(name)
    for one in wanted.expectations:
        named = {one.kwargs[key] for key in ("column", "column_A", "column_B") if key in one.kwargs}
        assert named | set(one.show) <= columns[wanted.table], one.says


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("typ", "x", r"expectations\.0\.typ: not a known field; known: .*type"),
        ("rule", 13, r"expectations\.0\.rule: .*less than or equal to 12"),
        ("type", "column_is_fine", r"expectations\.0\.type: .*\^expect_"),
        ("rows", "bad", r"expectations\.0\.rows: .*'all' or 'good'"),
        ("says", "short", r"expectations\.0\.says: .*at least 10"),
    ],
)
def test_a_bad_field_is_named(field, value, words):
    content = {"says": "long enough to say something", "table": "run", "expectations": [GOOD | {field: value}]}
    with pytest.raises(InvalidDocument, match=words):
        parse(content, suite.Suite, source="deploy/expectations/x.yaml")
