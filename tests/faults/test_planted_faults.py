"""Every planted fault of the sim is caught by the right rule, through all stages; without its check nobody notices.

deploy/expectations/_faults.yaml says which expectation catches which fault. Faults that can be planted while the server
runs are planted before one tier each, so that one run shows two of them, and that what breaks one tier leaves the other
valid. What a fault breaks besides is named here (`also`); nothing else may be broken.

Seen through: the stored number is held against the sim's own record, and against what a naive reading would have said.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from conftest import UNCALIBRATED, checkout_copy, write_yaml

from tasks import artifact, honesty, rows, run, settings, stage
from tasks.engines.sim import record
from tasks.stages import validate
from tasks.stages.claim import claim

pytestmark = pytest.mark.services
Broken = set[tuple[int, str, str]]  # rule, scope, says
UNGATED = {"none_because": "the faults are planted after the gate, or are none of its business"}
TIERS: dict[str, Any] = {
    "gateway": {"levels": [{"users": 4, "duration_s": 3}], "drain_s": 10, "max_tokens": 64} | UNCALIBRATED,
    "agent": {"levels": [{"users": 2, "duration_s": 3}], "drain_s": 10} | UNCALIBRATED,
}
BUDGET = {"start_s": 90, "gate_s": 90, "drive_s": 180, "release_s": 30, "grace_s": 60}
STOPPED = {
    (0, "run", "every stage up to release did its work"),
    (9, "agent", "the tier has rows"),
    (9, "agent", "the tier has tasks"),
    (9, "gateway", "the tier has rows"),
}
ANEW = {  # what else is not as it should be when the engine starts anew in the middle of a tier
    (4, "agent", "client and engine agree on input tokens within 1 %"),
    (4, "agent", "client and engine agree on output tokens within 1 %"),
    (7, "agent", "failed requests are within the plan's bound"),
}
STARVED = {  # a client that is starved may be late as well
    (6, "agent", "the client sent within 100 ms of when it wanted to, in 99 of 100 calls"),
    (6, "agent", "the client's event loop was late by at most 100 ms, in 99 of 100 samples"),
}


@dataclass(frozen=True)
class Planted:
    """One run: faults planted at the start (SIM_FAULTS) and before each tier, and what else may break."""

    start: str = ""
    gateway: dict[str, Any] = field(default_factory=dict)
    agent: dict[str, Any] = field(default_factory=dict)
    arm: str = "sim-baseline"
    is_gated: bool = False
    is_stopped: bool = False  # by verify or the gate, before any load
    tiers: dict[str, Any] = field(default_factory=dict)  # over TIERS
    also: Broken = field(default_factory=set)


RUNS = {
    "no fault": Planted(is_gated=True),
    "flag ignored": Planted("flag_ignored:flag=max-num-seqs", arm="sim-max-num-seqs-2", is_stopped=True),
    "another engine": Planted("same_scheduler:flag=max-num-seqs,other_precision:bytes=1", arm="sim-max-num-seqs-2"),
    "wrong answers": Planted("bad_tool_json", is_gated=True, is_stopped=True),
    "chunks and 503": Planted(gateway={"several_tokens": {}}, agent={"http_503": {"ratio": 0.2}}),
    "broken streams": Planted(gateway={"truncated": {}}, agent={"error_event": {}}),
    "usage and a warm cache": Planted(gateway={"usage_wrong": {"factor": 1.1}}, agent={"warm_cache": {}}),
    "clean ends and a restart": Planted(gateway={"clean_end": {}}, agent={"restart": {"requests": 12}}, also=ANEW),
    "refusals and stalls": Planted(gateway={"refuses_load": {"in_flight": 2}}, agent={"stalls": {"ms": 600}}),
    "short and thoughtful": Planted(
        gateway={"short_output": {}}, agent={"reasoning": {}}, tiers={"gateway": {"output_tokens": 24}}
    ),
    "a drift and a hungry neighbour": Planted(
        gateway={"drift": {"per_minute": 20}},
        agent={"client_starved": {"processes": 16, "seconds": 60}},
        tiers={"gateway": {"levels": [{"users": 8, "duration_s": 10}]}},
        also=STARVED,
    ),
    "a slow wave and an early role": Planted(
        gateway={"slow_first_wave": {"requests": 8}},
        agent={"early_role": {}},
        tiers={"gateway": {"levels": [{"users": 4, "duration_s": 8}]}},
    ),
}
FAULTS = {one.fault: one for one in honesty.faults().faults}


def names(planted: Planted) -> dict[str, str]:
    """Fault -> the scope that it strikes."""
    at_start = {entry.partition(":")[0]: "run" for entry in planted.start.split(",") if entry}
    return at_start | dict.fromkeys(planted.gateway, "gateway") | dict.fromkeys(planted.agent, "agent")


OF = {fault: name for name, planted in RUNS.items() for fault in names(planted)}


@pytest.fixture(scope="module", autouse=True)
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A checkout whose target `sim` is this interpreter, without a database."""
    folder = tmp_path_factory.mktemp("planted")
    root = checkout_copy(folder / "root")
    target = {"driver": "process", "says": "the sim, on this machine", "slots": ["s0"]}
    target["command"] = [sys.executable, "-m", "tasks.engines.sim"]
    write_yaml(root / "deploy" / "targets" / "sim" / "target.yaml", target)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ARMWISE_ROOT", str(root))
        patch.setenv("ARMWISE_HOME", str(folder / "home"))
        patch.setenv("ARMWISE_DB_URL", "none")
        yield root
    played.cache_clear()


