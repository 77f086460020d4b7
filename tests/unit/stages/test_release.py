"""Release of runs that never had an engine. tests/faults has those with one."""

import time

import lifecycle
import pytest
from lifecycle import claimed

from tasks import artifact, lease, leftovers, stage
from tasks.drivers import _gpu
from tasks.gateway import client
from tasks.stages import release
from tasks.stages.claim import claim


def released(run_dir):
    return artifact.read(release.release(run_dir))


def fail(run_dir, name, error):
    stage.note(run_dir, {"stage": name, "began_at": 1.0, "ended_at": 2.0, "state": "failed", "error": error})


def test_a_claimed_run_is_billed_from_the_claim_to_the_proof(sandbox):
    run_dir = claimed(sandbox, grace_s=30)
    time.sleep(0.3)
    content = released(run_dir)
    assert content["was_held"] is True
    assert content["billed_from"] == lease.read(run_dir)["acquired_at"]
    assert content["held_s"] == content["released_at"] - content["billed_from"]
    assert 0.3 <= content["held_s"] < 10
    assert content["proof"] == {"processes_left": [], "gateway_deregistered": True, "gpu_memory_mib": None}
    assert content["reason"] == "the work is done"
    assert lease.lost(run_dir) is not None


def test_the_reason_is_the_first_failure_of_the_work(sandbox):
    run_dir = claimed(sandbox, grace_s=30)
    fail(run_dir, "drive_agent", "the gateway is gone\nsecond line")
    fail(run_dir, "validate", "not part of the work")
    assert released(run_dir)["reason"] == "drive_agent failed: the gateway is gone"


def test_the_reason_is_the_lapse_where_nobody_was_left_to_fail(sandbox):
    run_dir = claimed(sandbox, grace_s=1)
    lifecycle.age(run_dir, renewed_at=time.time() - 5)
    content = released(run_dir)
    assert content["was_held"] is False
    assert "longer ago than its grace of 1 s" in content["reason"]


def test_what_the_supervisor_proved_before_us_ends_the_bill(sandbox):
    run_dir = claimed(sandbox, grace_s=30)
    at = lease.read(run_dir)["acquired_at"] + 0.25
    time.sleep(0.5)
    artifact.write(run_dir / "supervisor.json", {"why": "x", "ended_at": at, "processes_left": []})
    assert released(run_dir)["held_s"] == pytest.approx(0.25)


def test_what_cannot_be_stopped_keeps_the_slot(sandbox, monkeypatch):
    run_dir = claimed(sandbox, grace_s=30)
    with monkeypatch.context() as stuck:
        stuck.setattr(leftovers, "stop", lambda *_, **__: {"freed": [], "processes_left": ["17 engine"]})
        with pytest.raises(stage.StageFailed, match="cannot be stopped: 17 engine"):
            release.release(run_dir)
        assert not (run_dir / "release.json").exists()
        lifecycle.age(run_dir, renewed_at=time.time() - 60)
        with pytest.raises(lease.SlotBusy, match=r"these processes of it cannot be stopped: 17 engine"):
            claim(arm="cpu-baseline", target="stand-in", plan="short")
    assert released(run_dir)["proof"]["processes_left"] == []


def test_a_gateway_that_is_gone_is_no_obstacle(sandbox, monkeypatch):
    run_dir = claimed(sandbox, grace_s=30)
    monkeypatch.setenv("ARMWISE_GATEWAY_URL", "http://127.0.0.1:9")
    assert released(run_dir)["proof"]["gateway_deregistered"] is False


def test_it_deregisters_its_own_attempt_alone(sandbox, monkeypatch):
    run_dir = claimed(sandbox, grace_s=30)
    asked = []
    monkeypatch.setattr(client, "find", lambda: "the gateway")
    monkeypatch.setattr(client, "deregister", lambda *words: asked.append(words))
    released(run_dir)
    owner = f"{run_dir.parent.name}/1"
    names = ("cpu-baseline", "cpu-baseline.null-calibration")  # the second is left only by a drive that was killed
    assert asked == [("the gateway", name, owner) for name in names]


def test_what_was_never_claimed_has_no_bill_rather_than_one_of_nothing(sandbox):
    run_dir = claimed(sandbox, grace_s=30)
    (run_dir / "lease.json").write_text("{")
    content = released(run_dir)
    assert (content["held_s"], content["billed_from"]) == (None, None)


def test_gpu_memory_is_waited_for_and_stored(sandbox, monkeypatch):
    readings = iter([[500, 10], [9_000, 10], [540, 10]])
    monkeypatch.setattr(_gpu, "memory_used_mib", lambda slot: next({"s0": readings}[slot]))
    run_dir = claimed(sandbox, grace_s=30)
    assert released(run_dir)["proof"]["gpu_memory_mib"] == {"before": [500, 10], "after": [540, 10]}
