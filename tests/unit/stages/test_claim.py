"""What a claim refuses before it takes a slot, and what it leaves behind."""

import subprocess
import sys

import lifecycle
import pytest
import yaml

from tasks import artifact, lease, plan, slot
from tasks import run as runs
from tasks.catalog import UnknownName
from tasks.document import InvalidDocument
from tasks.stages.claim import claim


def ask(**changed):
    return claim(**({"arm": "cpu-baseline", "target": "stand-in", "plan": "smoke"} | changed))


def edit(sandbox, kind, name, **changed):
    path = sandbox / "deploy" / kind / f"{name}.yaml"
    content = yaml.safe_load(path.read_text())
    for key, value in changed.items():
        if isinstance(value, dict) and isinstance(content.get(key), dict):
            content[key] |= value
        else:
            content[key] = value
    lifecycle.write_yaml(path, content)


@pytest.fixture
def untouched(armwise_home):
    yield
    assert list(armwise_home.glob("runs/*")) == []
    assert not (armwise_home / "slots").exists(), "the slot was touched before the input was checked"


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"arm": "no-such"}, r"arms: no 'no-such'; known: .*cpu-baseline"),
        ({"target": "no-such"}, r"targets: no 'no-such'; known: .*stand-in"),
        ({"plan": "no-such"}, r"plans: no 'no-such'; known: .*smoke"),
        ({"repeat": 0}, "repeat: must be at least 1, got 0"),
    ],
)
def test_an_unknown_name_is_answered_with_the_known_ones(sandbox, untouched, asked, words):
    with pytest.raises((UnknownName, InvalidDocument), match=words):
        ask(**asked)


def test_all_faults_are_said_at_once(sandbox, untouched):
    with pytest.raises(InvalidDocument) as refused:
        ask(arm="no-such", target="nor-this", plan="nor-that")
    assert all(name in str(refused.value) for name in ("'no-such'", "'nor-this'", "'nor-that'"))


def test_an_unknown_price(sandbox, untouched):
    edit(sandbox, "arms", "cpu-baseline", price="no-such")
    with pytest.raises(UnknownName, match=r"prices: no 'no-such'; known: .*local-cpu"):
        ask()


def test_a_missing_model_folder(sandbox, untouched):
    edit(sandbox, "arms", "cpu-baseline", model={"path": "deploy/models/gone"})
    with pytest.raises(InvalidDocument, match=r"cpu-baseline\.yaml: model\.path: .*deploy/models/gone: no such folder"):
        ask()


def test_an_unresolved_arm_on_a_target_that_needs_it(sandbox, untouched):
    needy = lifecycle.TARGET | {"needs": ["image", "model.revision"]}
    lifecycle.write_yaml(sandbox / "deploy" / "targets" / "stand-in" / "target.yaml", needy)
    edit(sandbox, "arms", "cpu-baseline", model={"revision": "unresolved"})
    with pytest.raises(InvalidDocument) as refused:
        ask()
    lines = str(refused.value).splitlines()
    assert len(lines) == 2
    assert "image: is missing, and target stand-in needs it" in lines[0]
    assert "model.revision: is unresolved, and target stand-in needs it" in lines[1]
    assert all(line.endswith("armwise pin cpu-baseline") for line in lines)


def test_an_unresolved_arm_runs_where_it_is_not_needed(sandbox):
    edit(sandbox, "arms", "cpu-baseline", model={"revision": "unresolved"})
    assert ask().exists()


def test_a_model_folder_has_no_revision_to_need(sandbox):
    needy = lifecycle.TARGET | {"needs": ["model.revision"]}
    lifecycle.write_yaml(sandbox / "deploy" / "targets" / "stand-in" / "target.yaml", needy)
    assert ask().exists()


def test_an_unknown_driver(sandbox, untouched):
    lifecycle.write_yaml(
        sandbox / "deploy" / "targets" / "stand-in" / "target.yaml", lifecycle.TARGET | {"driver": "magic"}
    )
    with pytest.raises(InvalidDocument, match=r"target\.yaml: driver: tasks\.drivers: no 'magic'; known: .*process"):
        ask()


