"""Which processes belong to a run: marked ones, groups of its supervisor, descendants; nothing else."""

import os
import subprocess
import sys
import time

import pytest

from tasks import artifact
from tasks.drivers import _processes


@pytest.fixture
def run_dir(tmp_path):
    folder = tmp_path / "runs" / "r" / "1"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def start():
    started = []

    def begin(*words, **options):
        started.append(subprocess.Popen(words or ("sleep", "600"), **options))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.wait()


def pids(run_dir):
    return {p.pid for p in _processes.of(run_dir)}


def marked(run_dir):
    return os.environ | _processes.marker(run_dir)


def test_a_marked_process_belongs_and_one_of_another_attempt_does_not(run_dir, start):
    other = run_dir.with_name("11")
    mine = start(env=marked(run_dir))
    start(env=marked(other))
    start()
    assert pids(run_dir) == {mine.pid}


def test_a_name_proves_nothing(run_dir, start):
    start(sys.executable, "-c", "import time; time.sleep(600)", str(run_dir), "vllm")
    assert pids(run_dir) == set()


def test_a_group_counts_only_inside_the_session_that_was_noted(run_dir, start):
    process = start(start_new_session=True, env={})
    noted = {"pid": process.pid, "pgid": process.pid, "sid": process.pid}
    artifact.write(run_dir / "processes" / "engine-1.state.json", noted)
    assert pids(run_dir) == {process.pid}
    artifact.write(run_dir / "processes" / "engine-1.state.json", noted | {"sid": os.getpid()})
    assert pids(run_dir) == set()


def test_an_unmarked_child_of_a_marked_process_belongs(run_dir, start):
    program = "import subprocess, sys; subprocess.Popen(['sleep', '600'], env={}, start_new_session=True).wait()"
    parent = start(sys.executable, "-c", program, env=marked(run_dir))
    deadline = time.monotonic() + 10
    while len(pids(run_dir)) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert parent.pid in pids(run_dir) and len(pids(run_dir)) == 2
    stopped, left = _processes.end(run_dir)
    assert len(stopped) == 2 and left == []


def test_a_zombie_holds_nothing(run_dir, start):
    process = start("true", env=marked(run_dir))
    time.sleep(0.3)  # nobody has waited for it
    assert pids(run_dir) == set()
    assert process.wait() == 0


def test_one_that_is_deaf_to_sigterm_is_killed(run_dir, start):
    program = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(600)"
    )
    process = start(sys.executable, "-c", program, env=marked(run_dir), stdout=subprocess.PIPE)
    process.stdout.readline()
    began = time.monotonic()
    stopped, left = _processes.end(run_dir, term_s=0.5)
    assert time.monotonic() - began >= 0.5
    assert [p.pid for p in stopped] == [process.pid] and left == []
    assert process.wait() == -9
    process.stdout.close()


def test_secrets_of_other_processes_are_not_kept(run_dir, start):
    start(env=marked(run_dir) | {"VLLM_API_KEY": "not-to-be-seen"})
    assert "not-to-be-seen" not in repr(_processes.of(run_dir))
