"""`armwise sql`: whatever is asked, nothing is written. On a server where our role owns the tables, the harder case."""

from pathlib import Path
from typing import Any

import pytest
import sqlalchemy

from tasks import database
from tasks.commands.sql import sql
from tasks.read_only import Refused, ask

ESCAPED = "select set_config('role', 'none', false), "
ATTACKS = [
    "delete from run",
    "insert into metric values ('a', 'ms', 'lower', 'x')",
    "insert into metric values ('a', 'ms', 'lower', 'x') returning name",
    "with gone as (delete from metric returning 1) select * from gone",
    "select 1; delete from metric",
    "select 1; commit; delete from metric",
    "select 1; reset role; delete from metric",
    "commit",
    "reset role",
    "set role armwise",
    "set transaction read write",
    "do $$ begin execute 'reset role'; execute 'delete from metric'; end $$",
    "copy metric to program 'true'",
    "copy metric from program 'echo'",
    "create table stolen (a integer)",
    "create temporary table stolen (a integer)",
    "drop view report.run",
    "truncate metric",
    "explain analyze delete from metric",
    "select lo_from_bytea(0, 'x')",
    "select nextval('nothing')",
    "select pg_read_file('/etc/passwd')",
    "select * from metric for update",
    ESCAPED + "set_config('transaction_read_only', 'off', false)",
    ESCAPED + "query_to_xml('delete from metric returning 1', true, true, '')",
    ESCAPED + "report.ask('delete from metric returning 1')",
    "select report.ask('set transaction read write')",
    "call nothing()",
    "execute nothing",
    "lock table metric in exclusive mode",
    "vacuum",
    "",
    ";",
    "-- nothing",
]


def metric_rows() -> list[Any]:
    with database.engine().connect() as connection:
        return list(connection.execute(sqlalchemy.text("select m.*, xmin::text from metric m order by name")))


@pytest.mark.parametrize("statement", ATTACKS)
def test_a_statement_that_writes_is_refused_and_writes_nothing(postgres: str, statement: str) -> None:
    before = metric_rows()
    with pytest.raises(Refused):
        list(ask(statement))
    assert metric_rows() == before


def test_the_words_say_what_is_allowed(postgres: str) -> None:
    with pytest.raises(Refused, match=r"cannot open DELETE query as cursor.*Allowed: one SELECT"):
        list(ask("delete from run"))


def test_a_mistake_is_named(postgres: str) -> None:
    with pytest.raises(Refused, match=r'^column "clams" does not exist'):
        list(ask("select clams from report.run"))


@pytest.mark.parametrize(
    ("statement", "rows"),
    [
        ("select 1 as a, null as b", [("a", "b"), (1, None)]),
        ("select 1 where false", [("?column?",)]),
        ("values (1), (2);", [("column1",), (1,), (2,)]),
        ("with x as (select 1 as a) select a from x", [("a",), (1,)]),
        ("show transaction_read_only", [("transaction_read_only",), ("on",)]),
        ("select current_user", [("current_user",), ("armwise_read",)]),
        ("select '100%' as \"p%s\"", [("p%s",), ("100%",)]),
    ],
)
def test_a_question_is_answered(postgres: str, statement: str, rows: list[tuple[Any, ...]]) -> None:
    assert list(ask(statement)) == rows


def test_every_row_comes(postgres: str) -> None:
    assert [row[0] for row in list(ask("select generate_series(1, 2500)"))[1:]] == list(range(1, 2501))


def test_it_prints_csv(postgres: str, capsys: pytest.CaptureFixture[str]) -> None:
    sql("""select 'a,"b"' as text, null as nothing, true as yes, 'Infinity'::float8 as inf, 1.5 as number,
           '{"a": [1]}'::jsonb as json, '2026-11-01 10:00+00'::timestamptz as at""")
    assert capsys.readouterr().out == (
        'text,nothing,yes,inf,number,json,at\n"a,""b""",,true,Infinity,1.5,"{""a"": [1]}",2026-11-01T10:00:00+00:00\n'
    )


def test_a_database_that_is_away(armwise_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARMWISE_DB_URL", "postgresql://x@127.0.0.1:1/x")
    with pytest.raises(database.DatabaseAway, match="does not answer"):
        list(ask("select 1"))
