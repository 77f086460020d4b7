"""Rule 11: what differs between a run and the one that it is compared with, and the control's run that is stored."""

import measured_run
import pytest

from tasks import alike, artifact, run
from tasks.stages.load import load
from tasks.stages.validate import validation

pytestmark = pytest.mark.services  # a Postgres

CONTROL = {
    "image": "x@sha256:1",
    "model_revision": "abc",
    "gpu_model": "H200",
    "golden_sha256": "f" * 64,
    "workload_sha256": "w" * 64,
    "versions": {"vllm": "0.32.0", "nvidia_driver": "570.1"},
}


@pytest.mark.parametrize(
    ("changes", "varies", "words"),
    [
        ({}, set(), []),
        ({"image": "x@sha256:2"}, set(), ["image: x@sha256:1 and x@sha256:2"]),
        ({"image": "x@sha256:2"}, {"image"}, []),
        ({"model_revision": "abd"}, set(), ["model_revision: abc and abd"]),
        ({"model_revision": "abd"}, {"model.revision"}, []),
        ({"gpu_model": None}, set(), ["gpu_model: H200 and None"]),
        ({"golden_sha256": "e"}, {"image"}, [f"golden_sha256: {'f' * 64} and e"]),
        ({"workload_sha256": "v"}, set(), [f"workload_sha256: {'w' * 64} and v"]),
        (
            {"versions": {"vllm": "0.32.0", "nvidia_driver": "580.2"}},
            set(),
            ["version of nvidia_driver: 570.1 and 580.2"],
        ),
        ({"versions": {"vllm": "0.33.0", "nvidia_driver": "570.1"}}, {"version"}, []),
        (
            {"versions": None},
            set(),
            ["version of nvidia_driver: 570.1 and not known", "version of vllm: 0.32.0 and not known"],
        ),
    ],
)
def test_what_differs_and_nobody_declared(changes, varies, words):
    assert alike.differences(CONTROL, CONTROL | changes, varies) == words


def test_a_control_has_nobody_to_be_compared_with(tmp_path):
    found = alike.facts(run.read(measured_run.make(tmp_path)))
    assert (found["compared_with"], found["unlike"], found["why_not"]) == (None, None, "the arm is a control")


def stored(tmp_path, run_id, arm, *, version="0.32.0", cached=0, is_valid=True, repeat=1, **document):
    """A run of an arm in the database; `cached` of the 100 tokens of each prompt were found cached.

    What its tiers send is of its repeat.
    """
    run_dir = measured_run.make(tmp_path, run_id=run_id, arm=arm)
    told = artifact.read(run_dir / "run.json") | {"repeat": repeat, "claimed_at": measured_run.AT + repeat}
    told["arm"]["document"] |= document
    artifact.write(run_dir / "run.json", told)
    versions = {"versions": {"vllm": version}}
    artifact.write(run_dir / "effective.json", artifact.read(run_dir / "effective.json") | versions)
    calls = [row | {"cached_input_tokens": cached} for row in measured_run.gateway_requests(arm)]
    measured_run.write_tier(run_dir, "gateway", calls)
    reasons = [] if is_valid else ["broken"]
    artifact.write(run_dir / "validation.json", {"is_valid": is_valid, "reasons": reasons, "expectations": []})
    for tier in run.TIERS:
        path = run_dir / tier / "tier.json"
        artifact.write(path, artifact.read(path) | {"workload_sha256": f"{repeat:064d}"})
    load(run_dir)
    return run_dir


VARIED = {"control": "one", "varies": ["flags.max-num-seqs"]}


def test_the_control_s_latest_valid_run_is_the_one(armwise_home, postgres, tmp_path):
    other = run.read(stored(tmp_path, "a1", "other", version="0.33.0", cached=90, **VARIED))
    assert alike.facts(other)["why_not"] == "no valid run of the control one is stored under this plan and target"
    stored(tmp_path, "c1", "one", cached=40)
    stored(tmp_path, "c2", "one", is_valid=False)
    found = alike.facts(other)
    assert (found["compared_with"], found["unlike"]) == ("c1", 1)
    assert found["unlike_in"] == "version of vllm: 0.32.0 and 0.33.0"
    assert found["control_hit_ratio"] == {"gateway": pytest.approx(0.4), "agent": 0}


def test_the_control_s_run_of_the_same_repeat_goes_before_a_later_one(armwise_home, postgres, tmp_path):
    """Another repeat sends something else on purpose: that is no difference between the arms."""
    stored(tmp_path, "c1", "one", repeat=1)
    stored(tmp_path, "c2", "one", repeat=2)
    first = alike.facts(run.read(stored(tmp_path, "a1", "other", repeat=1, **VARIED)))
    assert (first["compared_with"], first["unlike_in"]) == ("c1", "")
    third = alike.facts(run.read(stored(tmp_path, "a3", "other", repeat=3, **VARIED)))
    assert (third["compared_with"], third["unlike_in"]) == ("c2", "")


def test_of_the_same_repeat_another_workload_is_a_difference(armwise_home, postgres, tmp_path):
    stored(tmp_path, "c1", "one")
    run_dir = stored(tmp_path, "a1", "other", **VARIED)
    told = artifact.read(run_dir / "agent" / "tier.json")
    artifact.write(run_dir / "agent" / "tier.json", told | {"workload_sha256": "f" * 64})
    found = alike.facts(run.read(run_dir))
    assert (found["compared_with"], found["unlike"]) == ("c1", 1)
    assert found["unlike_in"].startswith("workload_sha256: ")


def test_both_are_findings_and_the_run_stays_valid(armwise_home, postgres, tmp_path):
    stored(tmp_path, "c1", "one", cached=40)
    run_dir = stored(tmp_path, "a1", "other", version="0.33.0", cached=90, **VARIED)
    found = validation(run.read(run_dir))
    assert found["reasons"] == []
    said = "\n".join(found["findings"])
    assert "rule 11 (run): image, revision, GPU, versions" in said and "unlike 1; unlike_in version of vllm" in said
    assert (
        "rule 8 (gateway): the share of cached prompt tokens" in said and "hit_ratio 0.9; control_hit_ratio 0.4" in said
    )
    assert "rule 8 (agent)" not in said
