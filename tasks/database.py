"""Postgres: the embedded server (tasks/postgres.py), or the one that ARMWISE_DB_URL names.

ARMWISE_DB_URL=none means: no database; everything but load and the reports works without one. The schema is brought up
to date by whoever first opens the database in a process: Alembic's migrations, then a column per metric, then the views
of sql/report, all in one transaction under an advisory lock, so that two who do it at once do it once. A digest of all
that is kept as the comment of schema `report`; where it matches there is nothing to do.

Pools are not kept: a connection to a local socket costs milliseconds, and a pool does not survive the forks of Airflow.
"""

import hashlib
import os
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks import metrics, postgres, record, settings
from tasks.server_user import DatabaseAway

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

__all__ = ["DatabaseAway", "available", "down", "engine", "migrate", "up", "url"]

READER = postgres.READER
MIGRATING = 7_283_001  # advisory lock: our own number
TABLES = {"request": ("request", record.REQUEST), "agent_task": ("task", record.TASK)}
TYPES = {str: "text", int: "bigint", float: "double precision", bool: "boolean"}
NAMED = {"armwise": "ARMWISE_DB_URL", "airflow": "ARMWISE_AIRFLOW_DB_URL"}


def available(database: str = "armwise") -> bool:
    """Is there a Postgres to use? Starts nothing. False on a machine without the extra `orchestrator`."""
    if not (find_spec("sqlalchemy") and find_spec("psycopg2")) or named(database) == "none":
        return False
    return named(database) is not None or postgres.installed()


def named(database: str = "armwise") -> str | None:
    """The URL that the user gave for a database, if any."""
    if database not in NAMED:
        raise DatabaseAway(f"no database '{database}'; known: {', '.join(NAMED)}")
    return os.environ.get(NAMED[database]) or None


def url(database: str = "armwise", *, user: str | None = None) -> str:
    """SQLAlchemy URL with the driver psycopg2. Starts nothing. Raises DatabaseAway for a URL that is no Postgres."""
    given = named(database)
    if given is None:
        who = user or postgres.OWNERS[database]
        return f"postgresql+psycopg2://{who}@/{database}?host={_quoted(postgres.socket_folder())}&port={postgres.PORT}"
    scheme, separator, rest = given.partition("://")
    if not separator or scheme.partition("+")[0] not in ("postgres", "postgresql"):
        raise DatabaseAway(
            f"{NAMED[database]}: must be postgresql://user:password@host/database, found scheme '{scheme}'"
        )
    return f"postgresql+psycopg2://{rest}"


def connection_uri() -> str:
    """The database as an Airflow Connection: the value of AIRFLOW_CONN_ARMWISE_DB."""
    return "postgres://" + url().partition("://")[2]


def up() -> None:
    """Start the embedded server and keep it until `down`; migrate. With ARMWISE_DB_URL: only migrate."""
    needed()
    if named() is None or named("airflow") is None:
        postgres.up()
    engine()


def down() -> bool:
    """Stop the embedded server. Was one running?"""
    return postgres.installed() and postgres.down()


def engine(database: str = "armwise", *, user: str | None = None) -> "Engine":
    """An engine whose database answers and, for armwise, has today's schema. Raises DatabaseAway."""
    import sqlalchemy

    needed(database)
    if named(database) is None:
        postgres.hold()
    where = url(database, user=user)
    made = sqlalchemy.create_engine(
        where,
        poolclass=sqlalchemy.pool.NullPool,
        connect_args={"connect_timeout": 10, "application_name": "armwise"},
    )
    _check(made, database)
    if database == "armwise" and user is None:
        _migrate_once(where)
    return made


def needed(database: str = "armwise") -> None:
    """Raises DatabaseAway, with what to do, where there is no Postgres to use."""
    if not available(database):
        raise DatabaseAway(
            "no database: install the extra `orchestrator`, or set ARMWISE_DB_URL (now: "
            f"{named() or 'not set'}); run folders wait for `armwise load FOLDER`"
        )


def _check(made: "Engine", database: str) -> None:
    from sqlalchemy.exc import OperationalError

    try:
        with made.connect():
            pass
    except OperationalError as error:
        where = made.url.render_as_string(hide_password=True)
        raise DatabaseAway(f"database {database} at {where} does not answer: {str(error.orig).strip()}") from error


@cache
def _migrate_once(_where: str) -> None:
    migrate()


