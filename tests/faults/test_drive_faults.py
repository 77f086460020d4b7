"""What goes wrong while a tier runs: the rows that ended are kept, the reason is told, and no client is left."""

import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lifecycle
import psutil
import pytest
from conftest import PLAN, UNCALIBRATED, write_yaml

from tasks import artifact, lease, rows, stage
from tasks.stages.claim import claim
from tasks.stages.drive import drive
from tasks.traffic import cache

pytestmark = pytest.mark.services
LONG = {"levels": [{"users": 3, "duration_s": 60}], "drain_s": 5, "max_tokens": 32} | UNCALIBRATED
DRIVE = (
    "import sys; from pathlib import Path; from tasks import stage; stage.perform('drive_gateway', Path(sys.argv[1]))"
)
Deploy = Callable[..., Path]


@pytest.fixture
def deploy(sandbox: Path) -> Iterator[Deploy]:
    """deploy(**gateway tier) -> the folder of a deployed and gated run; released at the end."""
    made: list[Path] = []

    def up(**tier: Any) -> Path:
        tiers = PLAN["tiers"] | {"gateway": LONG | tier}
        budget = PLAN["budget"] | {"drive_s": 120, "start_s": 60, "grace_s": 30}
        write_yaml(sandbox / "deploy" / "plans" / "long.yaml", PLAN | {"tiers": tiers, "budget": budget})
        made.append(claim(arm="cpu-baseline", target="stand-in", plan="long"))
        stage.perform("deploy", made[-1])
        artifact.write(made[-1] / "gate.json", {"format": 1, "verdict": "PASS", "reason": "said the test"})
        return made[-1]

    yield up
    for run_dir in made:
        stage.perform("release", run_dir)
        assert lifecycle.living(run_dir) == []


def clients(run_dir: Path) -> list[psutil.Process]:
    """Locust processes of the run, by their command lines."""
    found = []
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
            if "locust" in words and str(run_dir) in words and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def spooled(run_dir: Path, at_least: int = 5) -> Callable[[], bool]:
    def enough() -> bool:
        found = rows.spools(run_dir / "gateway", "requests")
        return sum(len(path.read_bytes().splitlines()) for path in found) >= at_least

    return enough


def once_rows_come(run_dir: Path, act: Callable[[], Any]) -> threading.Thread:
    """Do something, from a thread, when the tier is under way."""

    def wait_and_act() -> None:
        lifecycle.until(spooled(run_dir), within_s=90)
        act()

    thread = threading.Thread(target=wait_and_act, daemon=True)
    thread.start()
    return thread


def check_kept(run_dir: Path, *, says: str) -> list[dict[str, Any]]:
    """Good rows in Parquet, the reason in tier.json, no client left, and no second try."""
    assert clients(run_dir) == []
    calls = rows.read(run_dir, "gateway", "requests")
    assert (run_dir / "gateway" / "requests.parquet").exists()
    assert len([row for row in calls if row["failure"] is None and not row["is_aborted"]]) >= 3
    note = artifact.read(run_dir / "gateway" / "tier.json")
    assert says in note["failure"]
    assert note["counts"]["requests"] == len(calls)
    assert rows.read(run_dir, "gateway", "engine")
    with pytest.raises(stage.StageFailed, match="clear from deploy"):
        drive(run_dir, "gateway")
    return calls


def test_an_engine_killed_in_the_middle(deploy: Deploy) -> None:
    run_dir = deploy()
    pid = artifact.read(run_dir / "deployment.json")["engine_pid"]
    once_rows_come(run_dir, lambda: os.kill(pid, signal.SIGKILL))
    with pytest.raises(stage.StageFailed, match="the engine died in tier gateway") as failed:
        stage.perform("drive_gateway", run_dir)
    assert "engine.log" in str(failed.value)
    assert "POST /v1/chat/completions" in str(failed.value)  # the engine's own last lines
    check_kept(run_dir, says="the engine died in tier gateway")


def test_a_gateway_that_is_gone(deploy: Deploy) -> None:
    run_dir = deploy()
    gateway = next(p for p in psutil.process_iter() if _is_gateway_of(p, run_dir))
    once_rows_come(run_dir, gateway.kill)
    with pytest.raises(stage.StageFailed, match=r"every call of tier gateway fails .* \(connect: "):
        stage.perform("drive_gateway", run_dir)
    calls = check_kept(run_dir, says="every call of tier gateway fails")
    failed = [row for row in calls if row["failure"]]
    assert len(failed) < 3 * 40 * 10, "a server that refuses at once was hammered"


def _is_gateway_of(process: psutil.Process, run_dir: Path) -> bool:
    try:
        words = process.cmdline()
    except psutil.Error:
        return False
    return "tasks.gateway" in words and any(str(run_dir) in word for word in words)


@pytest.mark.parametrize(
    ("fault", "says"), [("http_503:1", "http_5xx: 503: planted"), ("hang", "timeout: "), ("truncated", "truncated: ")]
)
def test_an_engine_that_answers_no_probe_gets_no_load(
    deploy: Deploy, monkeypatch: pytest.MonkeyPatch, fault: str, says: str
) -> None:
    monkeypatch.setenv("STAND_IN_FAULT", fault)
    monkeypatch.setattr(cache, "PROBE_S", 1.0)
    run_dir = deploy()
    with pytest.raises(stage.StageFailed, match=f"no load on tier gateway: 3 probe calls failed.*{says}"):
        stage.perform("drive_gateway", run_dir)
    assert "3 probe calls failed" in artifact.read(run_dir / "gateway" / "tier.json")["failure"]


