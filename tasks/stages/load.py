"""load: a run folder into Postgres. Reads the folder alone; one transaction; loading again changes nothing.

An advisory lock on (run, attempt) lets one loader in at a time, and the files are read under it. The attempt's rows are
replaced as a whole when the files' digest differs from the stored one, and left alone when it does not. A folder older
than what is stored (a copy taken earlier) is refused. An attempt never touches the rows of another.

A database that is away costs nothing: the folder stays as it is, and `armwise load FOLDER` stores it later.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks import artifact, bulk, database, tables
from tasks import run as runs
from tasks.stage import StageFailed

if TYPE_CHECKING:
    from sqlalchemy import Engine


def load(run_dir: Path) -> Path:
    """Store every row of a run folder. Raises BrokenArtifact (database unchanged), StageFailed (database away)."""
    run = runs.read(run_dir)
    try:
        with _faults_of_the_driver():
            _store(database.engine(), run)
    except database.DatabaseAway as error:
        raise StageFailed(
            f"{error}\nnothing was stored, and nothing is lost: when the database is back, run `armwise load {run_dir}`"
        ) from error
    except bulk.DoesNotFit as error:
        raise artifact.BrokenArtifact(f"{run_dir}: nothing was stored: {error}") from error
    return run_dir / "run.json"


def store_judgement(run_dir: Path) -> None:
    """Store judgement.json, and whatever else of the folder is not stored yet. Raises as `load` does."""
    load(run_dir)


@contextmanager
def _faults_of_the_driver() -> Iterator[None]:
    """psycopg2's faults as ours: rows that do not fit, or a database that went away."""
    database.needed()
    import psycopg2
    from sqlalchemy.exc import DBAPIError  # of the rollback, on a connection that is no more

    try:
        yield
    except (psycopg2.DataError, psycopg2.IntegrityError) as error:
        raise bulk.DoesNotFit("; ".join(str(error).strip().splitlines())) from error
    except (psycopg2.Error, DBAPIError) as error:
        raise database.DatabaseAway(f"the database went away or refused: {str(error).strip()}") from error


def _store(engine: "Engine", run: runs.Run) -> None:
    key = {"run_id": run.run_id, "attempt": run.attempt}
    with engine.begin() as connection:
        cursor = connection.connection.cursor()
        cursor.execute(bulk.statement("lock"), key)
        rows_sha256, judgement_sha256 = tables.digests(run.folder)
        cursor.execute(bulk.statement("stored"), key)
        stored = cursor.fetchone() or (None, None, None)
        if stored[:2] == (rows_sha256, judgement_sha256):
            return
        if stored[0] != rows_sha256:
            _replace(cursor, run, stored[2], rows_sha256)
        cursor.execute(bulk.statement("forget_judgement"), key)
        _insert(cursor, key, tables.judged(run))
        cursor.execute(bulk.statement("judged"), key | {"judgement_sha256": judgement_sha256})


def _replace(cursor: Any, run: runs.Run, stored_until: Any, rows_sha256: str) -> None:
    found = tables.measured(run)
    ended_at = found["run"][0]["ended_at"] or run.claimed_at
    if stored_until is not None and ended_at < stored_until.timestamp() - 0.001:
        raise StageFailed(
            f"{run.folder}: its last stage ended {tables.clock(ended_at)}, and the database holds this attempt until "
            f"{tables.clock(stored_until.timestamp())}: an older copy is not stored over a newer one"
        )
    key = {"run_id": run.run_id, "attempt": run.attempt}
    cursor.execute(bulk.statement("forget"), key)
    _insert(cursor, key, {"run": [found["run"][0] | {"rows_sha256": rows_sha256}]})
    _insert(cursor, key, {table: rows for table, rows in found.items() if table != "run"})


def _insert(cursor: Any, key: dict[str, Any], found: tables.Tables) -> None:
    for table, rows in found.items():
        bulk.copy(cursor, table, (row | key for row in rows))
