"""Each rule is broken on purpose in a run folder that keeps them all (tests/measured_run.py)."""

from pathlib import Path

import measured_run
import pytest
from measured_run import AT, agent_rows, engine_samples, gateway_requests, request, write_tier
from pyarrow import Table, parquet

from tasks import artifact, suite
from tasks.document import InvalidDocument, parse
from tasks.stages.validate import validate


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
    assert {one["rule"] for one in found["expectations"]} >= {0, 1, 2, 3, 4, 5, 6, 7, 9, 12}
    assert {(one["suite"], one["scope"]) for one in found["expectations"]} == {
        ("golden", "run"),
        ("run", "run"),
        ("requests", "gateway"),
        ("requests", "agent"),
        ("tasks", "agent"),
        ("tier", "gateway"),
        ("tier", "agent"),
    }


def duplicate(run_dir):
    rows = gateway_requests("known")
    write_tier(run_dir, "gateway", [*rows, rows[0]])


def stamps_out_of_order(run_dir):
    rows = gateway_requests("known")
    rows[3]["t_last_token_ns"] = rows[3]["t_first_token_ns"] - 1
    write_tier(run_dir, "gateway", rows)


def no_usage(run_dir):
    rows = gateway_requests("known")
    rows[7].update(output_tokens=None)
    write_tier(run_dir, "gateway", rows)


def another_arm(run_dir):
    write_tier(run_dir, "gateway", gateway_requests("known")[:-1] + gateway_requests("other")[-1:])


def tokens_disagree(run_dir):
    """1100 tokens by the client's usage; the engine counted 12 more: 1.08 %."""
    samples(run_dir, "gateway", engine_samples(gateway_requests("known"), extra_tokens=12))


def engine_restarted(run_dir):
    rows = engine_samples(agent_rows("known", 50)[1])
    for row in rows:
        if row["name"] == "process_start_time_seconds" and row is rows[-1]:
            row["value"] = AT + 77
    samples(run_dir, "agent", rows)


def counter_fell(run_dir):
    rows = engine_samples(agent_rows("known", 50)[1])
    at = max(row["at"] for row in rows) + 1
    samples(run_dir, "agent", [*rows, {**rows[2], "name": "vllm:generation_tokens_total", "at": at, "value": 3}])


def many_failures(run_dir):
    rows = gateway_requests("known")
    for row in rows[:6]:
        row.update(failure="timeout")
    write_tier(run_dir, "gateway", rows)


def client_late(run_dir):
    rows = [*gateway_requests("known")]
    for row in rows[-2:]:
        row["t_intended_ns"] -= 200_000_000
    write_tier(run_dir, "gateway", rows)


def unknown_failure(run_dir):
    rows = gateway_requests("known")
    rows[0].update(failure="tired")
    write_tier(run_dir, "gateway", rows)


def case_missing(run_dir):
    rows = artifact.read_rows(run_dir / "golden.jsonl")
    artifact.write_rows(run_dir / "golden.jsonl", rows[:1])


def stage_killed(run_dir):
    (run_dir / "phases/drive_agent.1.json").unlink()


def second_try_failed(run_dir):
    note = {"stage": "drive_agent", "state": "failed", "error": "gone"}
    artifact.write(run_dir / "phases/drive_agent.2.json", note)


def no_client_file(run_dir):
    (run_dir / "agent/client.json").unlink()


def no_samples(run_dir):
    (run_dir / "gateway/engine.parquet").unlink()


