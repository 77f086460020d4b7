"""Parquet has the record's columns and types, whatever the rows lack, and the metrics beside them."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from tasks import artifact, metrics, record, rows
from tasks.traffic.compact import compact

GOOD: dict[str, Any] = {
    "request_id": "a",
    "tier": "gateway",
    "level": 1,
    "sent_at": 5.0,
    "t_send_ns": 2_000_000,
    "t_first_token_ns": 12_000_000,
    "t_last_token_ns": 42_000_000,
    "output_tokens": 4,
    "chunks": 3,
    "failure": None,
    "is_warmup": False,
}
FAILED = {"request_id": "b", "tier": "gateway", "level": 1, "sent_at": 6.0, "failure": "connect", "is_warmup": True}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "gateway").mkdir()
    return tmp_path


def spool(folder: Path, kind: str, *found: Any, torn: str = "") -> Path:
    path = folder / "gateway" / f"{kind}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in found) + torn)
    return path


def test_columns_types_and_metrics(folder: Path) -> None:
    path = spool(folder, "requests", GOOD, FAILED)
    assert compact(folder, "gateway") == [path.with_suffix(".parquet")]
    assert not path.exists()
    table = pyarrow.parquet.read_table(path.with_suffix(".parquet"))
    measured = [m.name for m in metrics.TABLE if m.row == "request"]
    assert set(table.column_names) == {*record.REQUEST, *measured}
    assert str(table.schema.field("cached_input_tokens").type) == "int64"  # although no row has one
    assert str(table.schema.field("is_aborted").type) == "bool"
    good, failed = rows.read(folder, "gateway", "requests")
    assert (good["ttft_ms"], good["e2e_ms"], good["tpot_ms"], good["icl_ms"]) == (10.0, 40.0, 10.0, 15.0)
    assert (failed["failure"], failed["ttft_ms"], failed["output_tokens"]) == ("connect", None, None)


def test_a_torn_last_row_is_left_out(folder: Path) -> None:
    spool(folder, "requests", GOOD, torn='{"request_id": "c", "ti')
    compact(folder, "gateway")
    assert [row["request_id"] for row in rows.read(folder, "gateway", "requests")] == ["a"]


def test_no_row_at_all_is_an_empty_table(folder: Path) -> None:
    spool(folder, "tasks")
    compact(folder, "gateway")
    assert rows.read(folder, "gateway", "tasks") == []


@pytest.mark.parametrize(
    ("row", "says"),
    [(GOOD | {"ttft": 5}, "ttft: not in tasks/record.py"), (GOOD | {"level": "one"}, "of its column's type")],
)
def test_rows_that_are_not_the_records_are_refused_and_stay(folder: Path, row: Any, says: str) -> None:
    path = spool(folder, "requests", row)
    with pytest.raises(artifact.BrokenArtifact, match=says) as fault:
        compact(folder, "gateway")
    assert str(path) in str(fault.value)
    assert sorted(p.name for p in path.parent.iterdir()) == ["requests.jsonl"]


def test_nothing_spooled_is_nothing_to_do(folder: Path) -> None:
    assert compact(folder, "gateway") == []
