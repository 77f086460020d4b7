"""Waiting for a slot cheaply: when is asking again worth it, and who keeps which place."""

import time

import lifecycle
import pytest

from tasks import lease, slot
from tasks.stages.claim import claim, run_id


def ask(key):
    return claim(arm="cpu-baseline", target="stand-in", plan="smoke", key=key)


def worth(key):
    return lease.worth_asking("stand-in", ["s0"], run_id("cpu-baseline", key))


def test_it_is_not_worth_asking_while_a_run_holds_the_slot_and_it_is_once_that_gave_it_back(sandbox):
    held = ask("first")
    with pytest.raises(lease.SlotBusy):
        ask("second")
    assert not worth("second")
    lease.give_back(held)
    assert worth("second")
    assert ask("second").name == "1"


def test_it_is_worth_asking_when_the_holder_has_fallen_silent(sandbox):
    held = ask("first")
    lifecycle.age(held, renewed_at=time.time() - 3600)
    assert worth("second")


def test_only_the_first_in_the_queue_is_woken(sandbox):
    held = ask("first")
    for key in ("second", "third"):
        with pytest.raises(lease.SlotBusy):
            ask(key)
    lease.give_back(held)
    assert worth("second")
    assert not worth("third")


def test_looking_keeps_the_place_of_one_who_waits_for_longer_than_a_minute(sandbox, monkeypatch):
    ask("first")
    for key in ("second", "third"):
        with pytest.raises(lease.SlotBusy):
            ask(key)
    later = time.time() + slot.FORGET_AFTER_S - 1
    monkeypatch.setattr(time, "time", lambda: later)
    worth("second")
    monkeypatch.setattr(time, "time", lambda: later + 10)
    with slot.locked("stand-in", "s0", busy=lease.SlotBusy) as state:
        slot.note_waiting(state, None, now=time.time())
        assert [waiting["name"] for waiting in state["waiting"]] == [run_id("cpu-baseline", "second")]
