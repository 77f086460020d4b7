"""One statement, read only, whoever wrote it.

Three guards, each enough against a write. The transaction is READ ONLY, and Postgres does not let a statement that runs
change that. The role is `armwise_read`, which may only select: on the embedded server it is the role that logs in, so
RESET ROLE leads nowhere; on another server it is taken on after the login of ARMWISE_DB_URL, which should therefore be
no superuser. And the statement is opened as a cursor: Postgres refuses several statements, DO, COPY, SET and the like.
"""

from collections.abc import Iterator
from typing import Any

from tasks import database

TIMEOUT_S = 120
INVALID_CURSOR = "42P11"  # SQLSTATE of a statement that gives no rows, or of several
AT_ONCE = 1000  # rows fetched in one go


class Refused(ValueError):
    """A statement that is not one question; the message is Postgres's own."""


def ask(statement: str) -> Iterator[tuple[Any, ...]]:
    """The names of the columns, then the rows. Raises Refused, DatabaseAway."""
    database.engine()  # brings the schema up to date, which the reader may not
    is_embedded = database.named() is None
    reader = database.engine(user=database.READER) if is_embedded else database.engine()
    with reader.connect() as connection:
        connection = connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
        cursor = connection.connection.cursor()
        if not is_embedded:
            cursor.execute(f"set local role {database.READER}")
        yield from _answer(cursor, statement)


def _answer(cursor: Any, statement: str) -> Iterator[tuple[Any, ...]]:
    import psycopg2

    try:
        cursor.execute(f"set local statement_timeout = '{TIMEOUT_S}s'")
        cursor.execute("select report.ask(%s)", (statement,))
        cursor.execute(f"fetch {AT_ONCE} from asked")
        yield tuple(column.name for column in cursor.description)
        while rows := cursor.fetchall():
            yield from rows
            cursor.execute(f"fetch {AT_ONCE} from asked")
    except psycopg2.Error as error:
        raise Refused(_words(error)) from error


def _words(error: Any) -> str:
    said = "; ".join(filter(None, (error.diag.message_primary or str(error).strip(), error.diag.message_hint)))
    is_no_question = error.pgcode and (error.pgcode.startswith("25") or error.pgcode == INVALID_CURSOR)
    return f"{said}. Allowed: one SELECT, WITH, VALUES, TABLE, SHOW or EXPLAIN" if is_no_question else said
