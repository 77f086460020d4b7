"""Null calibration with real processes: client, echo server, gateway; and what becomes of it when one of them fails."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import lifecycle
import measured_run
import psutil
import pytest
from conftest import CHECKOUT, PLAN, write_yaml

from tasks import artifact, leftovers, run, stage
from tasks.engines.sim.starve import starved
from tasks.gateway import client
from tasks.stages.claim import claim
from tasks.traffic import calibrate, calibration

pytestmark = pytest.mark.services
DRIVE = (
    "import sys; from pathlib import Path; from tasks import stage; stage.perform('drive_gateway', Path(sys.argv[1]))"
)
SPREADS = ("ttft_floor_ms", "ttft_error_ms", "burst_ttft_error_ms", "icl_error_ms", "schedule_delay_ms", "loop_lag_ms")


@pytest.fixture
def gateway(tmp_path: Path, armwise_home: Path) -> Iterator[client.Gateway]:
    """Of a run in tmp_path/r1/1, as if the run had brought it."""
    state = tmp_path / "r1" / "1" / "gateway-server"
    with subprocess.Popen([sys.executable, "-m", "tasks.gateway", "--port", "0", "--state", str(state)]) as server:
        try:
            yield client.wait(state, deadline_s=60)
        finally:
            server.kill()


def calibrated(folder: Path, deployment: dict[str, Any], **tier: Any) -> dict[str, Any]:
    """calibration.json of the gateway tier of a run in `folder`."""
    tiers = {"gateway": {"levels": [{"users": 4, "duration_s": 20}], "calibrate_s": 0.8} | tier}
    plan = {"tiers": tiers | {"agent": {"levels": [{"users": 4, "duration_s": 20}]}}}
    run_dir = measured_run.make(folder, plan=plan)
    (run_dir / "gateway" / "calibration.json").unlink()
    before = children()
    told = artifact.read(calibrate.calibrate(run.read(run_dir), "gateway", deployment))
    assert children() == before, "it left a process"
    return told


def children() -> list[int]:
    return sorted(child.pid for child in psutil.Process().children(recursive=True))


def of(gateway: client.Gateway) -> dict[str, Any]:
    return {"gateway_url": gateway.url, "gateway_started": True}


def once(found: Callable[[], Any], act: Callable[[Any], Any]) -> threading.Thread:
    """Do something, from a thread, with what is there then."""
    thread = threading.Thread(target=lambda: act(lifecycle.until(found, within_s=60)), daemon=True)
    thread.start()
    return thread


def child_named(word: str) -> Callable[[], psutil.Process | None]:
    def found() -> psutil.Process | None:
        for child in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):  # ended between the listing and the question, or ended and not yet waited for
                if any(word in part for part in child.cmdline()):
                    return child
        return None

    return found


def test_direct_and_through_the_gateway(tmp_path: Path, gateway: client.Gateway) -> None:
    told = calibrated(tmp_path, of(gateway), processes=2)
    assert (told["is_enough"], told["reason"], told["fault"]) == (True, None, None), told
    for path in ("direct", "through_gateway"):
        found = told[path]
        assert (found["failed"], found["lost_chunks"]) == (0, 0)
        assert found["calls"] > found["calls_after_burst"] >= 4
        assert len({one["pid"] for one in found["processes"]}) == 2
        for name in SPREADS:
            assert found[f"{name}_p50"] <= found[f"{name}_p99"] <= found[f"{name}_max"]
        assert found["ttft_floor_ms_p50"] > 0
    assert told["offered"]["chunks_per_s"] == 200
    share = told["through_gateway"]["ttft_floor_ms_p50"] - told["direct"]["ttft_floor_ms_p50"]
    assert told["gateway_share"]["ttft_ms_p50"] == pytest.approx(share, abs=0.002)
    assert client.registered(gateway) == []


def test_a_plan_may_go_without_and_says_why(tmp_path: Path) -> None:
    told = calibrated(tmp_path, {}, calibrate_s=0, not_calibrated_because="there is no time for it")
    assert (told["is_enough"], told["not_calibrated_because"]) == (None, "there is no time for it")


def test_a_late_echo_server_is_told_and_is_not_taken_for_the_clients_delay(
    tmp_path: Path, gateway: client.Gateway
) -> None:
    """Stopped for 0.6 s, a third of the first round."""
    path = tmp_path / "r1" / "1" / "gateway-server" / "requests.log"

    def pause(server: psutil.Process) -> None:
        lifecycle.until(lambda: path.exists() and "/calibration/" in path.read_text(), within_s=60)  # the rehearsal
        time.sleep(1)
        server.suspend()
        time.sleep(0.6)
        server.resume()

    waiting = once(child_named("tasks.traffic.echo"), pause)
    told = calibrated(tmp_path, of(gateway), calibrate_s=8)
    waiting.join(5)
    assert told["is_enough"] is False
    assert "direct: the echo server itself was late" in told["reason"]
    assert told["direct"]["server_late_ms_max"] > 500
    wrong = told["direct"]["icl_error_ms_max"]
    assert wrong < 500, "the gap that the server made is in its stamps, so it is no error of the client"


def test_a_starved_client_is_not_enough(tmp_path: Path, gateway: client.Gateway) -> None:
    """Everything on one core, which four others burn: 512 streams need more than what is left."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        with starved(4, seconds=120):
            told = calibrated(tmp_path, of(gateway), levels=[{"users": 512, "duration_s": 20}], calibrate_s=2)
    finally:
        os.sched_setaffinity(0, cores)
    assert told["is_enough"] is False
    assert "direct: " in told["reason"], told["reason"]


