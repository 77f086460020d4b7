"""Every file in tasks/drivers keeps the contract of a driver; adding one needs no other edit here.

A driver deploys tests/stand_in/engine.py, as the process driver does, unless PLACES says that it needs another place.
"""

import inspect
import os
import subprocess
import sys

import lifecycle
import pytest

from tasks import catalog, drivers
from tasks import run as runs
from tasks.arm import Arm
from tasks.drivers import _port, _supervised
from tasks.stages.claim import claim
from tasks.target import Target

NAMES = catalog.module_names(drivers)
CONTRACT = {"faults", "up", "down", "alive", "leftovers"}
DEPLOYMENT = {
    *(
        "format",
        "driver",
        "engine",
        "url",
        "model",
        "technique",
        "argv",
        "env",
        "versions",
        "image",
        "engine_pid",
        "pgid",
    ),
    *("supervisor_pid", "started_at", "ready_at", "start_s", "log", "gpu_model", "price_key", "dev_endpoints"),
}
MODEL = {"path": "deploy/models/demo/model", "served_as": "tiny"}


@pytest.fixture
def driver(request):
    return catalog.module_of(drivers, request.param)


@pytest.fixture
def server(monkeypatch):
    """A server that already runs, for drivers that deploy nothing."""
    port = _port.free()
    monkeypatch.setenv("SERVER_URL", f"http://127.0.0.1:{port}/v1/")
    monkeypatch.setenv("SERVER_KEY", "its-key")
    words = [
        sys.executable,
        str(lifecycle.STAND_IN),
        "--port",
        str(port),
        "--model",
        "m",
        "--served-model-name",
        "tiny",
    ]
    env = os.environ | {"VLLM_API_KEY": "its-key"}
    with subprocess.Popen(words, env=env, stdout=subprocess.DEVNULL) as process:
        lifecycle.until(lambda: lifecycle.accepts(port), within_s=20)
        yield
        process.kill()


def this_machine(sandbox, driver):
    target = lifecycle.TARGET | {"driver": driver}
    lifecycle.write_yaml(sandbox / "deploy" / "targets" / "stand-in" / "target.yaml", target)
    return lifecycle.claimed(sandbox, grace_s=60)


def an_endpoint(sandbox, _driver):
    arm = {"engine": "openai", "question": "Does a server that is not ours keep up?", "price": "endpoint"}
    server = {"url": "env:SERVER_URL", "key_env": "SERVER_KEY", "model": {"path": "m", "served_as": "tiny"}}
    lifecycle.write_yaml(sandbox / "deploy" / "arms" / "theirs.yaml", arm | server)
    return claim(arm="theirs", target="endpoint", plan=lifecycle.plan(sandbox, grace_s=60))


PLACES = {"endpoint": an_endpoint}


@pytest.fixture
def run(request, driver, sandbox, server):
    name = driver.__name__.rpartition(".")[2]
    run = runs.read(PLACES.get(name, this_machine)(sandbox, name))
    yield run
    _supervised.stop(run.folder)


each = pytest.mark.parametrize("driver", NAMES, indirect=True)


def test_there_are_drivers():
    assert {"process", "endpoint"} <= set(NAMES)


@each
def test_the_contract_and_nothing_else_is_public(driver):
    own = {
        name
        for name, value in inspect.getmembers(driver, inspect.isfunction)
        if not name.startswith("_") and value.__module__ == driver.__name__
    }
    assert own == CONTRACT
    assert all(getattr(driver, name).__doc__ for name in CONTRACT)


@each
def test_what_is_impossible_is_said_before_the_slot_is_taken(driver, sandbox):
    arm = Arm.model_validate(
        {"engine": "vllm", "question": "Is it refused in words?", "price": "local-cpu", "model": {"path": "no/where"}}
    )
    target = Target.model_validate({"driver": "x", "says": "a target of a test", "slots": ["s"]})
    faults = driver.faults(arm, target)
    assert faults
    assert all(fault.partition(": ")[0] in ("arm", "target") for fault in faults)


@each
@pytest.mark.services
def test_up_gives_a_deployment_that_is_alive(driver, run):
    deployment = driver.up(run)
    assert set(deployment) >= DEPLOYMENT
    assert deployment["driver"] == driver.__name__.rpartition(".")[2]
    assert not deployment["url"].endswith("/v1") and not deployment["url"].endswith("/")
    assert deployment["started_at"] <= deployment["ready_at"]
    assert driver.alive(deployment)
    assert (run.folder / "engine.key").stat().st_mode & 0o777 == 0o600
    assert (run.folder / "engine.key").read_text() not in str(deployment)


@each
@pytest.mark.services
def test_down_twice_is_fine_and_proves_that_nothing_is_left(driver, run):
    deployment = driver.up(run)
    first = driver.down(deployment, run.folder, reason="the test is over")
    second = driver.down(deployment, run.folder, reason="again")
    assert first["processes_left"] == second["processes_left"] == []
    assert second["freed"] == []
    assert lifecycle.living(run.folder) == []


@each
@pytest.mark.services
def test_down_of_what_was_never_up_is_fine(driver, run):
    assert driver.down({}, run.folder, reason="never up")["processes_left"] == []


@each
def test_a_run_with_a_live_lease_is_no_leftover(driver, run):
    assert str(run.folder) not in [found["run_dir"] for found in driver.leftovers()]
