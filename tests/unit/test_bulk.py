import math
from typing import Any

import pytest
import sqlalchemy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tasks import bulk, database

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**50), 2**50) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner),
    max_leaves=5,
)
ROW = st.fixed_dictionaries(
    {
        "t": st.none() | TEXT,
        "i": st.none() | st.integers(-(2**31), 2**31 - 1),
        "f": st.none() | st.floats(allow_nan=False),
        "b": st.none() | st.booleans(),
        "j": JSON,
        "a": st.lists(TEXT),
    }
)


def round_trip(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Through a table of its own in one transaction, which is not kept."""
    made = "n integer, t text, i integer, f double precision, b boolean, j jsonb, a text[], w_at timestamptz"
    with database.engine().connect() as connection:
        connection.exec_driver_sql(f"create table kept ({made})")
        bulk.copy(connection.connection.cursor(), "kept", [{"n": n} | row for n, row in enumerate(rows)])
        return [dict(row) for row in connection.execute(sqlalchemy.text("select * from kept order by n")).mappings()]


@given(rows=st.lists(ROW, min_size=1, max_size=20))
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_goes_in_comes_out(postgres: str, rows: list[dict[str, Any]]) -> None:
    found = [{name: row[name] for name in ("t", "i", "f", "b", "j", "a")} for row in round_trip(rows)]
    assert found == rows


def test_what_was_not_measured_is_null_and_infinity_stays(postgres: str) -> None:
    (row,) = round_trip([{"i": math.nan, "f": math.nan, "w_at": math.nan, "j": {"x": math.inf}}])
    assert (row["i"], row["f"], row["w_at"], row["j"]) == (None, None, None, {"x": "inf"})
    assert round_trip([{"f": "inf"}])[0]["f"] == math.inf


def test_nul_and_half_a_character_do_not_stop_a_load(postgres: str) -> None:
    (row,) = round_trip([{"t": "a\0b\ud800", "j": {"k\0": "a\0b\ud800"}, "a": ["x\0y"]}])
    assert (row["t"], row["j"], row["a"]) == ("a\ufffdb?", {"k\ufffd": "a\ufffdb?"}, ["x\ufffdy"])


def test_seconds_become_a_moment(postgres: str) -> None:
    assert round_trip([{"w_at": 1_790_000_000.25}])[0]["w_at"].timestamp() == 1_790_000_000.25


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"i": 1.5}, "table kept, row 1: i: must be integer, found 1.5"),
        ({"i": True}, "table kept, row 1: i: must be integer, found True"),
        ({"f": "fast"}, "table kept, row 1: f: must be double precision, found 'fast'"),
        ({"b": "yes"}, "table kept, row 1: b: must be boolean, found 'yes'"),
        ({"z": 1}, "table kept has no column z; known: n, t, i, f, b, j, a, w_at"),
    ],
)
def test_what_does_not_fit_is_named(postgres: str, row: dict[str, Any], words: str) -> None:
    with pytest.raises(bulk.DoesNotFit, match="^" + words.replace(".", r"\.")):
        round_trip([row])