def test_a_client_that_is_stopped_in_mid_round_is_not_enough(tmp_path: Path, gateway: client.Gateway) -> None:
    log = tmp_path / "r1" / "1" / "gateway-server" / "requests.log"

    def pause(locust: psutil.Process) -> None:
        lifecycle.until(lambda: log.exists() and "/calibration/" in log.read_text(), within_s=60)
        time.sleep(1)
        locust.suspend()
        time.sleep(0.6)
        locust.resume()

    waiting = once(child_named("calibrate_locustfile"), pause)
    told = calibrated(tmp_path, of(gateway), calibrate_s=8)
    waiting.join(5)
    assert told["is_enough"] is False
    assert "loop_lag_ms_p99 is " in told["reason"]


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "http://no.such.host.invalid:8100"])
def test_a_gateway_that_is_not_there_leaves_the_direct_path(tmp_path: Path, armwise_home: Path, url: str) -> None:
    told = calibrated(tmp_path, {"gateway_url": url, "gateway_started": False})
    assert told["is_enough"] is False
    assert told["reason"] == f"through gateway: the gateway {url} does not answer"
    assert told["through_gateway"] is None
    assert told["gateway_share"]["ttft_ms_p50"] is None
    assert told["direct"]["failed"] == 0


def test_a_gateway_that_dies_in_mid_calibration(tmp_path: Path, gateway: client.Gateway) -> None:
    log = tmp_path / "r1" / "1" / "gateway-server" / "requests.log"

    def kill(server: psutil.Process) -> None:
        lifecycle.until(lambda: log.exists() and "/calibration/" in log.read_text(), within_s=60)
        server.kill()

    waiting = once(child_named("tasks.gateway"), kill)
    run_dir = tmp_path / "r1" / "1"
    tiers = {"gateway": {"levels": [{"users": 4, "duration_s": 20}], "calibrate_s": 2}, "agent": {}}
    tiers["agent"] = {"levels": [{"users": 4, "duration_s": 20}]}
    measured_run.make(tmp_path, plan={"tiers": tiers})
    told = artifact.read(calibrate.calibrate(run.read(run_dir), "gateway", of(gateway)))
    waiting.join(5)
    assert told["is_enough"] is False
    assert "through gateway: " in told["reason"] and "connect: " in told["reason"]
    assert "the gateway was not brought to forget known.null-calibration" in told["fault"]
    assert told["direct"]["failed"] == 0


def test_what_could_not_be_deregistered_is_told_and_release_tries_again(
    tmp_path: Path, gateway: client.Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> bool:
        raise client.GatewayFailed("507: the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(client, "deregister", refuse)
        told = calibrated(tmp_path, of(gateway))
    assert told["is_enough"] is True, told["reason"]
    assert told["fault"].endswith("known.null-calibration (507: the disk is full); release tries again")
    assert [one["technique"] for one in client.registered(gateway)] == ["known.null-calibration"]
    monkeypatch.setattr(client, "find", lambda: gateway)
    assert leftovers.deregister(tmp_path / "r1" / "1", {"gateway_started": False})
    assert client.registered(gateway) == []


def test_the_bounds_are_those_that_validate_holds_the_load_against() -> None:
    assert calibrate.bounds() == {"schedule_delay_ms_p99": 100, "loop_lag_ms_p99": 100, "cpu_share": 0.8}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_told_to_stop_in_mid_calibration(sandbox: Path, number: signal.Signals) -> None:
    tiers = PLAN["tiers"] | {"gateway": {"levels": [{"users": 2, "duration_s": 5}], "calibrate_s": 60.0}}
    budget = PLAN["budget"] | {"drive_s": 120, "grace_s": 30}
    write_yaml(sandbox / "deploy" / "plans" / "slow.yaml", PLAN | {"tiers": tiers, "budget": budget})
    run_dir = claim(arm="cpu-baseline", target="stand-in", plan="slow")
    artifact.write(run_dir / "gate.json", {"format": 1, "verdict": "PASS", "reason": "said the test"})
    state = run_dir / "gateway-server"
    with subprocess.Popen(
        [sys.executable, "-m", "tasks.gateway", "--port", "0", "--state", str(state)], cwd=CHECKOUT
    ) as server:
        try:
            gateway = client.wait(state, deadline_s=60)
            deployment = {"driver": "process", "engine": "vllm", "url": "http://127.0.0.1:9", "model": "m"}
            artifact.write(run_dir / "deployment.json", deployment | of(gateway))
            _stop_in_mid_calibration(run_dir, number)
            left = [one["technique"] for one in client.registered(gateway)]
            assert left == ([] if number == signal.SIGTERM else ["cpu-baseline.null-calibration"])
        finally:
            server.kill()
            stage.perform("release", run_dir)


def _stop_in_mid_calibration(run_dir: Path, number: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", DRIVE, str(run_dir)]) as driving:
        log = run_dir / "gateway-server" / "requests.log"
        lifecycle.until(lambda: log.exists() and "/calibration/" in log.read_text(), within_s=60)
        started = psutil.Process(driving.pid).children(recursive=True)
        assert len(started) >= 2, "client and echo server"
        driving.send_signal(number)
        assert driving.wait(20) != 0
    if number == signal.SIGTERM:
        assert not [p for p in started if p.is_running()]
        assert artifact.read(run_dir / "gateway" / "tier.json")["failure"] == "stopped by SIGTERM"
        assert not (run_dir / "gateway" / "calibration.json").exists()
    else:  # nothing could be done: both end with their pipes, and release forgets the technique
        lifecycle.until(lambda: not any(lifecycle.is_alive(process.pid) for process in started), within_s=5)


def test_a_name_is_one_that_the_gateway_takes() -> None:
    from tasks.gateway.registry import Backend

    name = calibration.technique("a" * 100)
    assert Backend(technique=name, url="http://127.0.0.1:1", model="echo", run_id="r/1").technique == name
