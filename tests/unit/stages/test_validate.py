"""Each rule is broken on purpose in a run folder that keeps them all (tests/measured_run.py)."""

from pathlib import Path

import measured_run
import pytest
from measured_run import AT, agent_rows, engine_samples, gateway_requests, request, write_tier
from pyarrow import Table, parquet

from tasks import artifact, catalog, engines
from tasks.stages.validate import validate

pytestmark = pytest.mark.services  # Great Expectations


@pytest.fixture
def run_dir(tmp_path):
    return measured_run.make(tmp_path)


def validated(run_dir: Path) -> dict:
    return artifact.read(validate(run_dir))


def edit(run_dir: Path, name: str, **changes) -> None:
    artifact.write(run_dir / f"{name}.json", artifact.read(run_dir / f"{name}.json") | changes)


def samples(run_dir: Path, tier: str, rows: list) -> None:
    parquet.write_table(Table.from_pylist(rows), run_dir / tier / "engine.parquet")


def test_an_honest_run_is_valid(run_dir):
    found = validated(run_dir)
    assert (found["is_valid"], found["reasons"], found["unverified"]) == (True, [], [])
    assert all(one["success"] for one in found["expectations"])
    assert {one["rule"] for one in found["expectations"]} >= set(range(13))
    assert {(one["suite"], one["scope"]) for one in found["expectations"]} == {
        ("golden", "run"),
        ("run", "run"),
        ("requests", "gateway"),
        ("requests", "agent"),
        ("tasks", "agent"),
        ("tier", "gateway"),
        ("tier", "agent"),
    }


def spoil_rows(run_dir: Path) -> None:
    """Each of these is the only fault of its kind, in a call or task of its own."""
    calls = gateway_requests("known")
    calls[3]["t_last_token_ns"] = calls[3]["t_first_token_ns"] - 1
    calls[5].update(output_tokens=None)
    calls[7].update(technique="other")
    calls[9].update(failure="tired")
    for row in calls[20:25]:
        row.update(failure="timeout")
    for row in calls[-2:]:
        row["t_intended_ns"] -= 200_000_000
    write_tier(run_dir, "gateway", [*calls, calls[0]])
    tasks, requests = agent_rows("known", 50)
    tasks[1]["t_end_ns"] = tasks[1]["t_start_ns"] - 1
    tasks[2]["is_success"] = False
    write_tier(run_dir, "agent", requests, tasks)


ROWS = [
    "rule 0 (gateway): no call is there twice: not so in 2 of 101: gateway-0, gateway-0",
    "rule 0 (gateway): the last token came after the first one: not so in 1 of 95",
    "rule 0 (gateway): every call went to this arm: not so in 1 of 101: other",
    "rule 0 (agent): a task ended after it began: not so in 1 of 40",
    "rule 0 (agent): a task without a failure is a success: not so in 1 of 40: False",
    "rule 4 (gateway): every good call has the server's count of its output tokens: not so in 1 of 95",
    "rule 6 (gateway): the client sent within 100 ms of when it wanted to, in 99 of 100 calls: schedule_delay_ms",
    "rule 7 (gateway): every failure is of a known kind: not so in 1 of 101: tired",
    "failed requests are within the plan's bound: failure_ratio 0.05941; failed_requests 6; requests 101",
]


def spoil_facts(run_dir: Path) -> None:
    samples(run_dir, "gateway", engine_samples(gateway_requests("known"), extra_tokens=12))
    agent = engine_samples(agent_rows("known", 50)[1])
    at = max(row["at"] for row in agent)
    later = {"at": at + 1, "source": "engine", "labels": "{}"}
    agent.append(later | {"name": "process_start_time_seconds", "value": AT + 77})
    agent.append(later | {"name": "vllm:prompt_tokens_total", "value": 17000})
    agent.append(later | {"name": "vllm:generation_tokens_total", "value": 2019})
    samples(run_dir, "agent", agent)
    edit(run_dir, "effective", differences=[{"flag": "max-num-seqs", "requested": 4, "effective": 128}])
    edit(run_dir, "gate", verdict="FAIL", reason="3 of 41", evaluated=1, cases=3)
    edit(run_dir, "release", proof={"processes_left": ["17 vllm"], "gateway_deregistered": False})
    edit(run_dir, "gateway/tier", cache={"is_proven": False})
    edit(run_dir, "gateway/client", loop_lag_ms_p99=101.5, cpu_share=0.95)
    artifact.write(run_dir / "phases/drive_agent.2.json", {"stage": "drive_agent", "state": "failed", "error": "gone"})
    (run_dir / "phases/release.1.json").unlink()


