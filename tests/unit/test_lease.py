"""The lease: one holder, a hard end, and no way back. No engine here; tests/faults has the ones with processes."""

import threading
import time

import lifecycle
import pytest
import yaml
from lifecycle import age, claimed

from tasks import artifact, lease, slot, stage
from tasks.lease import LeaseLost, SlotBusy
from tasks.stages.claim import claim


def again(**more):
    return claim(arm="cpu-baseline", target="stand-in", plan="short", **more)


def test_the_limit_is_the_sum_of_the_budgets(sandbox):
    run_dir = claimed(sandbox, start_s=20, gate_s=60, drive_s=61, release_s=20)
    content = lease.read(run_dir)
    assert content["expires_at"] - content["acquired_at"] == pytest.approx(161)
    assert content["because"] == "budgets: start 20 + gate 60 + drive 61 + release 20 = 161 s"


def test_a_spend_cap_ends_it_sooner_and_says_so(sandbox):
    price = {"says": "for tests", "usd_per_hour": 3.6, "is_nominal": True, "source": "a round number"}
    lifecycle.write_yaml(sandbox / "deploy" / "prices" / "local-cpu.yaml", price)
    name = lifecycle.plan(sandbox)
    path = sandbox / "deploy" / "plans" / f"{name}.yaml"
    lifecycle.write_yaml(path, yaml.safe_load(path.read_text()) | {"spend_cap_usd": 0.05})
    run_dir = again()
    content = lease.read(run_dir)
    assert content["expires_at"] - content["acquired_at"] == pytest.approx(50)  # 0.05 USD at 0.001 USD per second
    assert content["because"] == "the spend cap of 0.05 USD is reached after 50 s at 3.6 USD per hour"
    age(run_dir, expires_at=time.time() - 1)
    with pytest.raises(LeaseLost, match=r"the spend cap of 0\.05 USD is reached"):
        lease.check(run_dir)


def test_a_cap_that_is_not_reached_changes_nothing(sandbox):
    name = lifecycle.plan(sandbox)
    path = sandbox / "deploy" / "plans" / f"{name}.yaml"
    lifecycle.write_yaml(path, yaml.safe_load(path.read_text()) | {"spend_cap_usd": 1000.0})
    assert lease.read(again())["because"].startswith("budgets:")


@pytest.mark.parametrize(
    ("field", "seconds", "words"),
    [
        ("renewed_at", -11, r"longer ago than its grace of 10 s"),
        ("expires_at", -1, r"it expired at .* \(budgets: "),
        ("given_back_at", -1, r"it ended at .*: None"),
    ],
)
def test_what_ends_a_lease_is_said_and_cannot_be_undone(sandbox, field, seconds, words):
    run_dir = claimed(sandbox, grace_s=10)
    assert lease.renew(run_dir)
    age(run_dir, **{field: time.time() + seconds})
    before = lease.read(run_dir)
    with pytest.raises(LeaseLost, match=words):
        lease.check(run_dir)
    assert not lease.renew(run_dir)
    with lease.kept_alive(run_dir):
        time.sleep(0.3)
    assert lease.read(run_dir) == before


def test_a_missing_or_torn_lease_is_lost(sandbox):
    run_dir = claimed(sandbox)
    (run_dir / "lease.json").write_text("{")
    assert "cannot be read" in str(lease.lost(run_dir))
    (run_dir / "lease.json").write_text("{}")
    assert "lacks 'given_back_at'" in str(lease.lost(run_dir))
    (run_dir / "lease.json").unlink()
    assert "is missing" in str(lease.lost(run_dir))


def test_kept_alive_outlives_the_grace_and_silence_does_not(sandbox):
    run_dir = claimed(sandbox, grace_s=0.8)
    with lease.kept_alive(run_dir):
        time.sleep(1.6)
        assert lease.lost(run_dir) is None
    time.sleep(1)
    assert lease.lost(run_dir) is not None
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("lease")] == []