def test_a_cap_without_a_price(sandbox, untouched):
    edit(sandbox, "plans", "smoke", spend_cap_usd=1.0)
    edit(sandbox, "prices", "local-cpu", usd_per_hour="unresolved", is_nominal=False)
    with pytest.raises(InvalidDocument, match=r"spend_cap_usd: .*local-cpu\.yaml: usd_per_hour is unresolved"):
        ask()


def test_a_golden_set_that_is_not_there(sandbox, untouched):
    edit(sandbox, "plans", "smoke", gate={"golden_set": "v99"})
    with pytest.raises(InvalidDocument, match=r"smoke\.yaml: gate\.golden_set: .*v99: no such folder"):
        ask()


def test_run_json_holds_what_was_declared_then(sandbox):
    run_dir = ask(repeat=3)
    declared = plan.load("smoke")
    edit(sandbox, "plans", "smoke", seed=99)
    run = runs.read(run_dir)
    assert run.plan == declared
    assert (run.repeat, run.attempt, run.slot, run.seed) == (3, 1, "s0", declared.seed)
    assert run.claimed_at == lease.read(run_dir)["acquired_at"]
    assert run_dir.parts[-2:] == (run.run_id, "1")
    phase = artifact.read(run_dir / "phases" / "claim.1.json")
    assert (phase["state"], phase["gpu_memory_mib"]) == ("done", None)
    assert 0 <= phase["waited_s"] < 5


def test_a_key_makes_the_run_id_stable_and_each_claim_an_attempt(sandbox):
    first = ask(key="manual__2026-11-30T18:52:00+00:00")
    lease.give_back(first)
    second = ask(key="manual__2026-11-30T18:52:00+00:00")
    lease.give_back(second)
    other = ask(key="manual__2026-11-30T18:53:00+00:00")
    assert first.parent == second.parent != other.parent
    assert [path.name for path in runs.attempts(first.parent.name)] == ["1", "2"]


def test_a_claim_that_fails_in_its_folder_stores_its_failure_and_gives_the_slot_back(sandbox, monkeypatch):
    def torn(_run):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as spoilt:
        spoilt.setattr(runs, "document", torn)
        with pytest.raises(OSError, match="No space left"):
            ask(key="k")
    (failed,) = runs.attempts(next(runs.settings.runs().iterdir()).name)
    phase = artifact.read(failed / "phases" / "claim.1.json")
    assert phase["state"] == "failed" and "No space left on device" in phase["error"]
    assert "the claim failed" in lease.read(failed)["ended_because"]
    assert ask(key="k").name == "2"


FULL = """
import resource, signal, sys
from tasks.stages.claim import claim
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
limits = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))  # no byte fits in any file
try:
    claim(arm="cpu-baseline", target="stand-in", plan="smoke")
except OSError as error:
    sys.exit(28)
"""


def test_a_full_disk_holds_no_slot(sandbox, armwise_home):
    assert subprocess.run([sys.executable, "-c", FULL], check=False).returncode == 28
    assert list(armwise_home.glob("runs/*/*")) == [], "half a run folder is left"
    state = slot.read(slot.folder() / "stand-in.s0.json", "stand-in", "s0")
    assert state["held_by"] is None
    assert ask().exists()


def test_fixed_lengths_on_an_engine_that_cannot_promise_them(sandbox, untouched):
    tiers = tiers_of(output_tokens=8, replay=True)
    edit(sandbox, "plans", "smoke", tiers=tiers)
    with pytest.raises(InvalidDocument) as refused:
        ask(arm="endpoint", target="endpoint")
    lines = [line for line in str(refused.value).splitlines() if "fixes output lengths" in line]
    assert len(lines) == 2
    assert "smoke.yaml: tiers.agent.replay: fixes output lengths, which engine openai of arm endpoint" in lines[0]
    assert "smoke.yaml: tiers.gateway.output_tokens: " in lines[1]


def tiers_of(*, output_tokens, replay):
    level = {"levels": [{"users": 2, "duration_s": 2}]}
    return {"gateway": level | {"output_tokens": output_tokens}, "agent": level | {"replay": replay}}