FACTS = [
    "rule 0 (run): every stage up to release did its work: unfinished_stages drive_agent, release",
    "rule 1 (run): every requested setting is in effect: settings_not_in_effect 1; which max-num-seqs: 4 became 128",
    "gate_verdict FAIL; gate_reason 3 of 41",
    "rule 2 (run): the gate left out no case: gate_cases_missed 40",
    "rule 3 (run): the engine's process is one and the same from verify to the last scrape: engine_starts 2",
    "rule 3 (run): the engine's token counter never fell: counter_drops 1",
    "output_tokens_off 0.01079; client_output_tokens 1100; engine_output_tokens 1112",
    "rule 6 (gateway): the client's event loop was late by at most 100 ms, in 99 of 100 samples: loop_lag_ms_p99 101.5",
    "rule 6 (gateway): the client used at most 0.8 of the one core it can use: client_cpu_share 0.95",
    "rule 8 (gateway): the prefix cache was empty when the tier began, shown by a probe: cache_is_proven_empty False",
    "rule 12 (run): no process of the run is left: processes_left 1",
    "rule 12 (run): the gateway no longer routes to the run: is_deregistered False",
]


def spoil_files(run_dir: Path) -> None:
    for name in ("effective.json", "gate.json", "release.json", "agent/client.json", "gateway/engine.parquet"):
        (run_dir / name).unlink()
    (run_dir / "agent/tasks.parquet").write_bytes(b"PAR1 and no more")


FILES = [
    "rule 0 (agent): the files behind tasks can be read",
    "rule 1 (run): every requested setting is in effect: nothing to look at",
    "rule 2 (run): the gate said PASS before any load, or the plan says why there is none: nothing to look at",
    "rule 2 (run): the gate left out no case: nothing to look at",
    "rule 4 (gateway): client and engine agree on input tokens within 1 %: nothing to look at",
    "rule 4 (gateway): client and engine agree on output tokens within 1 %: nothing to look at",
    "rule 6 (agent): the client's event loop was late by at most 100 ms, in 99 of 100 samples: nothing to look at",
    "rule 6 (agent): the client used at most 0.8 of the one core it can use: nothing to look at",
    "rule 9 (agent): the tier has tasks: 0",
    "rule 12 (run): no process of the run is left: nothing to look at",
    "rule 12 (run): the time of the proven release is known: released_at not known",
    "rule 12 (run): the gateway no longer routes to the run: nothing to look at",
]


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [(spoil_rows, ROWS), (spoil_facts, FACTS), (spoil_files, FILES)],
    ids=["rows", "facts", "files"],
)
def test_every_broken_rule_is_named_and_no_other(run_dir, spoil, expected):
    spoil(run_dir)
    found = validated(run_dir)
    assert found["is_valid"] is False
    unnamed = [reason for reason in expected if not any(reason in line for line in found["reasons"])]
    surplus = [line for line in found["reasons"] if not any(reason in line for reason in expected)]
    assert (unnamed, surplus) == ([], [])


def test_a_difference_of_one_percent_is_allowed(run_dir):
    """1111 by the engine, 1100 by the client: 0.99 %."""
    samples(run_dir, "gateway", engine_samples(gateway_requests("known"), extra_tokens=11))
    assert validated(run_dir)["is_valid"] is True


def test_calls_without_usage_are_accounted_apart(run_dir):
    """A call that we cut off may have cost the engine one answer, and no more."""
    cut = request(100, tier="gateway", arm="known", sent_s=60, ttft_ms=50, is_aborted=True)
    cut |= {"output_tokens": None, "input_tokens": None, "t_last_token_ns": None}
    rows = [*gateway_requests("known"), cut]
    write_tier(run_dir, "gateway", rows)
    samples(run_dir, "gateway", engine_samples(rows, extra_tokens=11 + 11))
    assert validated(run_dir)["is_valid"] is True


def test_and_no_more(run_dir):
    cut = request(100, tier="gateway", arm="known", sent_s=60, ttft_ms=50, is_aborted=True)
    cut |= {"output_tokens": None, "input_tokens": None, "t_last_token_ns": None}
    rows = [*gateway_requests("known"), cut]
    write_tier(run_dir, "gateway", rows)
    samples(run_dir, "gateway", engine_samples(rows, extra_tokens=11 + 13))
    assert validated(run_dir)["is_valid"] is False


