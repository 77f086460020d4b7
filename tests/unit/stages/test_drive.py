"""The stage drive: what it refuses, and one whole drive of both tiers through the real gateway."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lifecycle
import pytest
from conftest import PLAN, write_yaml

from tasks import artifact, metrics, record, rows, stage
from tasks.stages.claim import claim
from tasks.stages.drive import drive

TIERS: dict[str, Any] = {
    "gateway": {
        "levels": [{"users": 2, "duration_s": 2}, {"users": 5, "duration_s": 2}, {"users": 1, "duration_s": 1}],
        "drain_s": 5,
        "max_tokens": 8,
    },
    "agent": {"levels": [{"users": 3, "duration_s": 3, "warmup_s": 1}], "drain_s": 5},
}


SHAPES: dict[str, Any] = {
    "gateway": {
        "levels": [
            {"rate_per_s": 15, "arrivals": "constant", "duration_s": 3, "warmup_s": 1},
            {"users": 3, "duration_s": 2},
            {"rate_per_s": 12, "arrivals": "gamma", "burstiness": 2, "duration_s": 2},
        ],
        "drain_s": 5,
        "output_tokens": 6,
        "processes": 2,
    },
    "agent": {
        "levels": [{"rate_per_s": 3, "arrivals": "poisson", "duration_s": 3}, {"users": 2, "duration_s": 2}],
        "replay": True,
        "tool_s": 0.02,
        "drain_s": 8,
    },
}


@pytest.fixture
def run_dir(sandbox: Path, request: pytest.FixtureRequest) -> Path:
    """Claimed, gated, not deployed."""
    tiers = getattr(request, "param", TIERS)
    write_yaml(sandbox / "deploy" / "plans" / "levels.yaml", PLAN | {"tiers": tiers})
    folder = claim(arm="cpu-baseline", target="stand-in", plan="levels")
    artifact.write(folder / "gate.json", {"format": 1, "verdict": "PASS", "reason": "said the test"})
    return folder


@pytest.fixture
def deployed(run_dir: Path) -> Iterator[Path]:
    try:
        stage.perform("deploy", run_dir)
        yield run_dir
    finally:
        stage.perform("release", run_dir)
        assert lifecycle.living(run_dir) == []


def test_no_load_without_a_passed_gate(run_dir: Path) -> None:
    (run_dir / "gate.json").unlink()
    with pytest.raises(stage.StageFailed, match=r"gate\.json: is missing"):
        drive(run_dir, "gateway")
    for verdict in ("FAIL", "INVALID", "pass", None):
        artifact.write(run_dir / "gate.json", {"verdict": verdict, "reason": "3 of 40 cases"})
        with pytest.raises(stage.StageFailed, match=f"verdict: {verdict} .3 of 40 cases."):
            drive(run_dir, "gateway")
    assert not (run_dir / "gateway").exists()


def test_a_driven_tier_is_not_driven_again(run_dir: Path) -> None:
    done = artifact.write(run_dir / "gateway" / "tier.json", {"failure": None, "mark": 5})
    assert drive(run_dir, "gateway") == done
    assert artifact.read(done)["mark"] == 5


@pytest.mark.parametrize("left", ["requests.jsonl", "requests.parquet", "locust.log"])
def test_rows_of_an_interrupted_try_are_not_mixed_with_new_ones(run_dir: Path, left: str) -> None:
    (run_dir / "agent").mkdir()
    (run_dir / "agent" / left).write_text("")
    with pytest.raises(stage.StageFailed, match=rf"holds {left} of an interrupted try.*clear from deploy"):
        drive(run_dir, "agent")


def test_a_failed_tier_is_not_tried_again_in_its_attempt(run_dir: Path) -> None:
    artifact.write(run_dir / "agent" / "tier.json", {"failure": "the engine died"})
    with pytest.raises(stage.StageFailed, match=r"has failed in this attempt: the engine died.*clear from deploy"):
        drive(run_dir, "agent")


@pytest.mark.services
def test_both_tiers_whole(deployed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stage.perform("drive_gateway", deployed)
    stage.perform("drive_agent", deployed)
    _gateway(deployed)
    _agent(deployed)
    _beside(deployed)
    said = capsys.readouterr().out
    assert "drive_gateway: level " in said
    assert "drive_agent: level 1/1, 3 users: " in said
    assert drive(deployed, "agent").name == "tier.json"  # nothing to do


def _gateway(run_dir: Path) -> None:
    calls = rows.read(run_dir, "gateway", "requests")
    assert set(calls[0]) == {*record.REQUEST, *(m.name for m in metrics.TABLE if m.row == "request")}
    assert [row for row in calls if row["failure"] or row["is_aborted"]] == []
    assert len({row["request_id"] for row in calls}) == len(calls)
    windows = {one["level"]: one for one in artifact.read(run_dir / "gateway" / "windows.json")["levels"]}
    for number, users in ((1, 2), (2, 5), (3, 1)):
        level = [row for row in calls if row["level"] == number]
        assert {row["user"] for row in level} == set(range(users))
        assert {row["users"] for row in level} == {users}
        first_ends = [min(row["t_end_ns"] for row in level if row["user"] == user) for user in range(users)]
        window = windows[number]
        assert window["window_start_ns"] >= max(first_ends)
        for row in level:  # by when it was wanted: a late client must not move a call into the window
            assert row["is_warmup"] == (row["t_intended_ns"] < window["window_start_ns"]), row["request_id"]
    # a level begins when the one before it has ended
    ends = {n: max(row["t_end_ns"] for row in calls if row["level"] == n) for n in (1, 2)}
    assert all(row["t_send_ns"] > ends[row["level"] - 1] for row in calls if row["level"] > 1)
    assert all(row["output_tokens"] == row["chunks"] <= 8 for row in calls)


def _agent(run_dir: Path) -> None:
    played, calls = rows.read(run_dir, "agent", "tasks"), rows.read(run_dir, "agent", "requests")
    assert all(task["is_success"] for task in played), [task["failure_detail"] for task in played]
    assert {task["user"] for task in played} == {0, 1, 2}
    for task in played:
        own = sorted((row for row in calls if row["task_id"] == task["task_id"]), key=lambda row: row["step"])
        assert [row["step"] for row in own] == list(range(1, task["steps"] + 1))
        assert {row["case_id"] for row in own} == {task["case_id"]}
    assert len(calls) == sum(task["steps"] for task in played)
    began = min(task["t_start_ns"] for task in played)
    assert all(task["is_warmup"] for task in played if task["t_start_ns"] < began + 0.9e9)
    assert any(not task["is_warmup"] for task in played)


def _beside(run_dir: Path) -> None:
    for tier in ("gateway", "agent"):
        note, client = artifact.read(run_dir / tier / "tier.json"), artifact.read(run_dir / tier / "client.json")
        calls, samples = rows.read(run_dir, tier, "requests"), rows.read(run_dir, tier, "engine")
        assert (note["failure"], note["engine_restarted"], note["cache"]["is_proven"]) == (None, False, True)
        assert note["counts"]["requests"] == len(calls) == sum(level["requests"] for level in client["levels"])
        assert (client["fault"], client["is_stopped"]) == (None, False)
        assert 0 <= client["loop_lag_ms_p50"] <= client["loop_lag_ms_p99"] <= client["loop_lag_ms_max"] < 2000
        assert 0 < client["cpu_share"] < 1.5
        # the engine's own counters grew by exactly what the answers said: client and engine agree
        for name, column in (("generation", "output_tokens"), ("prompt", "input_tokens")):
            counter = [row["value"] for row in samples if row["name"] == f"vllm:{name}_tokens_total"]
            assert counter[-1] - counter[0] == sum(row[column] for row in calls)
        assert {row["source"] for row in samples} == {"engine", "gateway"}
        assert not list((run_dir / tier).glob("*.jsonl"))


@pytest.mark.services
def test_the_same_seed_sends_the_same_work(deployed: Path) -> None:
    """Seen in the rows: users of a level play the cases that the seed says, in that order."""
    from tasks import run
    from tasks.traffic import work

    stage.perform("drive_gateway", deployed)
    calls = sorted(rows.read(deployed, "gateway", "requests"), key=lambda row: row["t_send_ns"])
    rng = run.read(deployed).rng("gateway/level 2/user 3")
    expected = work.endless(work.sendable("v1"), rng)
    mine = [row["case_id"] for row in calls if (row["level"], row["user"]) == (2, 3)]
    assert mine == [next(expected).id for _ in mine]
    assert len(mine) > 3


@pytest.mark.services
@pytest.mark.parametrize("run_dir", [SHAPES], indirect=True)
def test_open_loops_in_two_processes_and_a_replay(deployed: Path) -> None:
    stage.perform("drive_gateway", deployed)
    stage.perform("drive_agent", deployed)
    _two_processes(deployed)
    _replayed(deployed)
    for tier in ("gateway", "agent"):
        note = artifact.read(deployed / tier / "tier.json")
        assert (note["failure"], note["ended_early"], note["cache_salt"]) == (None, None, f"{deployed.parent.name}.1")
        assert len(note["workload_sha256"]) == 64


def _two_processes(run_dir: Path) -> None:
    calls = rows.read(run_dir, "gateway", "requests")
    assert [row for row in calls if row["failure"] or row["is_aborted"]] == []
    assert len({row["request_id"] for row in calls}) == len(calls)
    assert [row["t_send_ns"] for row in calls] == sorted(row["t_send_ns"] for row in calls)
    assert {row["process"] for row in calls} == {0, 1}
    assert all(row["output_tokens"] == row["requested_output_tokens"] == 6 for row in calls)
    levels = {level["level"]: level for level in artifact.read(run_dir / "gateway" / "client.json")["levels"]}
    assert [one["process"] for one in levels[1]["processes"]] == [0, 1]
    paced = sorted((row for row in calls if row["level"] == 1), key=lambda row: row["user"])
    # 15 a second for 3 s, evenly, from half a gap on: every arrival was sent once, by one of two
    assert [row["user"] for row in paced] == list(range(45))
    assert [row["process"] for row in paced] == [0, 1] * 22 + [0]
    begin_ns = levels[1]["t_start_ns"]
    for number, row in enumerate(paced):
        assert abs(row["t_intended_ns"] - begin_ns - (number + 0.5) / 15 * 1e9) < 1000
        assert row["t_send_ns"] >= row["t_intended_ns"]
        assert (row["users"], row["rate_per_s"]) == (None, 15.0)
        assert row["is_warmup"] == (number < 15)
        assert row["ttft_intended_ms"] == pytest.approx(row["ttft_ms"] + row["schedule_delay_ms"])
    assert {(row["user"], row["users"]) for row in calls if row["level"] == 2} == {(0, 3), (1, 3), (2, 3)}
    assert len({row["process"] for row in calls if row["level"] == 2}) == 2
    assert sum(level["requests"] for level in levels.values()) == len(calls)
    assert all(level["unsent"] == 0 for level in levels.values())


def _replayed(run_dir: Path) -> None:
    played, calls = rows.read(run_dir, "agent", "tasks"), rows.read(run_dir, "agent", "requests")
    whole = [task for task in played if not task["is_aborted"]]
    assert whole and all(task["is_success"] for task in whole), [task["failure_detail"] for task in whole]
    assert {task["level"] for task in whole} == {1, 2}
    good = [row for row in calls if not row["is_aborted"]]
    assert all(row["output_tokens"] == row["requested_output_tokens"] for row in good)
    for task in (task for task in played if task["level"] == 1):
        first = next(row for row in calls if row["task_id"] == task["task_id"] and row["step"] == 1)
        assert task["t_start_ns"] == first["t_intended_ns"]  # a user of an open loop waits from the arrival on