def migrate() -> None:
    """Bring the schema of database armwise up to date, unless it is. Safe when several do it at once."""
    import sqlalchemy

    needed()
    if named() is None:
        postgres.hold()
    made = sqlalchemy.create_engine(url(), poolclass=sqlalchemy.pool.NullPool)
    _check(made, "armwise")
    digest = _digest()
    with made.begin() as connection:
        if _state(connection) == digest:
            return
        connection.execute(sqlalchemy.text("set local lock_timeout = '60s'"))
        connection.execute(sqlalchemy.text("select pg_advisory_xact_lock(:key)"), {"key": MIGRATING})
        if _state(connection) == digest:
            return
        _upgrade(connection)
        _add_columns(connection)
        _replace_views(connection)
        _run(connection, settings.root() / "sql" / "read_only.sql")
        _comment(connection, "schema report", digest)


def _state(connection: "Connection") -> str | None:
    import sqlalchemy

    asked = sqlalchemy.text("select obj_description(to_regnamespace('report'), 'pg_namespace')")
    return connection.execute(asked).scalar()


def _digest() -> str:
    """Of every file and metric that the schema is made from."""
    files = sorted((settings.root() / "sql").rglob("*.sql")) + sorted((settings.root() / "sql").rglob("*.py"))
    texts = [f"{path.name}\n{path.read_text()}" for path in files]
    texts += [f"{metric.row} {metric.name} {metric.unit} {metric.better} {metric.says}" for metric in metrics.TABLE]
    texts += [f"{table} {fields}" for table, (_, fields) in TABLES.items()]
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()


def _upgrade(connection: "Connection") -> None:
    from alembic import command
    from alembic.config import Config
    from alembic.util import CommandError

    config = Config()
    config.set_main_option("script_location", str(settings.root() / "sql" / "migrations").replace("%", "%%"))
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, "head")
    except CommandError as error:
        raise DatabaseAway(f"the database's schema is not one that this checkout knows: {error}") from error


def _add_columns(connection: "Connection") -> None:
    """Each field of a row and each metric is a column; a metric's comment is what the metric table says of it."""
    from psycopg2 import sql

    cursor = _cursor(connection)
    cursor.execute("delete from metric")
    cursor.executemany(
        "insert into metric (name, unit, better, says) values (%s, %s, %s, %s)",
        [(metric.name, metric.unit, metric.better, metric.says) for metric in metrics.TABLE],
    )
    for table, (kind, fields) in TABLES.items():
        for name, of in fields.items():
            cursor.execute(_column(sql, table, name, TYPES[of]))
        for metric in (metric for metric in metrics.TABLE if metric.row == kind):
            cursor.execute(_column(sql, table, metric.name, TYPES[float]))
            says = sql.SQL("comment on column {}.{} is {}")
            cursor.execute(says.format(sql.Identifier(table), sql.Identifier(metric.name), sql.Literal(metric.says)))


def _column(sql: Any, table: str, name: str, of: str) -> Any:
    added = sql.SQL("alter table {} add column if not exists {} " + of)
    return added.format(sql.Identifier(table), sql.Identifier(name))


def _replace_views(connection: "Connection") -> None:
    """The views of sql/report, each file as it stands; a view whose file is gone goes too."""
    from psycopg2 import sql

    cursor = _cursor(connection)
    cursor.execute("select viewname from pg_views where schemaname = 'report'")
    for (name,) in cursor.fetchall():
        cursor.execute(sql.SQL("drop view {} cascade").format(sql.Identifier("report", name)))
    for path in view_files():
        _run(connection, path)


def view_files() -> list[Path]:
    return sorted((settings.root() / "sql" / "report").glob("*.sql"))


def _run(connection: "Connection", path: Path) -> None:
    from psycopg2 import ProgrammingError

    try:
        _cursor(connection).execute(path.read_text(encoding="utf-8"))
    except ProgrammingError as error:
        raise DatabaseAway(f"{path}: {str(error).strip()}") from error


def _comment(connection: "Connection", what: str, text: str) -> None:
    from psycopg2 import sql

    _cursor(connection).execute(sql.SQL("comment on " + what + " is {}").format(sql.Literal(text)))


def _cursor(connection: "Connection") -> Any:
    """psycopg2's own cursor: a file with several statements goes to the server as it is."""
    return connection.connection.cursor()


def _quoted(path: Path) -> str:
    from urllib.parse import quote

    return quote(str(path))