def test_an_engine_that_counts_less_than_the_client_is_never_excused(run_dir):
    cut = request(100, tier="gateway", arm="known", sent_s=60, ttft_ms=50, is_aborted=True, output_tokens=None)
    rows = [*gateway_requests("known"), cut]
    write_tier(run_dir, "gateway", rows)
    samples(run_dir, "gateway", engine_samples(rows, extra_tokens=-20))
    assert validated(run_dir)["is_valid"] is False


def test_a_failed_gate_skips_the_tiers_and_each_is_one_reason(run_dir):
    for tier in ("gateway", "agent"):
        for path in (run_dir / tier).glob("*"):
            path.unlink()
        (run_dir / f"phases/drive_{tier}.1.json").unlink()
    edit(run_dir, "gate", verdict="FAIL", reason="3 of 41 failed")
    reasons = validated(run_dir)["reasons"]
    assert [line for line in reasons if "gateway)" in line] == ["rule 9 (gateway): the tier has rows: 0"]
    assert [line for line in reasons if "agent)" in line] == ["rule 9 (agent): the tier has rows: 0"]


def test_a_tier_of_nothing_but_warm_up_measured_nothing(run_dir):
    write_tier(run_dir, "gateway", [row | {"is_warmup": True} for row in gateway_requests("known")])
    words = "rule 9 (gateway): the tier has calls that were sent after its warm-up: steady_requests 0; requests 100"
    assert validated(run_dir)["reasons"] == [words]


def test_only_run_json_is_no_crash(run_dir):
    for path in sorted(run_dir.rglob("*"), reverse=True):
        if path.is_file() and path.name != "run.json":
            path.unlink()
    found = validated(run_dir)
    assert found["is_valid"] is False
    assert len(found["reasons"]) >= 8
    assert not [line for line in found["reasons"] if "BatchData" in line]  # Great Expectations' own words
    assert not [line for line in found["reasons"] if "no case was evaluated twice" in line]  # of no case at all


def test_corrupt_files_are_reasons(run_dir):
    names = ["gateway/requests.parquet", "agent/engine.parquet", "gate.json", "release.json"]
    for name in names:
        (run_dir / name).write_bytes(b"\x00 half a")
    reasons = validated(run_dir)["reasons"]
    for name in names:
        assert any(name in line and "cannot be read" in line for line in reasons)


def test_rows_of_another_shape_are_a_reason(run_dir):
    parquet.write_table(Table.from_pylist([{"x": 1}]), run_dir / "gateway/requests.parquet")
    reasons = validated(run_dir)["reasons"]
    assert any("missing: " in line and "request_id" in line for line in reasons)


def test_ungated_is_said_and_is_valid(tmp_path):
    run_dir = measured_run.make(tmp_path, plan={"gate": {"none_because": "only the client is tested"}})
    (run_dir / "gate.json").unlink()
    (run_dir / "golden.jsonl").unlink()
    found = validated(run_dir)
    assert found["reasons"] == []
    (gate,) = [one for one in found["expectations"] if one["expectation"].endswith("(gate_verdict)")]
    assert gate["observed"] == "gate_verdict ungated; gate_reason only the client is tested"


def test_what_an_endpoint_cannot_show_is_unverified(run_dir):
    edit(run_dir, "run", target={"name": "t", "document": measured_run.TARGET | {"driver": "endpoint"}})
    edit(run_dir, "effective", source="none", differences=None, process_start_time=None)
    for tier in ("gateway", "agent"):
        (run_dir / tier / "engine.parquet").unlink()
    found = validated(run_dir)
    assert found["reasons"] == []
    assert "client and engine agree on output tokens within 1 %" in found["unverified"]


@pytest.mark.parametrize("engine", catalog.module_names(engines))
def test_an_engine_whose_metrics_are_not_known_is_no_crash(run_dir, engine):
    """Whatever its names are, or if it has none: what rests on them is not met, or unverified, in words."""
    arm = artifact.read(run_dir / "run.json")["arm"]
    edit(run_dir, "run", arm=arm | {"document": arm["document"] | {"engine": engine}})
    assert not [reason for reason in validated(run_dir)["reasons"] if reason.startswith("rule 0")]


def test_a_second_time_changes_nothing(run_dir):
    path = validate(run_dir)
    before = path.stat().st_mtime_ns
    assert validate(run_dir).stat().st_mtime_ns == before


def test_without_run_json_there_is_nothing_to_validate(tmp_path):
    with pytest.raises(artifact.BrokenArtifact, match=r"run.json: is missing"):
        validate(tmp_path)
