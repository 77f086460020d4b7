"""The lease's row in Postgres (table slot_lease): keeps runs of several machines off one slot.

On one machine the slot's file decides alone, so an embedded server is not started for this, only used where it runs.
A database that is away stops nobody: the file still guards this machine, and the message says that only it does. A row
outlives its holder where the database was away at the release; then the run folder, if it is ours, says that it is
dead, and another machine's row is free when it was not renewed for its grace and its supervisor has had the time to
stop the engine.
"""

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from tasks import settings, slot

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

STOPPING_S = 20.0  # for another machine's supervisor to stop its engine, and for clocks that differ
Row = dict[str, Any]
Result = TypeVar("Result")


def take(lease: Row) -> Row | None:
    """Write the lease's row. Returns the row of the run that holds the slot instead, or None: taken, or no database."""

    def work(connection: "Connection") -> Row | None:
        held = _holder(connection, lease)
        if held is not None and (settings.runs() / held["run_id"] / str(held["attempt"])).exists():
            _execute(connection, "drop", held)  # one of ours; the slot's file has just said that nobody holds it
        if _execute(connection, "take", lease | {"stopping_s": STOPPING_S}).first() is None:
            return _holder(connection, lease)
        _execute(connection, "stop_waiting", lease | {"forget_after_s": slot.FORGET_AFTER_S})
        return None

    return _in_database(work)


def wait(lease: Row) -> None:
    """Note that this run waits for its slot."""
    _in_database(lambda connection: _execute(connection, "wait", lease))


def renew(lease: Row) -> None:
    """Note a sign of life. Without effect on a row that another run has taken."""
    _in_database(lambda connection: _execute(connection, "renew", lease))


def drop(lease: Row) -> None:
    """Free the slot. Without effect on a row that another run has taken."""
    _in_database(lambda connection: _execute(connection, "drop", lease))


def _in_database(work: "Callable[[Connection], Result | None]") -> "Result | None":
    """Do work in one transaction; None where no database answers. A fault is said and forgiven."""
    from tasks import database, postgres

    if not database.available() or not (database.named() or postgres.running()):
        return None
    from sqlalchemy.exc import SQLAlchemyError

    try:
        with _engine(database.url()).begin() as connection:
            return work(connection)
    except (SQLAlchemyError, database.DatabaseAway) as error:
        print(f"lease: no row in the database, the slot's file guards alone: {str(error).splitlines()[0]}", flush=True)
        return None


@cache
def _engine(_url: str) -> "Engine":
    """One per process and database: its first use migrates, later ones only connect."""
    from tasks import database

    return database.engine()


def _holder(connection: "Connection", lease: Row) -> Row | None:
    row = _execute(connection, "holder", lease).mappings().first()
    return None if row is None else dict(row)


def _execute(connection: "Connection", name: str, values: Row) -> Any:
    from sqlalchemy import text

    return connection.execute(text((settings.root() / "sql" / "lease" / f"{name}.sql").read_text()), values)
