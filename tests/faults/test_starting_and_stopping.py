"""What goes wrong when an engine is brought up or given back. Real processes; the engine is the stand-in."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import lifecycle
import pytest
from lifecycle import armwise, claimed, is_alive, living, until

from tasks import artifact, lease, leftovers, stage
from tasks.drivers import _port, _supervised, process
from tasks.lease import LeaseLost, SlotBusy
from tasks.stages.claim import claim

pytestmark = pytest.mark.services


@pytest.fixture(autouse=True)
def nothing_survives(armwise_home):
    yield
    for folder in (armwise_home / "runs").glob("*/*"):
        _supervised.stop(folder)


def strays(run_dir: Path) -> list[int]:
    log = (run_dir / "engine.log").read_text()
    return [int(word) for word in log[log.index("strays") :].splitlines()[0].split()[1:]]


def test_an_engine_that_exits_at_start_fails_at_once_and_its_last_words_are_shown(sandbox, monkeypatch):
    monkeypatch.setenv("STAND_IN_FAULT", "exit_at_start")
    run_dir, began = claimed(sandbox, start_s=60, grace_s=30), time.monotonic()
    with pytest.raises(stage.StageFailed, match="the engine exited with code 1 during start-up") as failed:
        stage.perform("deploy", run_dir)
    assert time.monotonic() - began < 20, "it waited although the engine was gone"
    assert (run_dir / "engine.log").read_text().strip().splitlines()[-1] in str(failed.value)
    stage.perform("release", run_dir)
    assert living(run_dir) == []
    assert artifact.read(run_dir / "release.json")["reason"].startswith("deploy failed: the engine exited")


def test_an_engine_that_never_gets_ready_ends_at_its_budget(sandbox, monkeypatch):
    monkeypatch.setenv("STAND_IN_FAULT", "never_ready")
    run_dir = claimed(sandbox, start_s=2, grace_s=30)
    with pytest.raises(stage.StageFailed, match=r"not ready within 2 s \(plan short: budget.start_s\)"):
        stage.perform("deploy", run_dir)
    stage.perform("release", run_dir)
    assert living(run_dir) == []


def test_an_engine_that_is_no_program_is_said(sandbox):
    run_dir = claimed(sandbox, grace_s=30)
    lifecycle.use_engine(sandbox, "")
    content = artifact.read(run_dir / "run.json")
    content["target"]["document"]["command"] = ["/nowhere/python"]
    artifact.write(run_dir / "run.json", content)
    with pytest.raises(stage.StageFailed, match=r"could not be started: .*/nowhere/python"):
        stage.perform("deploy", run_dir)


def test_a_port_taken_by_a_server_that_looks_ready_is_left_for_another(sandbox, monkeypatch, capsys):
    class Healthy(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Healthy) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        free, taken = _port.free(), other.server_address[1]
        ports = iter([taken, free])
        monkeypatch.setattr(_port, "free", lambda: next(ports))
        run_dir = claimed(sandbox, grace_s=30)
        stage.perform("deploy", run_dir)
        other.shutdown()
    assert artifact.read(run_dir / "deployment.json")["url"] == f"http://127.0.0.1:{free}"
    assert f"port {taken} was taken" in capsys.readouterr().out


def test_sigkill_of_the_holder_frees_the_machine_within_its_grace(sandbox, tmp_path):
    lifecycle.use_engine(sandbox, lifecycle.STRAYS)
    holder, run_dir = lifecycle.hold(lifecycle.plan(sandbox, grace_s=1.5), tmp_path)
    time.sleep(2.5)  # longer than its grace: the holder renews
    assert living(run_dir)
    away = strays(run_dir)
    assert all(map(is_alive, away))
    holder.kill()
    holder.wait()
    # its grace, then 5 s for the stray that is deaf to SIGTERM
    until(lambda: not living(run_dir) and not any(map(is_alive, away)), within_s=1.5 + 5 + 3)
    ended = artifact.read(run_dir / "supervisor.json")
    assert "longer ago than its grace of 1.5 s" in ended["why"]
    assert ended["processes_left"] == []
    assert (lease.lost(run_dir) is not None) and not lease.renew(run_dir)


def test_sigkill_of_the_supervisor_takes_the_engine_and_its_strays_along(sandbox):
    lifecycle.use_engine(sandbox, lifecycle.STRAYS)
    run_dir = claimed(sandbox, grace_s=30)
    stage.perform("deploy", run_dir)
    deployment, away = artifact.read(run_dir / "deployment.json"), strays(run_dir)
    assert len(away) == 3 and all(map(is_alive, away))
    os.kill(deployment["supervisor_pid"], signal.SIGKILL)
    until(lambda: not is_alive(deployment["engine_pid"]), within_s=2)
    until(lambda: not any(map(is_alive, away)), within_s=5 + 3)
    until((run_dir / "supervisor.json").exists, within_s=3)
    assert artifact.read(run_dir / "supervisor.json")["why"] == "the supervisor was killed"
    with pytest.raises(LeaseLost, match="the supervisor was killed"):
        lease.check(run_dir)


def test_sigkill_of_supervisor_and_watcher_together_still_takes_the_engine(sandbox):
    run_dir = claimed(sandbox, grace_s=30)
    stage.perform("deploy", run_dir)
    engine = artifact.read(run_dir / "deployment.json")["engine_pid"]
    for pid in lifecycle.guards(run_dir):
        os.kill(pid, signal.SIGKILL)
    until(lambda: not is_alive(engine), within_s=2)


def test_an_expired_lease_ends_the_engine_although_its_holder_renews(sandbox):
    run_dir = claimed(sandbox, start_s=20, gate_s=0.5, drive_s=0.5, release_s=0.5, grace_s=30)
    stage.perform("deploy", run_dir)
    lifecycle.age(run_dir, expires_at=time.time() + 1.5)
    with lease.kept_alive(run_dir):
        until(lambda: not living(run_dir), within_s=1.5 + 5)
    assert "it expired" in artifact.read(run_dir / "supervisor.json")["why"]


def test_two_claims_at_once_one_wins_and_the_other_hears_its_place(sandbox):
    plan = lifecycle.plan(sandbox, grace_s=30)
    program = (
        "import sys\nfrom tasks.stages.claim import claim\nfrom tasks.lease import SlotBusy\n"
        "try:\n    won = claim(arm='cpu-baseline', target='stand-in', plan=sys.argv[1], key=sys.argv[2])\n"
        "    sys.exit(f'won {won}')\nexcept SlotBusy as busy:\n    sys.exit(f'busy {busy}')\n"
    )
    asked = [
        subprocess.Popen([sys.executable, "-c", program, plan, key], stderr=subprocess.PIPE, text=True)
        for key in ("one", "two")
    ]
    said = sorted(process.communicate(timeout=60)[1].strip() for process in asked)
    assert said[0].startswith("busy slot stand-in.s0 is held by run cpu-baseline-")
    assert said[0].endswith("place 1 in the queue")
    assert said[1].startswith("won ")
    assert said[1].split("/")[-2] in said[0], "it names another run than the winner"


def test_a_stale_lease_is_taken_over_only_after_its_engine_is_gone(sandbox, monkeypatch):
    monkeypatch.setattr(_supervised, "STOP_S", 1)
    first = claimed(sandbox)
    stage.perform("deploy", first)
    engine = artifact.read(first / "deployment.json")["engine_pid"]
    for pid in lifecycle.guards(first):  # both guards asleep: nobody enforces the lease
        os.kill(pid, signal.SIGSTOP)
    time.sleep(1.6)
    assert is_alive(engine)
    second = claim(arm="cpu-baseline", target="stand-in", plan="short")
    assert not is_alive(engine)
    assert living(first) == []
    assert lease.lost(second) is None
    with pytest.raises(LeaseLost, match="its slot is wanted"):
        stage.perform("verify", first)


def test_a_live_lease_is_never_taken_over(sandbox):
    first = claimed(sandbox, grace_s=30)
    with pytest.raises(SlotBusy, match=f"held by run {first.parent.name} attempt 1"):
        claim(arm="cpu-baseline", target="stand-in", plan="short")
    assert lease.lost(first) is None


def test_reap_frees_what_outlived_its_lease_and_nothing_else(sandbox, monkeypatch, armwise_home):
    monkeypatch.setattr(_supervised, "STOP_S", 1)
    monkeypatch.setattr(process, "STOPPING_S", 0.5)
    run_dir = claimed(sandbox, grace_s=30)
    stage.perform("deploy", run_dir)
    before = living(run_dir)
    assert leftovers.reap() == []
    assert living(run_dir) == before
    for pid in lifecycle.guards(run_dir):
        os.kill(pid, signal.SIGSTOP)
    lifecycle.age(run_dir, renewed_at=time.time() - 31)
    reaped = leftovers.reap()
    assert [row["run_dir"] for row in reaped] == [str(run_dir)]
    assert "longer ago than its grace of 30 s" in reaped[0]["why"]
    assert living(run_dir) == []
    stored = json.loads((armwise_home / "reaped.jsonl").read_text())
    assert stored["run_dir"] == str(run_dir)
    assert len(stored["freed"]) == len(before)


def test_release_twice_and_twice_at_once(sandbox):
    run_dir = claimed(sandbox, grace_s=30)
    stage.perform("deploy", run_dir)
    failed: list[Exception] = []

    def release():
        try:
            stage.perform("release", run_dir)
        except Exception as error:  # noqa: BLE001 (whatever it is, the test shows it)
            failed.append(error)

    both = [threading.Thread(target=release) for _ in range(2)]
    for one in both:
        one.start()
    for one in both:
        one.join()
    assert failed == []
    assert living(run_dir) == []
    before = (run_dir / "release.json").read_bytes()
    stage.perform("release", run_dir)
    assert (run_dir / "release.json").read_bytes() == before
    content = json.loads(before)
    assert content["was_held"] and content["proof"]["processes_left"] == []
    assert not (run_dir / "engine.key").exists()


@pytest.mark.parametrize("lost", ["deployment.json", "run.json", "lease.json"])
def test_release_works_on_a_half_deployed_or_spoilt_folder(sandbox, lost):
    run_dir = claimed(sandbox, grace_s=30)
    stage.perform("deploy", run_dir)
    engine = artifact.read(run_dir / "deployment.json")["engine_pid"]
    (run_dir / lost).write_text("{ torn")
    stage.perform("release", run_dir)
    assert not is_alive(engine)
    assert living(run_dir) == []


def test_a_run_that_no_longer_holds_its_slot_frees_it_for_the_next(sandbox):
    first = claimed(sandbox, grace_s=30)
    stage.perform("release", first)
    assert lease.lost(claim(arm="cpu-baseline", target="stand-in", plan="short")) is None


@pytest.mark.parametrize(
    ("number", "code", "times"), [(signal.SIGTERM, 143, 1), (signal.SIGINT, 130, 1), (signal.SIGTERM, 143, 2)]
)
def test_a_signal_while_the_engine_starts_still_releases(sandbox, armwise_home, monkeypatch, number, code, times):
    monkeypatch.setenv("STAND_IN_FAULT", "never_ready")
    plan = lifecycle.plan(sandbox, grace_s=30)
    command = armwise("run", "cpu-baseline", "--target", "stand-in", "--plan", plan)
    until(lambda: list(armwise_home.glob("runs/*/1/processes/engine-1.state.json")), within_s=60)
    (run_dir,) = armwise_home.glob("runs/*/1")
    for _ in range(times):
        command.send_signal(number)
        time.sleep(0.3)
    said = command.communicate(timeout=200)[0]
    assert command.returncode == code, said
    assert living(run_dir) == []
    assert artifact.read(run_dir / "release.json")["was_held"]
    assert f"run folder: {run_dir}" in said
    phase = artifact.read(run_dir / "phases" / "deploy.1.json")
    assert phase["state"] == "failed" and phase["error"].startswith("stopped by")
    stored = [path.name for path in run_dir.glob("*.json") if path.name in ("validation.json", "judgement.json")]
    assert len(stored) == (2 if times == 1 else 0), said


def test_a_full_disk_is_one_message_and_holds_nothing(sandbox, armwise_home):
    plan = lifecycle.plan(sandbox, grace_s=30)
    command = armwise("run", "cpu-baseline", "--target", "stand-in", "--plan", plan, file_bytes=0)
    said = command.communicate(timeout=60)[0]
    assert command.returncode == 2, said
    assert said.startswith("armwise: ") and "File too large" in said and len(said.splitlines()) == 1
    assert list(armwise_home.glob("runs/*/*")) == []
    assert lease.lost(claim(arm="cpu-baseline", target="stand-in", plan=plan)) is None


def test_a_key_and_a_gateway_that_only_the_owner_can_read(sandbox):
    run_dir = claimed(sandbox, grace_s=30)
    stage.perform("deploy", run_dir)
    key = (run_dir / "engine.key").read_text()
    assert (run_dir / "engine.key").stat().st_mode & 0o777 == 0o600
    for path in run_dir.rglob("*.json"):
        assert key not in path.read_text() or path.stat().st_mode & 0o777 == 0o600, path
    url = artifact.read(run_dir / "deployment.json")["url"]
    with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=2):
        pass
    stage.perform("release", run_dir)
    assert [path for path in run_dir.rglob("*") if path.is_file() and key in path.read_text(errors="replace")] == []
