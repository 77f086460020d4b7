import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from conftest import database_like

from tasks import database, metrics, record, settings

KINDS = {
    str: {"text"},
    int: {"integer", "bigint"},
    float: {"double precision", "timestamp with time zone"},
    bool: {"boolean"},
}


@pytest.fixture
def empty(postgres_server: str) -> Iterator[str]:
    """A database without any schema of ours."""
    with database_like(postgres_server, "template1") as url:
        yield url


def asked(statement: str, **values: Any) -> list[tuple[Any, ...]]:
    with sqlalchemy.create_engine(database.url(), poolclass=sqlalchemy.NullPool).begin() as connection:
        found = connection.execute(sqlalchemy.text(statement), values)
        return [tuple(row) for row in found] if found.returns_rows else []


def columns(table: str) -> dict[str, str]:
    statement = "select column_name, data_type from information_schema.columns where table_schema = 'public' and "
    return dict(asked(statement + "table_name = :table", table=table))  # type: ignore[arg-type]


def test_migrating_twice_changes_nothing(empty: str) -> None:
    statement = (
        "select relname, xmin::text from pg_class where relnamespace::regnamespace::text in ('public', 'report')"
    )
    database.migrate()
    before = asked(statement)
    database.migrate()
    assert before == asked(statement)
    assert {"run", "request", "slot_lease"} <= {name for name, _ in before}


def test_several_may_migrate_at_once(empty: str) -> None:
    faults: list[BaseException] = []

    def work() -> None:
        try:
            database.migrate()
        except BaseException as error:  # noqa: BLE001 (handed to the test's own thread)
            faults.append(error)

    threads = [threading.Thread(target=work) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults
    assert asked("select version_num from alembic_version") == [("0001",)]


@pytest.mark.parametrize(
    ("table", "kind", "fields"), [("request", "request", record.REQUEST), ("agent_task", "task", record.TASK)]
)
def test_a_table_has_the_columns_of_its_record(postgres: str, table: str, kind: str, fields: dict[str, Any]) -> None:
    found = columns(table)
    assert set(found) == {"run_id", "attempt", *fields, *(m.name for m in metrics.TABLE if m.row == kind)}
    assert not {name: found[name] for name, of in fields.items() if found[name] not in KINDS[of]}


def test_a_metric_explains_itself_in_the_database(postgres: str) -> None:
    (said,) = asked(
        "select col_description('request'::regclass, attnum) from pg_attribute "
        "where attrelid = 'request'::regclass and attname = 'ttft_ms'"
    )
    assert said == ("first delta that carries content, reasoning or tool-call arguments, minus sent",)


def test_a_new_metric_needs_no_migration(postgres: str, monkeypatch: pytest.MonkeyPatch) -> None:
    new = replace(metrics.BY_NAME["ttft_ms"], name="patience_ms", says="new")
    monkeypatch.setattr(metrics, "TABLE", (*metrics.TABLE, new))
    database.migrate()
    assert columns("request")["patience_ms"] == "double precision"
    assert asked("select says from metric where name = 'patience_ms'") == [("new",)]


def test_a_view_comes_and_goes_with_its_file(postgres: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(settings.root() / "sql", tmp_path / "sql")
    monkeypatch.setenv("ARMWISE_ROOT", str(tmp_path))
    (tmp_path / "sql" / "report" / "golden.sql").unlink()
    (tmp_path / "sql" / "report" / "new.sql").write_text("create view report.new as select 1 as one;")
    database.migrate()
    views = {name for (name,) in asked("select viewname from pg_views where schemaname = 'report'")}
    assert "new" in views
    assert "golden" not in views
    assert asked("select has_table_privilege('armwise_read', 'report.new', 'select')") == [(True,)]


def test_a_view_that_does_not_fit_leaves_the_old_ones(
    postgres: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(settings.root() / "sql", tmp_path / "sql")
    monkeypatch.setenv("ARMWISE_ROOT", str(tmp_path))
    (tmp_path / "sql" / "report" / "broken.sql").write_text("create view report.broken as select nothing from run;")
    with pytest.raises(database.DatabaseAway, match=r"broken\.sql: column \"nothing\" does not exist"):
        database.migrate()
    assert asked("select count(*) from report.run") == [(0,)]


def test_a_schema_from_the_future_is_refused_in_words(empty: str) -> None:
    database.migrate()
    asked("update alembic_version set version_num = '9999'")
    asked("comment on schema report is 'another'")
    with pytest.raises(database.DatabaseAway, match=r"not one that this checkout knows: .*9999"):
        database.migrate()


def test_keys_begin_with_the_run_and_its_attempt(postgres: str) -> None:
    of_runs = [
        name
        for (name,) in asked(
            "select table_name from information_schema.columns where column_name = 'attempt' "
            "and table_schema = 'public' and table_name not like 'slot_%'"
        )
    ]
    firsts = dict(
        asked(
            "select indrelid::regclass::text, (array_agg(attname order by ordinality))[1:2] from pg_index "
            "cross join unnest(indkey) with ordinality as key (attnum, ordinality) "
            "join pg_attribute on attrelid = indrelid and pg_attribute.attnum = key.attnum group by 1, indexrelid"
        )
    )  # type: ignore[arg-type]
    assert len(of_runs) == 13
    assert {name: firsts.get(name) for name in of_runs} == {name: ["run_id", "attempt"] for name in of_runs}
