"""What outlived its lease: judged by lease and marker. tests/faults has the ones with a real engine."""

import os
import shutil
import subprocess
import sys
import time

import lifecycle
import pytest
from lifecycle import claimed

from tasks import leftovers
from tasks.drivers import _processes, process


@pytest.fixture
def start():
    started = []

    def begin(run_dir):
        started.append(subprocess.Popen(["sleep", "600"], env=os.environ | _processes.marker(run_dir)))
        return started[-1]

    yield begin
    for one in started:
        one.kill()
        one.wait()


def found(run_dir):
    return [row for row in leftovers.find() if row["run_dir"] == str(run_dir)]


def test_a_live_lease_is_left_alone_whatever_runs(sandbox, start):
    run_dir = claimed(sandbox, grace_s=30)
    start(run_dir)
    assert found(run_dir) == []


def test_a_lease_that_lapsed_just_now_is_still_its_supervisors(sandbox, start, monkeypatch):
    run_dir = claimed(sandbox, grace_s=30)
    start(run_dir)
    lifecycle.age(run_dir, renewed_at=time.time() - 30 - 5)
    assert found(run_dir) == []
    lifecycle.age(run_dir, renewed_at=time.time() - 30 - process.STOPPING_S - 1)
    (row,) = found(run_dir)
    assert "its grace of 30 s" in row["why"] and len(row["processes"]) == 1


def test_a_run_folder_that_was_deleted_proves_that_nobody_holds_it(sandbox, start):
    run_dir = claimed(sandbox, grace_s=30)
    engine = start(run_dir)
    shutil.rmtree(run_dir)
    (row,) = found(run_dir)
    assert "it has no lease" in row["why"]
    leftovers.free(run_dir, row["why"])
    assert engine.wait(timeout=5) == -15


def test_a_home_that_is_not_there_proves_nothing(tmp_path, start):
    elsewhere = tmp_path / "gone" / "runs" / "r" / "1"
    start(elsewhere)
    assert found(elsewhere) == []


def test_the_command_says_when_there_is_nothing(sandbox):
    said = subprocess.run(
        [sys.executable, "-c", "from tasks.commands.reap import reap; reap()"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "nothing on this machine has outlived its lease" in said.stdout
