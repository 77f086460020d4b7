"""Judgements of a run folder whose numbers are known by construction (tests/measured_run.py)."""

import json
import math

import measured_run
import pytest
from measured_run import agent_rows, gateway_requests, write_tier

from tasks import artifact
from tasks.stage import StageFailed
from tasks.stages.judge import judge


@pytest.fixture(autouse=True)
def no_database(monkeypatch):
    monkeypatch.setenv("ARMWISE_DB_URL", "none")


@pytest.fixture
def run_dir(tmp_path):
    return measured_run.make(tmp_path)


def judged(run_dir) -> dict:
    return artifact.read(judge(run_dir))


def percentile(found: dict, tier: str, metric: str, q: float, steps: str = "all") -> dict:
    key = (tier, metric, q, steps)
    rows = [row for row in found["percentiles"] if (row["tier"], row["metric"], row["q"], row["steps"]) == key]
    assert len(rows) == 1, key
    return rows[0]


def verdict(found: dict, slo: str) -> dict:
    (row,) = [row for row in found["verdicts"] if row["slo"] == slo]
    return row


def cost(found: dict, lens: str) -> dict:
    (row,) = [row for row in found["costs"] if row["lens"] == lens]
    return row


@pytest.mark.parametrize(
    ("tier", "metric", "steps", "expected", "n"),
    [
        ("gateway", "ttft_ms", "all", 50, 100),
        ("gateway", "ttfa_ms", "all", 50, 100),
        ("gateway", "e2e_ms", "all", 150, 100),
        ("gateway", "tpot_ms", "all", 10, 100),
        ("gateway", "icl_ms", "all", 10, 100),
        ("gateway", "schedule_delay_ms", "all", 0, 100),
        ("agent", "ttft_ms", "first", 200, 36),
        ("agent", "ttft_ms", "later", 50, 72),
        ("agent", "ttft_ms", "all", 50, 108),
        ("agent", "task_ms", "all", 2000, 36),
    ],
)
def test_medians_are_the_ones_built_in(run_dir, tier, metric, steps, expected, n):
    """Warm-up (4 of the 40 tasks) is not in n."""
    found = percentile(judged(run_dir), tier, metric, 0.5, steps)
    assert (found["estimate"], found["n"], found["failed"]) == (pytest.approx(expected), n, 0)


def test_three_quantiles_of_everything(run_dir):
    found = judged(run_dir)["percentiles"]
    assert {row["q"] for row in found} == {0.5, 0.95, 0.99}
    assert len(found) == 3 * (6 + 3 * 6 + 1)


def test_verdicts(run_dir):
    """36 tasks are too few for a PASS of p95; 100 equal calls are enough for one."""
    found = judged(run_dir)
    assert verdict(found, "gateway-ttft-p95")["verdict"] == "PASS"
    assert verdict(found, "agent-later-ttft-p50")["verdict"] == "PASS"
    task = verdict(found, "agent-task-p95")
    assert (task["verdict"], task["n"], task["unit"], task["objective"]) == ("INCONCLUSIVE", 36, "ms", 10000)
    assert "at least 59" in task["reason"]


def test_a_slow_arm_fails(tmp_path):
    found = judged(measured_run.make(tmp_path, later_ms=1001))
    assert verdict(found, "agent-later-ttft-p50")["verdict"] == "FAIL"


def test_costs_by_hand(run_dir):
    """3.60 USD an hour held for 100 s are 0.10 USD, over 40 tasks: 0.0025. Steady: the 4 of the
    warm-up end as the window begins, so 36 in the 18 s after it, at 0.001 USD a second."""
    found = judged(run_dir)
    all_in, sustained = cost(found, "all_in"), cost(found, "sustained")
    assert (all_in["usd_per_task"], all_in["tasks"], all_in["gpu_s"]) == (pytest.approx(0.0025), 40, 100)
    assert (sustained["usd_per_task"], sustained["tasks"]) == (pytest.approx(0.018 / 36), 36)
    assert sustained["gpu_s"] == pytest.approx(18)
    assert sustained["reason"] == "SLO inconclusive at 4 users: agent-task-p95"
    assert (all_in["price_key"], all_in["is_nominal"]) == ("local-cpu", True)


def test_failed_and_aborted_tasks_are_paid_for_and_not_counted(run_dir):
    tasks, requests = agent_rows("known", 50)
    for task in tasks[10:20]:
        task.update(is_success=False, failure="wrong_answer")
    tasks[20].update(is_success=False, is_aborted=True)
    write_tier(run_dir, "agent", requests, tasks)
    found = judged(run_dir)
    assert cost(found, "all_in")["tasks"] == 29
    assert cost(found, "all_in")["usd_per_task"] == pytest.approx(0.1 / 29)
    tail = percentile(found, "agent", "task_ms", 0.95)
    assert (tail["estimate"], tail["n"], tail["failed"]) == ("inf", 35, 10)
    assert verdict(found, "agent-task-p95")["verdict"] == "FAIL"