def test_an_engine_so_slow_that_no_call_ends(deploy: Deploy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAND_IN_TTFT_MS", "6000")
    run_dir = deploy(levels=[{"users": 2, "duration_s": 1}], drain_s=1)
    with pytest.raises(stage.StageFailed, match=r"not one call ended \(2 were cut off"):
        stage.perform("drive_gateway", run_dir)
    calls = rows.read(run_dir, "gateway", "requests")
    assert [(row["is_aborted"], row["failure"], row["t_first_token_ns"]) for row in calls] == [(True, None, None)] * 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_told_to_stop(deploy: Deploy, monkeypatch: pytest.MonkeyPatch, number: signal.Signals) -> None:
    monkeypatch.setenv("STAND_IN_TPOT_MS", "30")  # so that calls are in flight when it comes
    run_dir = deploy()
    driving = subprocess.Popen([sys.executable, "-c", DRIVE, str(run_dir)])
    lifecycle.until(spooled(run_dir), within_s=90)
    driving.send_signal(number)
    assert driving.wait(30) != 0
    calls = check_kept(run_dir, says="SIGTERM" if number == signal.SIGTERM else "Ctrl-C")
    assert [row for row in calls if row["failure"]] == []
    assert any(row["is_aborted"] for row in calls), "three users, and none was in the middle of a call"
    assert artifact.read(run_dir / "gateway" / "client.json")["is_stopped"]


def test_killed_outright(deploy: Deploy) -> None:
    run_dir = deploy()
    driving = subprocess.Popen([sys.executable, "-c", DRIVE, str(run_dir)])
    lifecycle.until(spooled(run_dir), within_s=90)
    assert len(clients(run_dir)) == 1
    driving.kill()
    driving.wait(5)
    lifecycle.until(lambda: not clients(run_dir), within_s=5)
    kept = rows.read(run_dir, "gateway", "requests")
    assert len(kept) >= 5
    assert all(row["failure"] is None for row in kept)
    with pytest.raises(stage.StageFailed, match=r"of an interrupted try.*clear from deploy"):
        stage.perform("drive_gateway", run_dir)
    assert len(rows.read(run_dir, "gateway", "requests")) == len(kept)


def test_a_lease_that_is_lost(deploy: Deploy) -> None:
    run_dir = deploy()
    once_rows_come(run_dir, lambda: lease.end(run_dir, "said the test"))
    with pytest.raises(lease.LeaseLost, match="clear from deploy"):
        stage.perform("drive_gateway", run_dir)
    check_kept(run_dir, says="")
    failure = artifact.read(run_dir / "gateway" / "tier.json")["failure"]
    assert "no live lease" in failure or "the engine died" in failure  # its supervisor looks too


def test_a_full_disk_keeps_what_was_written(deploy: Deploy) -> None:
    run_dir = deploy()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, before[1]))  # the client inherits it: the kernel's own refusal
    try:
        began = time.monotonic()
        with pytest.raises(stage.StageFailed, match=r"requests\.jsonl: a row could not be written") as failed:
            stage.perform("drive_gateway", run_dir)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert time.monotonic() - began < 60, "it went on although no row could be written"
    assert "bytes of rows are kept" in str(failed.value)
    check_kept(run_dir, says="a row could not be written")


def worker(run_dir: Path, number: int) -> psutil.Process:
    found = [p for p in clients(run_dir) if p.cmdline()[-2:] == ["--process", str(number)]]
    assert len(found) == 1
    return found[0]


def test_one_of_two_client_processes_killed(deploy: Deploy) -> None:
    """Its rows are kept, those of the other too, and the tier fails in words at once."""
    run_dir = deploy(processes=2, levels=[{"users": 4, "duration_s": 60}])
    once_rows_come(run_dir, lambda: worker(run_dir, 1).kill())
    began = time.monotonic()
    with pytest.raises(stage.StageFailed, match="tier gateway: client process 1 of 2 was killed by signal 9"):
        stage.perform("drive_gateway", run_dir)
    assert time.monotonic() - began < 55, "it went on to the end of the level"
    calls = check_kept(run_dir, says="client process 1 of 2 was killed by signal 9; its rows up to then are kept")
    assert {row["process"] for row in calls} == {0, 1}


def test_two_client_processes_told_to_stop(deploy: Deploy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAND_IN_TPOT_MS", "30")  # so that calls are in flight when it comes
    run_dir = deploy(processes=2, levels=[{"rate_per_s": 6, "arrivals": "constant", "duration_s": 60}])
    driving = subprocess.Popen([sys.executable, "-c", DRIVE, str(run_dir)])
    lifecycle.until(spooled(run_dir), within_s=90)
    driving.send_signal(signal.SIGTERM)
    assert driving.wait(30) != 0
    calls = check_kept(run_dir, says="SIGTERM")
    assert [row for row in calls if row["failure"]] == []
    assert any(row["is_aborted"] for row in calls)
    told = artifact.read(run_dir / "gateway" / "client.json")
    assert told["is_stopped"]
    assert sum(level["requests"] for level in told["levels"]) == len(calls)