def test_a_holder_whose_slot_went_to_another_is_told_by_whom(sandbox):
    first = again_after_silence(sandbox)
    second = again(key="dag run 1")
    third = again_after_silence(sandbox, second, key="dag run 1")
    assert third.name == "2" and third.parent == second.parent
    for run_dir in (first, second):
        with pytest.raises(LeaseLost, match="no live lease of attempt 1"):
            stage.perform("deploy", run_dir)
    assert "attempt 2 has followed it" in str(lease.lost(second))
    assert "clear from deploy" in str(lease.lost(second))


def again_after_silence(sandbox, run_dir=None, **more):
    run_dir = run_dir or claimed(sandbox, grace_s=5)
    age(run_dir, renewed_at=time.time() - 6)
    return again(**more) if more else run_dir


def test_busy_says_who_until_when_and_the_place(sandbox):
    first = claimed(sandbox, grace_s=30)
    until = lease.clock(lease.read(first)["expires_at"])
    for key, place in (("a", 1), ("b", 2), ("a", 1), (None, 3)):
        with pytest.raises(SlotBusy) as busy:
            again(key=key)
        assert f"slot stand-in.s0 is held by run {first.parent.name} attempt 1" in str(busy.value)
        assert f"until {until} at the latest; place {place} in the queue" in str(busy.value)
    assert len(list((first.parent.parent).glob("*/*"))) == 1, "a claim that has to wait leaves no folder"


def test_the_queue_is_first_come_first_served(sandbox):
    first = claimed(sandbox, grace_s=30)
    for key in ("a", "b"):
        with pytest.raises(SlotBusy):
            again(key=key)
    lease.give_back(first)
    for key in ("b", None):
        with pytest.raises(SlotBusy, match=r"is free, but others wait for it; place \d in the queue"):
            again(key=key)
    run_dir = again(key="a")
    assert artifact.read(run_dir / "phases" / "claim.1.json")["waited_s"] > 0
    lease.give_back(run_dir)
    again(key="b")


def test_one_who_stopped_asking_loses_the_place(sandbox, monkeypatch):
    first = claimed(sandbox, grace_s=30)
    with pytest.raises(SlotBusy):
        again(key="killed since")
    lease.give_back(first)
    monkeypatch.setattr(slot, "FORGET_AFTER_S", 0)
    assert again(key="b").exists()


def test_a_second_slot_is_taken_when_the_first_is_busy_and_the_queue_left(sandbox):
    target = lifecycle.TARGET | {"slots": ["s0", "s1"]}
    lifecycle.write_yaml(sandbox / "deploy" / "targets" / "stand-in" / "target.yaml", target)
    runs = [claimed(sandbox, grace_s=30), again(key="a")]
    assert [lease.read(run_dir)["slot"] for run_dir in runs] == ["s0", "s1"]
    with pytest.raises(SlotBusy, match=r"s0 is held by[\s\S]*s1 is held by"):
        again(key="b")
    for name in ("s0", "s1"):
        state = slot.read(slot.folder() / f"stand-in.{name}.json", "stand-in", name)
        assert len(state["waiting"]) == 1, "only b waits"
    lease.give_back(runs[1])
    assert lease.read(again(key="b"))["slot"] == "s1"
    lease.give_back(runs[0])
    assert lease.read(again(key="c"))["slot"] == "s0", "b waits no longer"


def test_give_back_is_idempotent_and_takes_nothing_from_the_next(sandbox):
    first = claimed(sandbox, grace_s=30)
    lease.give_back(first)
    second = again()
    lease.give_back(first, "late")
    assert lease.lost(second) is None
    with pytest.raises(SlotBusy, match=second.parent.name):
        again()
    assert lease.read(first)["ended_because"] == "released"


def test_many_claims_at_once_and_one_wins(sandbox):
    lifecycle.plan(sandbox, grace_s=30)
    won, busy = [], []

    def ask():
        try:
            won.append(again())
        except SlotBusy as error:
            busy.append(error)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(won), len(busy)) == (1, 7)