DIFFERENCE = {"flag": "max-num-seqs", "requested": 4, "effective": 128}
LEFT = {"processes_left": ["17 vllm"], "gateway_deregistered": True}
BROKEN = [
    (duplicate, "rule 0 (gateway): no call is there twice: not so in 2 of 101: gateway-0, gateway-0"),
    (stamps_out_of_order, "rule 0 (gateway): the last token came after the first one: not so in 1 of 100"),
    (no_usage, "rule 4 (gateway): every good call has the server's count of its output tokens: not so in 1 of 100"),
    (another_arm, "rule 0 (gateway): every call went to this arm: not so in 1 of 100: other"),
    (tokens_disagree, "output_tokens_off 0.01079; client_output_tokens 1100; engine_output_tokens 1112"),
    (engine_restarted, "rule 3 (run): the engine's process is one and the same from verify to the last scrape"),
    (counter_fell, "rule 3 (run): the engine's token counter never fell: counter_drops 1"),
    (many_failures, "failed requests are within the plan's bound: failure_ratio 0.06; failed_requests 6; requests 100"),
    (client_late, "rule 6 (gateway): the client sent within 100 ms"),
    (unknown_failure, "rule 7 (gateway): every failure is of a known kind: not so in 1 of 100: tired"),
    (case_missing, "rule 2 (run): every case of the golden set was evaluated: 1"),
    (stage_killed, "rule 0 (run): every stage up to release did its work: unfinished_stages drive_agent"),
    (second_try_failed, "unfinished_stages drive_agent"),
    (
        no_client_file,
        "rule 6 (agent): the client's event loop was late by at most 100 ms, in 99 of 100 samples: nothing",
    ),
    (no_samples, "rule 4 (gateway): client and engine agree on output tokens within 1 %: nothing to look at"),
    (lambda d: edit(d, "effective", differences=[DIFFERENCE]), "max-num-seqs: 4 became 128"),
    (
        lambda d: (d / "effective.json").unlink(),
        "rule 1 (run): every requested setting is in effect: nothing to look at",
    ),
    (lambda d: edit(d, "gate", verdict="FAIL", reason="3 of 41"), "gate_verdict FAIL; gate_reason 3 of 41"),
    (lambda d: edit(d, "gate", evaluated=1), "rule 2 (run): the gate left out no case: gate_cases_missed 1"),
    (lambda d: edit(d, "gate", evaluated=0, cases=0), "rule 2 (run): the gate left out no case: nothing to look at"),
    (lambda d: (d / "gate.json").unlink(), "rule 2 (run): the gate said PASS before any load"),
    (lambda d: edit(d, "release", proof=LEFT), "rule 12 (run): no process of the run is left: processes_left 1"),
    (lambda d: (d / "release.json").unlink(), "rule 12 (run): no process of the run is left: nothing to look at"),
]


@pytest.mark.parametrize(("spoil", "reason"), BROKEN, ids=[reason[:60] for _, reason in BROKEN])
def test_a_broken_rule_is_named(run_dir, spoil, reason):
    spoil(run_dir)
    found = validated(run_dir)
    assert found["is_valid"] is False
    assert any(reason in line for line in found["reasons"]), found["reasons"]


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
    assert [line for line in reasons if "gateway)" in line] == ["rule 9 (gateway): the tier has no rows"]
    assert [line for line in reasons if "agent)" in line] == ["rule 9 (agent): the tier has no rows"]


def test_only_run_json_is_no_crash(run_dir):
    for path in sorted(run_dir.rglob("*"), reverse=True):
        if path.is_file() and path.name != "run.json":
            path.unlink()
    found = validated(run_dir)
    assert found["is_valid"] is False
    assert len(found["reasons"]) >= 8


@pytest.mark.parametrize(
    "name", ["agent/tasks.parquet", "gateway/requests.parquet", "agent/engine.parquet", "gate.json", "release.json"]
)
def test_a_corrupt_file_is_a_reason(run_dir, name):
    (run_dir / name).write_bytes(b"\x00 half a")
    found = validated(run_dir)
    assert found["is_valid"] is False
    assert any(name in line and "cannot be read" in line for line in found["reasons"])


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


def test_a_second_time_changes_nothing(run_dir):
    path = validate(run_dir)
    before = path.stat().st_mtime_ns
    assert validate(run_dir).stat().st_mtime_ns == before


def test_without_run_json_there_is_nothing_to_validate(tmp_path):
    with pytest.raises(artifact.BrokenArtifact, match=r"run.json: is missing"):
        validate(tmp_path)


@pytest.mark.parametrize("name", suite.names())
def test_every_suite_loads(name):
    import great_expectations.expectations as known

    for one in suite.load(name).expectations:
        assert hasattr(known, "".join(part.title() for part in one.type.split("_"))), one.type


def test_a_bad_suite_is_named():
    content = {
        "says": "ten letters",
        "table": "rows",
        "expectations": [{"rule": 13, "says": "ten letters", "typ": "x"}],
    }
    with pytest.raises(InvalidDocument, match=r"expectations\.0\.typ: not a known field; known: .*type"):
        parse(content, suite.Suite, source="deploy/expectations/x.yaml")
