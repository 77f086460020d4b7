"""Starting, finding and stopping by the marker. Real processes; which of them live is asked of psutil here too."""

import os
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest
from lifecycle import is_alive, until

from tasks.stack import process

SLEEP = (sys.executable, "-c", "import time; time.sleep(60)")
# A leader whose worker waits for a task; the leader ends only when the task has: Airflow's scheduler.
SCHEDULER = """
import signal, subprocess, sys
worker = '''
import signal, subprocess, sys
signal.signal(signal.SIGTERM, lambda *_: print("worker was told to stop", flush=True))
task = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print("task", task.pid, flush=True)
task.wait()
print("worker saw its task end", flush=True)
'''
child = subprocess.Popen([sys.executable, "-c", worker])
print("worker", child.pid, flush=True)
signal.signal(signal.SIGTERM, lambda *_: (child.wait(), sys.exit(0)))
signal.pause()
"""


@pytest.fixture
def home(tmp_path):
    yield tmp_path
    process.stop(process.members(tmp_path), within_s=5)


def start(home: Path, argv=SLEEP, part: str = "sleeper") -> int:
    return process.start(argv, home=home, part=part, environment={"SAID": "so"}, log=home / "logs" / f"{part}.log")


def words_of(home: Path, part: str) -> dict[str, int]:
    """`name pid` lines that SCHEDULER and its worker print."""
    log = home / "logs" / f"{part}.log"
    lines = until(lambda: (found := log.read_text().splitlines())[1:] and found, within_s=10)
    return {line.split()[0]: int(line.split()[1]) for line in lines[:2]}


def test_what_is_started_is_found_by_its_home_and_part_and_by_no_other(home, tmp_path):
    pid = start(home)
    assert [p.pid for p in process.members(home)] == [pid]
    assert process.leader(home, "sleeper").pid == pid
    assert process.members(home, "other") == []
    assert process.members(tmp_path / "elsewhere") == []
    assert psutil.Process(pid).environ()["SAID"] == "so"
    assert os.getsid(pid) == pid, "a Ctrl-C at the terminal of `up` would reach it"


def test_a_part_is_found_as_soon_as_it_is_started_however_long_its_shell_takes(home, monkeypatch):
    monkeypatch.setattr(process, "_EXEC", f"sleep 0.5; {process._EXEC}")
    pid = start(home)
    assert process.leader(home, "sleeper").pid == pid


def test_a_shell_that_never_becomes_the_part_is_not_waited_for_for_ever(home, monkeypatch):
    monkeypatch.setattr(process, "_EXEC", "sleep 60")
    monkeypatch.setattr(process, "LEADS_WITHIN_S", 0.3)
    began = time.monotonic()
    start(home)
    assert time.monotonic() - began < 5
    assert process.leader(home, "sleeper") is None


def test_what_cannot_be_started_is_gone_and_is_not_waited_for(home):
    start(home, ("/no/such/program",))
    assert process.leader(home, "sleeper") is None
    assert "/no/such/program" in (home / "logs" / "sleeper.log").read_text()


def test_children_that_outlive_a_killed_leader_are_members_and_no_leader(home):
    start(home, (sys.executable, "-c", SCHEDULER), "scheduler")
    pids = words_of(home, "scheduler")
    process.leader(home, "scheduler").kill()
    until(lambda: process.leader(home, "scheduler") is None, within_s=5)
    assert {p.pid for p in process.members(home, "scheduler")} == set(pids.values())
    assert process.stop(process.members(home), within_s=1) == []
    assert not any(is_alive(pid) for pid in pids.values())


def test_a_part_ends_from_its_task_outward_and_its_workers_are_not_signalled(home):
    start(home, (sys.executable, "-c", SCHEDULER), "scheduler")
    pids = words_of(home, "scheduler")
    process.stop_part(home, "scheduler", within_s=10)
    said = (home / "logs" / "scheduler.log").read_text()
    assert "worker saw its task end" in said
    assert "worker was told to stop" not in said
    assert not any(is_alive(pid) for pid in pids.values())
    assert process.members(home) == []


def test_one_that_is_deaf_to_sigterm_is_killed(home):
    deaf = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)"
    )
    pid = start(home, (sys.executable, "-c", deaf))
    until(lambda: "deaf" in (home / "logs" / "sleeper.log").read_text(), within_s=10)
    began = time.monotonic()
    assert process.stop(process.members(home), within_s=0.5) == []
    assert time.monotonic() - began < 5
    assert not is_alive(pid)


def test_a_zombie_does_not_count_as_alive(home):
    pid = start(home)
    zombie = psutil.Process(pid)
    os.kill(pid, signal.SIGKILL)
    until(lambda: zombie.status() == psutil.STATUS_ZOMBIE, within_s=5)  # its parent, this test, has not asked yet
    assert not process.is_alive(zombie)
    assert process.members(home) == []
