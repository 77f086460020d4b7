"""verify: a flag that did not take effect stops the run, with both values; what is not shown is unverified."""

import time
from pathlib import Path
from typing import Any

import pytest
from stand_in.launch import running

from tasks import arm, artifact, plan, price, target
from tasks.engines import vllm
from tasks.run import Run, document
from tasks.stage import StageFailed
from tasks.stages.verify import verify


def deployed(folder: Path, name: str, url: str, log: Path | None) -> Path:
    """A run folder as claim and deploy leave it."""
    found = arm.load(name)
    run = Run(
        folder=folder,
        run_id="r1",
        attempt=1,
        arm_name=name,
        arm=found,
        target_name="stand-in",
        target=target.load("stand-in"),
        plan_name="smoke",
        plan=plan.load("smoke"),
        price=price.load(found.price),
        repeat=1,
        slot="s0",
        seed=1,
        claimed_at=time.time(),
    )
    artifact.write(folder / "run.json", document(run))
    artifact.write(folder / "deployment.json", {"url": url, "log": str(log) if log else None})
    return folder


def start(name: str, log: Path, **more: str) -> Any:
    words = vllm.argv(arm.load(name), host="127.0.0.1", port=0)
    at = words.index("--host")
    environment = vllm.environment(arm.load(name)) | more
    return running(*words[:at], *words[at + 4 :], log=log, **environment)


@pytest.mark.parametrize("name", ["cpu-baseline", "cpu-draft", "cpu-no-chunked-prefill", "cpu-no-prefix-caching"])
def test_an_engine_that_runs_the_arm_passes(sandbox: Path, tmp_path: Path, name: str) -> None:
    with start(name, tmp_path / "log") as engine:
        path = verify(deployed(tmp_path / "run", name, engine.url, engine.log))
    found = artifact.read(path)
    assert (found["source"], found["differences"]) == ("server_info", [])
    assert found["unverified"] == []
    assert found["requested"]["flags.max-num-seqs"] == 8
    assert found["effective"]["scheduler_config.max_num_seqs"] == 8
    assert found["companions"] == arm.load(name).companions
    assert found["kv_pool_tokens"] == 65_536
    assert found["weight_bytes"] > 0


@pytest.mark.parametrize(
    ("name", "flag", "requested", "effective"),
    [
        ("cpu-no-prefix-caching", "enable-prefix-caching", "False", "True"),
        ("cpu-baseline", "max-num-seqs", "8", "128"),
        ("cpu-ngram", "speculative-config", "'ngram'", "None"),
        ("cpu-no-chunked-prefill", "max-num-batched-tokens", "4096", "2048"),  # the companion
        ("cpu-baseline", "tool-call-parser", "'hermes'", "None"),
    ],
)
def test_an_ignored_flag_stops_the_run(
    sandbox: Path, tmp_path: Path, name: str, flag: str, requested: str, effective: str
) -> None:
    with start(name, tmp_path / "log", fault=f"ignore_flag:{flag}") as engine:
        run_dir = deployed(tmp_path / "run", name, engine.url, engine.log)
        with pytest.raises(StageFailed) as error:
            verify(run_dir)
    assert f"flags.{flag}" in str(error.value)
    assert f"requested {requested}, in effect {effective}" in str(error.value)
    assert artifact.read(run_dir / "effective.json")["differences"]
    with pytest.raises(StageFailed):  # a second try does not turn it into a pass, engine or no engine
        verify(run_dir)


def test_without_development_mode_the_rest_is_unverified(sandbox: Path, tmp_path: Path) -> None:
    with start("cpu-baseline", tmp_path / "log", VLLM_SERVER_DEV_MODE="0") as engine:
        found = artifact.read(verify(deployed(tmp_path / "run", "cpu-baseline", engine.url, engine.log)))
    assert found["source"] == "metrics+log"
    assert "flags.max-num-seqs" in [row["flag"] for row in found["unverified"]]


def test_an_endpoint_is_unverified_and_passes(sandbox: Path, tmp_path: Path) -> None:
    with running("--model", "x", "--served-model-name", "model", log=tmp_path / "log") as engine:
        found = artifact.read(verify(deployed(tmp_path / "run", "endpoint", engine.url, None)))
    assert found["source"] == "none"
    assert "model.repo" in [row["flag"] for row in found["unverified"]]


def test_a_silent_engine_is_a_failed_stage_and_leaves_nothing(sandbox: Path, tmp_path: Path) -> None:
    run_dir = deployed(tmp_path / "run", "cpu-baseline", "http://127.0.0.1:9", None)
    with pytest.raises(StageFailed, match="does not show its configuration"):
        verify(run_dir)
    assert not (run_dir / "effective.json").exists()
