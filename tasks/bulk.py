"""Rows into a table by COPY. Values are written in COPY's text format, by the type of their column.

Columns that end in `_at` are timestamps, given as seconds since the epoch. NaN means that nothing was measured: null.
Infinity stays: it is what a failure makes of a percentile. A NUL character, which Postgres cannot hold, becomes U+FFFD.
"""

import io
import json
import math
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from tasks import settings

Row = Mapping[str, Any]
NULL = r"\N"
ESCAPES = str.maketrans({"\\": r"\\", "\t": r"\t", "\n": r"\n", "\r": r"\r", "\0": "\ufffd"})


class DoesNotFit(ValueError):
    """A row that its table cannot hold; names table, column and value."""


def statement(name: str) -> str:
    """The text of sql/load/<name>.sql."""
    return (settings.root() / "sql" / "load" / f"{name}.sql").read_text(encoding="utf-8")


def columns(cursor: Any, table: str) -> dict[str, str]:
    """Column -> type as information_schema names it."""
    cursor.execute(statement("columns"), {"table": table})
    return dict(cursor.fetchall())


def copy(cursor: Any, table: str, rows: Iterable[Row]) -> int:
    """Append rows to a table. Returns how many. Raises DoesNotFit."""
    from psycopg2 import sql

    rows = list(rows)
    if not rows:
        return 0
    types = columns(cursor, table)
    names = [name for name in types if any(name in row for row in rows)]
    _all_known(table, rows, types)
    lines = io.StringIO()
    for number, row in enumerate(rows, start=1):
        lines.write("\t".join(_text(table, number, name, types[name], row.get(name)) for name in names) + "\n")
    data = io.BytesIO(lines.getvalue().encode("utf-8", "replace"))
    listed = sql.SQL(", ").join(map(sql.Identifier, names))
    cursor.copy_expert(sql.SQL("copy {} ({}) from stdin").format(sql.Identifier(table), listed), data)
    return len(rows)


def _all_known(table: str, rows: list[Row], types: Mapping[str, str]) -> None:
    unknown = sorted({name for row in rows for name in row} - set(types))
    if unknown:
        raise DoesNotFit(f"table {table} has no column {', '.join(unknown)}; known: {', '.join(types)}")


def _text(table: str, number: int, name: str, kind: str, value: Any) -> str:
    if value is None:
        return NULL
    try:
        return _WRITERS[kind](value)
    except (TypeError, ValueError, OverflowError) as error:
        raise DoesNotFit(f"table {table}, row {number}: {name}: must be {kind}, found {value!r}") from error


def _integer(value: Any) -> str:
    if isinstance(value, float) and math.isnan(value):
        return NULL  # a library that knows no missing integer
    if isinstance(value, bool) or int(value) != float(value):
        raise ValueError(value)
    return str(int(value))


def _float(value: Any) -> str:
    number = float(value)
    if math.isnan(number):
        return NULL
    return repr(number) if math.isfinite(number) else ("Infinity" if number > 0 else "-Infinity")


def _boolean(value: Any) -> str:
    if value not in (True, False):
        raise ValueError(value)
    return "t" if value else "f"


def _string(value: Any) -> str:
    if isinstance(value, float) and math.isnan(value):
        return NULL
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text.translate(ESCAPES)


def _json(value: Any) -> str:
    return json.dumps(_storable(value), default=str).translate(ESCAPES)


def _storable(value: Any) -> Any:
    """What jsonb refuses, in words that it takes: NaN, Infinity, NUL."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, str):
        return value.replace("\0", "\ufffd").encode("utf-8", "replace").decode()
    if isinstance(value, Mapping):
        return {_storable(str(key)): _storable(inner) for key, inner in value.items()}
    return [_storable(inner) for inner in value] if isinstance(value, list | tuple) else value


def _timestamp(value: Any) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    return datetime.fromtimestamp(float(value), tz=UTC).isoformat() if not math.isnan(float(value)) else NULL


def _array(value: Any) -> str:
    quoted = ('"' + str(item).replace("\\", "\\\\").replace('"', '\\"') + '"' for item in value)
    return ("{" + ",".join(quoted) + "}").translate(ESCAPES)


_WRITERS = {
    "text": _string,
    "integer": _integer,
    "bigint": _integer,
    "double precision": _float,
    "boolean": _boolean,
    "jsonb": _json,
    "ARRAY": _array,
    "timestamp with time zone": _timestamp,
}
