"""The spools of a tier, as Parquet: the columns of tasks/record.py and the metrics of tasks/metrics.py beside them.

Every column has its type from the record, so a column of nothing but None is still a number. The spools of several
processes become one file, in the order of sending. They go when it is complete; tasks/rows.py reads whichever is there.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from tasks import artifact, metrics, record, rows, windows

SAMPLE: dict[str, type[Any]] = {"at": float, "source": str, "name": str, "labels": str, "value": float}
COLUMNS: dict[rows.Kind, Mapping[str, type[Any]]] = {
    "requests": record.REQUEST,
    "tasks": record.TASK,
    "engine": SAMPLE,
}
MEASURED: dict[rows.Kind, Literal["request", "task"]] = {"requests": "request", "tasks": "task"}


def compact(run_dir: Path, tier: str, found_windows: Mapping[int, windows.Window] | None = None) -> list[Path]:
    """Turn every spool of a tier into Parquet; what is warm-up, the windows say.

    Raises BrokenArtifact for rows that are not what the record says.
    """
    folder, marks = run_dir / tier, found_windows or {}
    return [_compact(folder, kind, found, marks) for kind in COLUMNS if (found := rows.spools(folder, kind))]


def _compact(folder: Path, kind: rows.Kind, spools: list[Path], marks: Mapping[int, windows.Window]) -> Path:
    import pyarrow
    from pyarrow import parquet

    found = [row for spool in spools for row in artifact.read_rows(spool)]
    path = folder / f"{kind}.parquet"
    _check(spools, found, COLUMNS[kind])
    if len(spools) > 1:
        found.sort(key=lambda row: row.get("t_send_ns") or row.get("t_start_ns") or 0)
    if kind in MEASURED:
        found = [windows.mark(row, marks) | metrics.computed(row, MEASURED[kind]) for row in found]
    try:
        table = pyarrow.Table.from_pylist(found, schema=schema(kind))
    except (pyarrow.ArrowException, OverflowError) as error:
        raise artifact.BrokenArtifact(f"{_names(spools)}: a value is not of its column's type: {error}") from error
    draft = path.with_name(f".{path.name}")
    try:
        parquet.write_table(table, draft)
        with draft.open("rb") as file:
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    for spool in spools:
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


def _check(spools: list[Path], found: rows.Rows, columns: Mapping[str, Any]) -> None:
    """Arrow would drop a field that it does not know without a word."""
    extra = sorted({name for row in found for name in row if name not in columns})
    if extra:
        raise artifact.BrokenArtifact(f"{_names(spools)}: {', '.join(extra)}: not in tasks/record.py")


def _names(spools: list[Path]) -> str:
    return ", ".join(map(str, spools))