@cache
def played(name: str) -> Path:
    """The run folder of one of RUNS, through all stages up to validate."""
    planted, folder = RUNS[name], settings.root() / "deploy"
    arm = yaml.safe_load((folder / "arms" / f"{planted.arm}.yaml").read_text())
    if planted.start:
        arm["env"]["SIM_FAULTS"] = planted.start
        arm |= {"control": "sim-baseline", "varies": [*arm.get("varies", []), "env.SIM_FAULTS"]}
    tiers = {tier: TIERS[tier] | planted.tiers.get(tier, {}) for tier in TIERS}
    gate = {"at_once": 8, "timeout_s": 80} if planted.is_gated else UNGATED
    stem = name.replace(" ", "-")
    write_yaml(folder / "arms" / f"{stem}.yaml", arm)
    plan = {"purpose": "seconds with planted faults", "seed": 3, "tiers": tiers, "gate": gate, "budget": BUDGET}
    write_yaml(folder / "plans" / f"{stem}.yaml", plan)
    run_dir = claim(arm=stem, target="sim", plan=stem)
    try:
        _measure(run_dir, planted)
    finally:
        stage.perform("release", run_dir)
        stage.perform("validate", run_dir)
    return run_dir


def _measure(run_dir: Path, planted: Planted) -> None:
    stage.perform("deploy", run_dir)
    url = artifact.read(run_dir / "deployment.json")["url"]
    try:
        for name in ("verify", "gate"):
            stage.perform(name, run_dir)
    except stage.StageFailed:
        assert planted.is_stopped
        return
    for tier in TIERS:
        if stage.skipped(f"drive_{tier}", run_dir):
            assert planted.is_stopped
            continue
        if not planted.start:
            httpx.post(f"{url}/sim/faults", json=getattr(planted, tier)).raise_for_status()
        stage.perform(f"drive_{tier}", run_dir)


def told(run_dir: Path) -> dict[str, Any]:
    return artifact.read(run_dir / "validation.json")


def not_met(found: dict[str, Any], kind: str) -> Broken:
    places = ((one["rule"], one["scope"], one["says"]) for one in found["expectations"] if is_told(one, found))
    kinds = {(one["rule"], one["scope"], one["says"]): one["kind"] for one in found["expectations"]}
    return {place for place in places if kinds[place] == kind}


def is_told(one: dict[str, Any], found: dict[str, Any]) -> bool:
    words = f"rule {one['rule']} ({one['scope']}): {one['says']}: {one['observed']}"
    return not one["success"] and any(line.startswith(words) for line in [*found["reasons"], *found["findings"]])


def wanted(planted: Planted, becomes: str) -> Broken:
    """What the faults of a run break, or become findings of."""
    found = set()
    for fault, scope in names(planted).items():
        one = FAULTS[fault]
        scope = "run" if one.rule in (1, 2, 3) else scope
        if one.becomes == becomes:
            found |= {(one.rule, scope, says) for says in one.by}
    return found


def beside(planted: Planted) -> Broken:
    return planted.also | (STOPPED if planted.is_stopped else set())


def test_every_fault_is_planted_somewhere() -> None:
    assert set(OF) == set(FAULTS)


@pytest.mark.parametrize("name", RUNS)
def test_what_is_broken_is_what_was_planted_and_nothing_else(name: str) -> None:
    planted, found = RUNS[name], told(played(name))
    broken = not_met(found, "fault")
    assert broken >= wanted(planted, "alarm")
    assert broken - wanted(planted, "alarm") <= beside(planted)
    assert not_met(found, "finding") >= wanted(planted, "finding")
    assert found["is_valid"] == (not broken)
    assert set(found["invalid_scopes"]) == {scope for _, scope, _ in broken}