def test_tasks_cut_off_after_the_drain_break_the_slo(run_dir):
    """The slowest are those that the client stopped waiting for: without them 26 tasks of 2 s would look fine."""
    tasks, requests = agent_rows("known", 50)
    for task in tasks[-10:]:
        task.update(is_success=None, is_aborted=True, t_end_ns=task["t_start_ns"] + 30 * 10**9)
    write_tier(run_dir, "agent", requests, tasks)
    found = judged(run_dir)
    assert percentile(found, "agent", "task_ms", 0.95)["estimate"] == "inf"
    assert verdict(found, "agent-task-p95")["verdict"] == "FAIL"


def test_a_broken_slo_has_no_sustained_cost(tmp_path):
    found = cost(judged(measured_run.make(tmp_path, later_ms=1400)), "sustained")
    assert (found["usd_per_task"], found["tasks"], found["gpu_s"]) == (None, None, None)  # not looked at, so not 0
    assert "no level of the agent tier keeps agent-later-ttft-p50" in found["reason"]


def test_no_success_has_no_cost(run_dir):
    tasks, requests = agent_rows("known", 50)
    for task in tasks:
        task.update(is_success=False, failure="loop")
    write_tier(run_dir, "agent", requests, tasks)
    assert cost(judged(run_dir), "all_in") | {"gpu_s": 0} == {
        "lens": "all_in",
        "usd_per_task": None,
        "tasks": 0,
        "gpu_s": 0,
        "price_usd_per_hour": 3.6,
        "price_key": "local-cpu",
        "is_nominal": True,
        "reason": "no task succeeded",
    }


def test_an_unresolved_price_is_never_a_number(run_dir):
    run = artifact.read(run_dir / "run.json")
    run["price"]["document"] = {"says": "not yet read", "usd_per_hour": "unresolved"}
    artifact.write(run_dir / "run.json", run)
    for found in judged(run_dir)["costs"]:
        assert (found["usd_per_task"], found["price_usd_per_hour"]) == (None, None)
        assert "unresolved" in found["reason"]


@pytest.mark.parametrize("spoil", ["missing", "leftover"])
def test_an_unproven_release_has_no_all_in_cost(run_dir, spoil):
    path = run_dir / "release.json"
    if spoil == "missing":
        path.unlink()
    else:
        artifact.write(path, artifact.read(path) | {"proof": {"processes_left": [7]}})
    found = cost(judged(run_dir), "all_in")
    assert found["usd_per_task"] is None
    assert "release is not proven" in found["reason"]


def test_failures_are_infinite_and_the_json_is_strict(run_dir):
    requests = gateway_requests("known")
    for row in requests[:30]:
        row.update(failure="timeout", t_first_token_ns=None, t_last_token_ns=None)
    write_tier(run_dir, "gateway", requests)
    found = judged(run_dir)
    assert percentile(found, "gateway", "ttft_ms", 0.95)["estimate"] == "inf"
    assert percentile(found, "gateway", "ttft_ms", 0.5)["estimate"] == pytest.approx(50)
    assert percentile(found, "gateway", "schedule_delay_ms", 0.99)["estimate"] == 0
    assert verdict(found, "gateway-ttft-p95")["verdict"] == "FAIL"
    json.dumps(found, allow_nan=False)
    assert not any(isinstance(v, float) and math.isinf(v) for row in found["percentiles"] for v in row.values())


def test_rows_left_by_a_kill_are_judged(run_dir):
    """No Parquet: the spool is read, its torn last line dropped."""
    rows = gateway_requests("known")[:70]
    (run_dir / "gateway/requests.parquet").unlink()
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (run_dir / "gateway/requests.jsonl").write_text(text + '{"request_id": "gat')
    assert percentile(judged(run_dir), "gateway", "ttft_ms", 0.5)["n"] == 70


def test_a_run_that_never_loaded_is_inconclusive(run_dir):
    for tier in ("gateway", "agent"):
        for file in (run_dir / tier).glob("*"):
            file.unlink()
    found = judged(run_dir)
    assert found["percentiles"] == []
    assert {(row["verdict"], row["reason"]) for row in found["verdicts"]} == {("INCONCLUSIVE", "no values")}
    assert [row["usd_per_task"] for row in found["costs"]] == [None, None]


def test_an_invalid_run_is_judged_and_marked(run_dir):
    artifact.write(run_dir / "validation.json", {"is_valid": False, "reasons": ["rule 3: the engine restarted"]})
    found = judged(run_dir)
    assert (found["is_valid"], found["reasons"]) == (False, ["rule 3: the engine restarted"])
    assert found["percentiles"]


