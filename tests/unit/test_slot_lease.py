"""The lease's row: two machines are two home folders over one Postgres."""

import time

import lifecycle
import pytest
import sqlalchemy
from lifecycle import claimed

from tasks import lease, slot_lease
from tasks.lease import SlotBusy
from tasks.stages.claim import claim

pytestmark = pytest.mark.services  # a Postgres


@pytest.fixture
def rows(postgres):
    def read(table="slot_lease"):
        with sqlalchemy.create_engine(postgres, poolclass=sqlalchemy.NullPool).connect() as connection:
            return [dict(row) for row in connection.execute(sqlalchemy.text(f"select * from {table}")).mappings()]

    return read


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    def go():
        monkeypatch.setenv("ARMWISE_HOME", str(tmp_path / "elsewhere"))

    return go


def again(**more):
    return claim(arm="cpu-baseline", target="stand-in", plan="short", **more)


def test_a_slot_held_on_another_machine_is_busy(sandbox, rows, elsewhere):
    first = claimed(sandbox, grace_s=30)
    (row,) = rows()
    assert (row["run_id"], row["slot"], row["grace_s"]) == (first.parent.name, "s0", 30)
    elsewhere()
    with pytest.raises(SlotBusy, match=f"held by run {first.parent.name} attempt 1"):
        again(key="b")
    assert len(rows("slot_wait")) == 1
    lease.give_back(first)
    assert rows() == []
    second = again(key="b")
    assert [row["run_id"] for row in rows()] == [second.parent.name]
    assert rows("slot_wait") == []


def test_a_row_of_another_machine_is_free_only_after_its_supervisor_had_time(sandbox, rows, elsewhere, monkeypatch):
    first = claimed(sandbox, grace_s=1)
    elsewhere()
    time.sleep(1.5)
    with pytest.raises(SlotBusy):
        again()
    monkeypatch.setattr(slot_lease, "STOPPING_S", 0.1)
    second = again()
    assert [row["run_id"] for row in rows()] == [second.parent.name]
    slot_lease.renew(lease.read(first) | {"renewed_at": 0})
    slot_lease.drop(lease.read(first))
    (row,) = rows()
    assert row["renewed_at"] > 0, "a renewal of the old holder reached the row of the new one"


def test_a_row_left_by_a_run_of_this_machine_is_no_hindrance(sandbox, rows, monkeypatch):
    first = claimed(sandbox, grace_s=30)
    with monkeypatch.context() as away:
        away.setenv("ARMWISE_DB_URL", "none")
        lease.give_back(first)
    assert len(rows()) == 1
    second = again()
    assert [row["run_id"] for row in rows()] == [second.parent.name]


def test_the_row_is_renewed_with_the_file(sandbox, rows):
    run_dir = claimed(sandbox, grace_s=2)
    before = rows()[0]["renewed_at"]
    with lease.kept_alive(run_dir):
        lifecycle.until(lambda: rows()[0]["renewed_at"] > before, within_s=10)


def test_a_database_that_is_away_stops_nobody(sandbox, monkeypatch, capsys):
    monkeypatch.setenv("ARMWISE_DB_URL", "postgresql://armwise@127.0.0.1:9/armwise")
    run_dir = claimed(sandbox, grace_s=0.8)
    with lease.kept_alive(run_dir):
        time.sleep(1.6)
        assert lease.lost(run_dir) is None
    lease.give_back(run_dir)
    assert "the slot's file guards alone" in capsys.readouterr().out
