"""The spools of a tier, as Parquet: the columns of tasks/record.py and the metrics of tasks/metrics.py beside them.

Every column has its type from the record, so a column of nothing but None is still a number. The spool goes when the
Parquet file is complete; tasks/rows.py reads whichever is there.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from tasks import artifact, metrics, record, rows

SAMPLE: dict[str, type[Any]] = {"at": float, "source": str, "name": str, "labels": str, "value": float}
COLUMNS: dict[rows.Kind, Mapping[str, type[Any]]] = {
    "requests": record.REQUEST,
    "tasks": record.TASK,
    "engine": SAMPLE,
}
MEASURED: dict[rows.Kind, Literal["request", "task"]] = {"requests": "request", "tasks": "task"}


def compact(run_dir: Path, tier: str) -> list[Path]:
    """Turn every spool of a tier into Parquet. Raises BrokenArtifact for rows that are not what the record says."""
    return [_compact(spool) for kind in COLUMNS if (spool := run_dir / tier / f"{kind}.jsonl").exists()]


def _compact(spool: Path) -> Path:
    import pyarrow
    from pyarrow import parquet

    kind: rows.Kind = spool.stem  # type: ignore[assignment]
    found = artifact.read_rows(spool)
    _check(spool, found, COLUMNS[kind])
    measured = [row | metrics.computed(row, MEASURED[kind]) if kind in MEASURED else row for row in found]
    try:
        table = pyarrow.Table.from_pylist(measured, schema=schema(kind))
    except (pyarrow.ArrowException, OverflowError) as error:
        raise artifact.BrokenArtifact(f"{spool}: a value is not of its column's type: {error}") from error
    path = spool.with_suffix(".parquet")
    draft = path.with_name(f".{path.name}")
    try:
        parquet.write_table(table, draft)
        with draft.open("rb") as file:
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    spool.unlink()
    return path


def schema(kind: rows.Kind) -> Any:
    """The Parquet schema of one kind of rows."""
    import pyarrow

    types = {str: pyarrow.string(), int: pyarrow.int64(), float: pyarrow.float64(), bool: pyarrow.bool_()}
    fields = {name: types[of] for name, of in COLUMNS[kind].items()}
    if kind in MEASURED:
        fields |= {m.name: pyarrow.float64() for m in metrics.TABLE if m.row == MEASURED[kind]}
    return pyarrow.schema(list(fields.items()))


def _check(spool: Path, found: rows.Rows, columns: Mapping[str, Any]) -> None:
    """Arrow would drop a field that it does not know without a word."""
    extra = sorted({name for row in found for name in row if name not in columns})
    if extra:
        raise artifact.BrokenArtifact(f"{spool}: {', '.join(extra)}: not in tasks/record.py")
