"""Every file in deploy/expectations keeps the contract of a suite; adding one needs no other edit."""

import re
import warnings

import pytest

from tasks import facts, honesty, record, run, settings, suite
from tasks.document import InvalidDocument, parse
from tasks.engines.sim.faults import TABLE

pytestmark = pytest.mark.services  # Great Expectations

NAMES = suite.names()
GOOD = {"rule": 4, "says": "long enough to say something", "type": "expect_column_values_to_be_unique"}


def test_the_folder_is_not_empty():
    assert NAMES


def test_together_they_serve_every_rule():
    rules = {one.rule for name in NAMES for one in suite.load(name).expectations}
    assert rules == set(honesty.rules()) == set(range(13))


@pytest.mark.parametrize("name", NAMES)
def test_each_bound_that_we_chose_has_a_reason(name):
    for one in suite.load(name).expectations:
        bounds = [one.kwargs[key] for key in ("min_value", "max_value") if key in one.kwargs]
        assert one.because or not [bound for bound in bounds if bound not in (0, 1)], one.says


def test_each_rule_names_a_public_complaint_of_the_research():
    """repository#number (or its release)."""
    sources = [source for rule in honesty.rules().values() for source in rule.source]
    sources += [source for name in NAMES for one in suite.load(name).expectations for source in one.source]
    assert not [s for s in sources if not re.fullmatch(r"[\w.-]+/[\w.-]+(#\d+| v[\d.]+)", s)]


def test_every_planted_fault_is_caught_by_an_expectation_of_its_rule():
    known = {(one.rule, one.says): one for name in NAMES for one in suite.load(name).expectations}
    told = honesty.faults().faults
    assert {(one.number, one.fault) for one in told} == {(fault.number, name) for name, fault in TABLE.items()}
    for one in told:
        kinds = {known[one.rule, says].kind for says in one.by}
        assert kinds == {"alarm": {"fault"}, "finding": {"finding"}, "seen_through": set()}[one.becomes], one.fault


def test_every_test_that_is_said_to_prove_a_rule_is_there():
    named = [honesty.faults().test, *(path for rule in honesty.rules().values() for path in rule.proven_by)]
    assert not [path for path in named if not (settings.root() / path).is_file()]


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
        "run": set(facts.of_run(this, {}, {})),
    }
    wanted = suite.load(name)
    for one in wanted.expectations:
        named = {one.kwargs[key] for key in ("column", "column_A", "column_B") if key in one.kwargs}
        named |= {one.only_if} if one.only_if else set()
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
