"""What the process driver hands to an engine, and what it says of an arm that cannot run. No process is started."""

import sys
from types import SimpleNamespace

import lifecycle
import pytest

from tasks import arm, target
from tasks import run as runs
from tasks.drivers import _gpu, _supervised, process


@pytest.fixture
def fits(sandbox):
    return arm.load("cpu-baseline"), target.load("stand-in")


def test_what_fits_has_no_faults(fits):
    assert process.faults(*fits) == []


def test_a_missing_program_names_the_command_that_makes_it(fits):
    elsewhere = fits[1].model_copy(update={"command": [".venv-engine-cpu/bin/python", "-m", "x"]})
    (fault,) = process.faults(fits[0], elsewhere)
    assert fault.startswith("target: command: ") and fault.endswith("no such program; make it: make engine-cpu")


def test_a_missing_model_and_a_missing_draft_are_both_said(fits):
    flags = fits[0].flags | {"speculative-config": {"model": "deploy/models/none", "num_speculative_tokens": 3}}
    model = fits[0].model.model_copy(update={"path": "deploy/models/gone"})
    faults = process.faults(fits[0].model_copy(update={"model": model, "flags": flags}), fits[1])
    assert len(faults) == 2
    assert "arm: model.path: " in faults[0] and "deploy/models/gone: no such folder" in faults[0]
    assert "speculative-config" in faults[1] and "deploy/models/none: no such folder" in faults[1]


def test_an_engine_that_cannot_be_started_is_refused(sandbox):
    faults = process.faults(arm.load("endpoint"), target.load("stand-in"))
    assert any("use the endpoint driver" in fault for fault in faults)


def test_declared_environment_counts_and_the_operators_own_settings_do_not():
    ours = {
        "PATH": "/bin",
        "CUDA_VISIBLE_DEVICES": "1",
        "HF_TOKEN": "hub",
        "VLLM_ATTENTION_BACKEND": "X",
        "PYTHONPATH": "/a",
        "AIRFLOW__CORE__FERNET_KEY": "k",
        "OPENAI_API_KEY": "k",
        "ARMWISE_DB_URL": "postgresql://u:p@h/d",
        "ARMWISE_AIRFLOW_DB_URL": "postgresql://u:p@h/a",
        "PGPASSWORD": "p",
        "AWS_SECRET_ACCESS_KEY": "k",
    }
    assert _supervised.inherited(ours) == {"PATH": "/bin", "CUDA_VISIBLE_DEVICES": "1", "HF_TOKEN": "hub"}


def test_the_arms_environment_counts_over_the_targets(sandbox):
    content = lifecycle.TARGET | {"env": {"A": "target", "B": "target"}}
    lifecycle.write_yaml(sandbox / "deploy" / "targets" / "stand-in" / "target.yaml", content)
    run = runs.read(lifecycle.claimed(sandbox))
    object.__setattr__(run, "arm", run.arm.model_copy(update={"env": {"B": "arm"}}))
    declared = process._declared(run)
    assert (declared["A"], declared["B"], declared["VLLM_SERVER_DEV_MODE"]) == ("target", "arm", "1")


def test_only_a_variable_that_vllm_does_not_know_differs_between_two_deployments(sandbox, monkeypatch):
    """All that starts with VLLM_ is in the key of its compile cache: what is new at each start would compile anew."""
    orders = []
    monkeypatch.setattr(_supervised, "start", lambda _run_dir: None)
    monkeypatch.setattr(_supervised, "stop", lambda _run_dir: {})
    monkeypatch.setattr(_supervised, "launch", lambda run_dir, _name, _argv, **order: orders.append((run_dir, order)))
    monkeypatch.setattr(_supervised, "state", lambda *_: {})
    monkeypatch.setattr(process, "_follow", lambda *_: True)
    monkeypatch.setattr(process, "_deployment", lambda *_: {})
    run = runs.read(lifecycle.claimed(sandbox))
    seen = []
    for _ in range(2):
        process.up(run)
        run_dir, order = orders[-1]
        seen.append(order["env"] | {name: (run_dir / file).read_text() for name, file in order["secrets"].items()})
    assert any(name.startswith("VLLM_") for name in seen[0])
    assert {name for name in seen[0] | seen[1] if seen[0].get(name) != seen[1].get(name)} == {"ENGINE_KEY"}


@pytest.mark.parametrize(
    ("slot", "devices"),
    [("gpu0", "0"), ("gpu1", "1"), ("gpu2+3", "2,3"), ("cpu0", None), ("gpus", None), ("gpu", None)],
)
def test_a_slot_of_gpus_shows_the_engine_those_and_no_others(slot, devices):
    assert process._devices(slot).get("CUDA_VISIBLE_DEVICES") == devices


def nvml(used_mib: list[int], **more) -> SimpleNamespace:
    """An NVML of so many GPUs with so much memory in use."""
    return SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        NVMLError=OSError,
        nvmlDeviceGetCount=lambda: len(used_mib),
        nvmlDeviceGetHandleByIndex=lambda number: number,
        nvmlDeviceGetMemoryInfo=lambda device: SimpleNamespace(used=used_mib[device] * 2**20),
        **more,
    )


def test_memory_is_read_of_the_slots_gpus_alone(monkeypatch):
    """A run on the GPU beside it comes and goes; that is none of this run's memory."""
    used = [100, 70_000, 300]
    monkeypatch.setitem(sys.modules, "pynvml", nvml(used))
    assert _gpu.memory_used_mib("gpu0") == [100]
    assert _gpu.memory_used_mib("gpu0+2") == [100, 300]
    assert _gpu.memory_used_mib("all-of-it") == used
    assert _gpu.memory_used_mib("gpu7") == []


def test_telemetry_is_of_the_slots_gpus_in_our_units_and_leaves_out_what_a_device_does_not_tell(monkeypatch):
    def energy(device: int) -> int:
        if device == 0:
            raise OSError("not supported")
        return 5_000_500

    telling = {
        "nvmlDeviceGetUtilizationRates": lambda device: SimpleNamespace(gpu=40 + device, memory=1),
        "nvmlDeviceGetPowerUsage": lambda device: 345_600,
        "nvmlDeviceGetTotalEnergyConsumption": energy,
    }
    monkeypatch.setitem(sys.modules, "pynvml", nvml([100, 70_000], **telling))
    assert _gpu.readings("gpu1") == [
        {"gpu": 1, "memory_used_mib": 70_000.0, "utilisation": 0.41, "power_w": 345.6, "energy_j_total": 5000.5}
    ]
    assert _gpu.readings("gpu0") == [{"gpu": 0, "memory_used_mib": 100.0, "utilisation": 0.4, "power_w": 345.6}]


def test_no_nvml_no_telemetry(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert _gpu.readings("gpu0") is None


def test_the_tail_of_a_log_is_its_last_lines_however_long_it_is(tmp_path):
    log = tmp_path / "engine.log"
    assert process._tail(log, 20) == []
    log.write_bytes(b"\xff\n" + b"".join(b"line %d\n\n" % i for i in range(50_000)))
    assert process._tail(log, 3) == ["line 49997", "line 49998", "line 49999"]
