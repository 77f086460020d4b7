"""An overload through the real stages: the open loop reports the queue that the server recorded, a closed loop none.

The comparison is with the sim's own record of the same requests, not with a time that was told beforehand.
"""

from pathlib import Path

import pytest

from bench import overload
from tasks import artifact, rows
from tasks.stages.judge import judge


@pytest.mark.services
def test_an_overload_is_reported_as_long_as_it_was(
    tmp_path: Path, armwise_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ARMWISE_ROOT", str(tmp_path / "root"))
    monkeypatch.setenv("ARMWISE_DB_URL", "none")
    run_dir = overload.play(tmp_path / "root", seconds=6)
    calls = [row for row in rows.read(run_dir, "gateway", "requests") if row["level"] == overload.OPEN]
    assert len(calls) > 40
    assert [row["failure"] for row in calls if row["failure"] or row["is_aborted"]] == []
    found = overload.compare(run_dir)
    assert [row["open_error"] <= 0.02 for row in found["rows"]] == [True] * 3, found
    assert found["rows"][0]["record_ms"] > 1000  # there was a queue: without one a call takes 50 ms to its first token
    assert found["rows"][0]["closed_error"] > 0.5
    windows = artifact.read(run_dir / "gateway" / "windows.json")["levels"]
    assert [level["state"] == "overload" for level in windows] == [True, False]
    medians = [row for row in artifact.read(judge(run_dir))["percentiles"] if row["q"] == 0.5]
    (told,) = [row for row in medians if (row["level"], row["metric"]) == (overload.OPEN, "ttft_intended_ms")]
    assert told["estimate"] == pytest.approx(found["rows"][0]["record_ms"], rel=0.02)