def test_a_second_time_changes_nothing(run_dir):
    path = judge(run_dir)
    before = path.read_bytes(), path.stat().st_mtime_ns
    assert judge(run_dir) == path
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before


@pytest.mark.parametrize(
    ("fail_on", "spoil", "words"),
    [
        (["slo_fail"], {}, "agent-later-ttft-p50: the lower bound"),
        (["gate_fail"], {"gate": {"verdict": "FAIL", "reason": "3 of 41 failed"}}, "gate: FAIL: 3 of 41 failed"),
        (["invalid"], {"validation": {"is_valid": False, "reasons": ["rule 4"]}}, "invalid: rule 4"),
        (["invalid"], {}, "invalid: not validated"),
    ],
)
def test_fail_on_fails_after_writing(tmp_path, fail_on, spoil, words):
    run_dir = measured_run.make(tmp_path, later_ms=1400, plan={"fail_on": fail_on})
    for name, content in spoil.items():
        artifact.write(run_dir / f"{name}.json", content)
    with pytest.raises(StageFailed, match=words):
        judge(run_dir)
    assert (run_dir / "judgement.json").exists()


def test_findings_fail_nothing_by_themselves(tmp_path):
    assert verdict(judged(measured_run.make(tmp_path, later_ms=1400)), "agent-later-ttft-p50")["verdict"] == "FAIL"


def test_a_corrupt_parquet_is_named(run_dir):
    (run_dir / "agent/tasks.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(artifact.BrokenArtifact, match=r"agent/tasks.parquet: cannot be read"):
        judge(run_dir)


def window(run_dir, tier: str, **changes) -> None:
    found = artifact.read(run_dir / tier / "windows.json")
    found["levels"][0] |= changes
    artifact.write(run_dir / tier / "windows.json", found)


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("too_short", "too short: because"),
        ("no_steady_state", "no steady state: because"),
        ("overload", "not judged: because"),
    ],
)
def test_without_a_steady_window_there_is_no_verdict(tmp_path, state, words):
    """Neither a PASS (gateway) nor a FAIL by latency (agent)."""
    run_dir = measured_run.make(tmp_path, later_ms=1400)
    for tier in ("gateway", "agent"):
        window(run_dir, tier, state=state, reason="because")
    found = judged(run_dir)
    assert {(row["verdict"], row["reason"]) for row in found["verdicts"]} == {("INCONCLUSIVE", words)}
    assert percentile(found, "gateway", "ttft_ms", 0.5)["estimate"] == pytest.approx(50)
    assert (cost(found, "sustained")["usd_per_task"] is None) == (state != "too_short")


def test_failures_need_no_steady_window(run_dir):
    requests = gateway_requests("known")
    for row in requests[:30]:
        row.update(failure="timeout", t_first_token_ns=None, t_last_token_ns=None)
    write_tier(run_dir, "gateway", requests)
    window(run_dir, "gateway", state="too_short", reason="because")
    assert verdict(judged(run_dir), "gateway-ttft-p95")["verdict"] == "FAIL"


def test_windows_that_nobody_looked_for(run_dir):
    (run_dir / "gateway/windows.json").unlink()
    found = verdict(judged(run_dir), "gateway-ttft-p95")
    assert (found["verdict"], found["n"]) == ("INCONCLUSIVE", 100)
    assert "windows.json is missing" in found["reason"]


def test_only_the_window_counts(run_dir):
    """From 45 s to 55 s after the claim: calls sent at 45.6 to 54.4, every 0.8 s, 4 users."""
    window(run_dir, "gateway", window_start_ns=45 * 10**9, window_end_ns=55 * 10**9)
    assert percentile(judged(run_dir), "gateway", "ttft_ms", 0.5)["n"] == 4 * 12


def test_an_open_loop_is_judged_from_the_intended_send(tmp_path):
    """The server takes 50 ms; the client sent 5 s late, and that is what a user waited."""
    tiers = measured_run.PLAN["tiers"] | {
        "gateway": {"levels": [{"rate_per_s": 5, "arrivals": "poisson", "duration_s": 20}]}
    }
    run_dir = measured_run.make(tmp_path, plan={"tiers": tiers})
    late = [row | {"t_intended_ns": row["t_send_ns"] - 5 * 10**9} for row in gateway_requests("known")]
    write_tier(run_dir, "gateway", late)
    window(run_dir, "gateway", window_start_ns=0)
    found = judged(run_dir)
    assert percentile(found, "gateway", "ttft_ms", 0.5)["estimate"] == pytest.approx(50)
    assert percentile(found, "gateway", "ttft_intended_ms", 0.5)["estimate"] == pytest.approx(5050)
    row = verdict(found, "gateway-ttft-p95")
    assert (row["verdict"], row["indicator"]) == ("FAIL", "ttft_intended_ms")
