"""What a run's state says: from the states of its tasks and the notes of its stages."""

import time

import pytest

from tasks import artifact, lease, stage

ALL = dict.fromkeys(stage.ORDER, "success")


@pytest.fixture
def worked(tmp_path):
    """An attempt in which every stage worked."""
    for name in stage.ORDER:
        stage.note(tmp_path, {"stage": name, "began_at": 0, "ended_at": time.time(), "state": "done", "error": None})
    return tmp_path


def test_a_run_whose_stages_all_worked_is_a_success(worked):
    assert stage.failure(worked, ALL) is None


@pytest.mark.parametrize("state", ["failed", "upstream_failed"])
@pytest.mark.parametrize("name", [name for name in stage.ORDER if name != "judge"])
def test_one_stage_that_failed_fails_the_run_and_is_named(worked, name, state):
    assert stage.failure(worked, ALL | {name: state}).startswith(f"this run failed in {name}")


def test_the_first_failure_is_the_cause_and_the_others_are_listed(worked):
    states = ALL | {"gate": "failed", "drive_gateway": "upstream_failed", "drive_agent": "upstream_failed"}
    said = stage.failure(worked, states)
    assert said == "this run failed in gate; all that did not work: gate, drive_gateway, drive_agent"


def test_load_that_the_gate_skipped_fails_nothing(worked):
    assert stage.failure(worked, ALL | {"drive_gateway": "skipped", "drive_agent": "skipped"}) is None


def test_work_of_an_earlier_attempt_is_no_success_of_this_one(tmp_path):
    stage.note(tmp_path, {"stage": "deploy", "state": "failed", "error": "x"})
    said = stage.failure(tmp_path, ALL)
    assert said == "deploy, verify, gate, drive_gateway, drive_agent worked on an earlier attempt: clear from deploy"


def test_a_stage_is_done_when_one_of_its_tries_was(tmp_path):
    assert not stage.done("load", tmp_path)
    stage.note(tmp_path, {"stage": "load", "state": "failed", "error": "x"})
    assert not stage.done("load", tmp_path)
    stage.note(tmp_path, {"stage": "load", "state": "done", "error": None})
    assert stage.done("load", tmp_path)
    assert not stage.done("judge", tmp_path)


def test_a_stage_that_needs_the_engine_refuses_an_attempt_without_a_deployment(sandbox):
    from lifecycle import claimed

    run_dir = claimed(sandbox)
    for name in ("verify", "gate", "drive_gateway", "drive_agent"):
        with pytest.raises(stage.StageFailed, match="clear from deploy"):
            stage.perform(name, run_dir)


@pytest.mark.parametrize(("verdict", "skips"), [("PASS", False), ("FAIL", True), ("INVALID", True)])
def test_only_a_gate_that_passed_lets_the_load_through(sandbox, verdict, skips):
    from tasks.stages.claim import claim

    run_dir = claim(arm="cpu-baseline", target="stand-in", plan="smoke")
    assert stage.skipped("drive_agent", run_dir) is None, "not gated: the stage refuses by itself"
    artifact.write(run_dir / "gate.json", {"verdict": verdict, "reason": "3 cases worse"})
    for name in ("drive_gateway", "drive_agent"):
        said = stage.skipped(name, run_dir)
        assert said == (f"the gate said {verdict}: 3 cases worse" if skips else None)
    for name in ("release", "validate", "load", "judge"):
        assert stage.skipped(name, run_dir) is None


def test_a_stage_that_comes_after_the_lease_has_lapsed_says_so_in_the_run(sandbox):
    import lifecycle

    run_dir = lifecycle.claimed(sandbox)
    lifecycle.age(run_dir, renewed_at=time.time() - 3600)
    with pytest.raises(lease.LeaseLost):
        stage.perform("deploy", run_dir)
    assert "longer ago than its grace" in artifact.read(run_dir / "phases" / "deploy.1.json")["error"]


def test_a_stage_on_an_attempt_that_has_ended_leaves_no_trace_in_it(sandbox):
    import lifecycle

    run_dir = lifecycle.claimed(sandbox)
    stage.perform("release", run_dir)
    before = sorted(path.name for path in (run_dir / "phases").iterdir())
    with pytest.raises(lease.LeaseLost):
        stage.perform("deploy", run_dir)
    assert sorted(path.name for path in (run_dir / "phases").iterdir()) == before