@pytest.mark.parametrize("fault", [fault for fault, one in FAULTS.items() if one.becomes != "seen_through"])
def test_the_right_rule_tells_it_with_its_evidence_its_bound_and_its_reason(fault: str) -> None:
    one, found = FAULTS[fault], told(played(OF[fault]))
    by = [row for row in found["expectations"] if row["says"] in one.by and not row["success"]]
    assert {row["says"] for row in by} == set(one.by)
    for row in by:
        assert row["rule"] == one.rule
        assert row["observed"] and row["expected"] and row["because"] and row["source"]


@pytest.mark.parametrize("name", [name for name, planted in RUNS.items() if wanted(planted, "alarm")])
def test_without_its_check_nobody_notices(name: str, checkout: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """The proof that the expectations catch it, and not something else."""
    run_dir, planted = played(name), RUNS[name]
    without(checkout, tmp_path / "root", {says for fault in names(planted) for says in FAULTS[fault].by})
    monkeypatch.setenv("ARMWISE_ROOT", str(tmp_path / "root"))
    found = validate.validation(run.read(run_dir))
    assert not_met(found, "fault") <= beside(planted)
    assert found["is_valid"] or beside(planted)


def without(checkout: Path, root: Path, says: set[str]) -> None:
    """A checkout that lacks these expectations."""
    for name in ("golden_set", "sql"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).symlink_to(checkout / name)
    for path in (checkout / "deploy").iterdir():
        if path.name != "expectations":
            (root / "deploy").mkdir(exist_ok=True)
            (root / "deploy" / path.name).symlink_to(path)
    for path in (checkout / "deploy" / "expectations").glob("*.yaml"):
        content = yaml.safe_load(path.read_text())
        if "expectations" in content:
            content["expectations"] = [one for one in content["expectations"] if one["says"] not in says]
        write_yaml(root / "deploy" / "expectations" / path.name, content)


def sent(run_dir: Path, tier: str) -> Iterator[tuple[dict[str, Any], list[Any]]]:
    """(stored row, events that the sim really sent) of each good call of a tier."""
    lines = {line["id"]: line["sent"] for line in record.read(run_dir / "sim.jsonl") if line["what"] == "request"}
    for row in rows.read(run_dir, tier, "requests"):
        if row["failure"] is None and not row["is_aborted"]:
            yield row, lines[row["request_id"]]


def test_the_first_token_is_no_role() -> None:
    """20: the role came half a second before. Ours is the first token's; no clock is trusted further than that."""
    pairs = list(sent(played(OF["early_role"]), "agent"))
    assert pairs
    for row, events in pairs:
        role, first = (next(at for at, what, *_ in events if what == kind) for kind in ("role", "tokens"))
        assert first - role > 400e6
        assert row["t_first_token_ns"] >= first


def test_a_thought_is_the_first_token_and_not_the_answer() -> None:
    """16: 20 reasoning tokens, one event each; the answer begins with the 21st."""
    pairs = list(sent(played(OF["reasoning"]), "agent"))
    assert pairs
    for row, events in pairs:
        tokens = [at for at, what, *_ in events if what == "tokens"]
        assert row["t_first_token_ns"] >= tokens[0]
        assert row["t_first_answer_ns"] >= tokens[20]
        assert row["t_first_answer_ns"] > row["t_first_token_ns"]


def test_tokens_are_those_that_were_sent_however_they_are_bundled() -> None:
    """3: four tokens per chunk. Counted by chunks, an answer would have a quarter of its tokens."""
    pairs = list(sent(played(OF["several_tokens"]), "gateway"))
    assert pairs
    for row, events in pairs:
        assert row["output_tokens"] == sum(tokens for _, what, tokens, _ in events if what == "tokens")
        assert row["chunks"] == sum(what == "tokens" for _, what, *_ in events) < row["output_tokens"]


def test_a_slow_first_wave_is_warm_up_and_what_counts_is_what_was_served_after_it() -> None:
    """9: steps are 20 times slower until 8 requests had a token. p99 of tpot_ms, by our stamps and by the sim's."""
    pairs = list(sent(played(OF["slow_first_wave"]), "gateway"))
    firsts = sorted(next(at for at, what, *_ in events if what == "tokens") for _, events in pairs)
    of_all = p99([row["tpot_ms"] for row, _ in pairs])
    counted = p99([row["tpot_ms"] for row, _ in pairs if not row["is_warmup"]])
    truth = p99([true_tpot_ms(events) for _, events in pairs if events[0][0] > firsts[7]])
    assert of_all > 3 * truth, "the wave is in the tail of a naive percentile"
    assert abs(counted - truth) < abs(of_all - truth) / 4


def true_tpot_ms(events: list[Any]) -> float:
    times = [at for at, what, *_ in events if what == "tokens"]
    return (times[-1] - times[0]) / 1e6 / (len(times) - 1)


def p99(values: list[float]) -> float:
    ordered = sorted(values)
    return ordered[-(-99 * len(ordered) // 100) - 1]
