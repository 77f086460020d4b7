"""A row that was appended stays; a row that does not fit leaves no trace and ends the spool."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tasks import artifact
from tasks.traffic.spool import Spool, SpoolBroken

FULL = """
import resource, sys
from pathlib import Path
from tasks.traffic.spool import Spool, SpoolBroken
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
spool, fit = Spool(Path(sys.argv[1])), 0
try:
    while True:
        spool.append({"number": fit, "pad": "x" * 100})
        fit += 1
except SpoolBroken as error:
    print(fit, error)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
try:
    spool.append({})
except SpoolBroken:
    print("and stays broken")
"""
KILLED = """
import os, signal, sys
from pathlib import Path
from tasks.traffic.spool import Spool
spool = Spool(Path(sys.argv[1]))
for number in range(50):
    spool.append({"number": number})
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_rows_are_there_at_once_and_survive_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False, timeout=20)
    assert [row["number"] for row in artifact.read_rows(path)] == list(range(50))


def test_a_file_that_takes_no_more_keeps_whole_rows_only(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    ran = subprocess.run(
        [sys.executable, "-c", FULL, str(path)], capture_output=True, text=True, check=True, timeout=20
    )
    assert "a row could not be written: " in ran.stdout
    assert str(path) in ran.stdout
    assert "and stays broken" in ran.stdout
    fit = int(ran.stdout.split()[0])
    assert fit > 5
    assert [json.loads(line)["number"] for line in path.read_text().splitlines()] == list(range(fit))


def test_a_short_write_is_taken_out_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = Spool(tmp_path / "rows.jsonl")
    spool.append({"a": 1})
    real = os.write
    monkeypatch.setattr(os, "write", lambda file, data: real(file, data[: len(data) // 2]))
    with pytest.raises(SpoolBroken, match="No space left on device"):
        spool.append({"a": 2})
    monkeypatch.undo()
    spool.close()
    assert (tmp_path / "rows.jsonl").read_text() == '{"a": 1}\n'


def test_rows_of_two_tries_do_not_mix(tmp_path: Path) -> None:
    Spool(tmp_path / "rows.jsonl").close()
    with pytest.raises(FileExistsError):
        Spool(tmp_path / "rows.jsonl")


def test_text_that_is_no_unicode_does_not_end_a_tier(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "rows.jsonl")
    spool.append({"failure_detail": "half of a pair: \ud83d"})
    spool.close()
    assert len(artifact.read_rows(tmp_path / "rows.jsonl")) == 1
