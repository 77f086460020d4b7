"""Trajectories are what the golden set makes of them, and nothing else."""

import json
import shutil
from itertools import pairwise
from pathlib import Path

import pytest

from tasks import settings
from tasks.agent import golden, trajectory
from tasks.document import InvalidDocument

ROOT = Path(__file__).resolve().parents[3]
FILE = ROOT / "golden_set" / "v1" / "trajectories" / "sessions.jsonl"


def test_they_are_made_again_byte_for_byte() -> None:
    made = "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in trajectory.recorded("v1"))
    assert made == FILE.read_text(encoding="utf-8")


def test_every_case_is_in_one_session_and_none_that_a_model_is_known_to_fail() -> None:
    played = [case for one in trajectory.load("v1") for case in one.cases]
    assert played == [case.id for case in golden.load("v1") if case.known_limit is None]
    assert {len(one.cases) for one in trajectory.load("v1")} == {1, 2, 3}


def test_a_history_grows_as_an_agents_does() -> None:
    """A user's word, a call and its result in turn, the answer; roles as a chat template wants them."""
    for one in trajectory.load("v1"):
        history = [message for step in one.steps for message in step.adds]
        assert history[0]["role"] == "user"
        assert one.tool_calls >= sum(len(message.get("tool_calls", [])) for message in history)
        for before, after in pairwise(history):
            allowed = {"user": ["assistant"], "tool": ["assistant"], "assistant": ["tool", "user"]}[before["role"]]
            assert after["role"] in allowed
            if after["role"] == "tool":
                assert after["tool_call_id"] == before["tool_calls"][0]["id"]
        for step in one.steps:
            assert step.adds[-1]["role"] == step.after
            assert 5 <= step.output_tokens <= 100


def test_the_first_session_by_hand() -> None:
    first = trajectory.load("v1")[0]
    case = golden.load("v1")[0]
    assert [step.after for step in first.steps] == ["user", "tool"]
    assert first.steps[0].adds == [{"role": "user", "content": case.query}]
    assert "204584" in first.steps[1].adds[1]["content"]  # what the search found
    # The population of Port Hefi is 204584 .
    assert first.steps[1].output_tokens == 8


def test_a_changed_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(ROOT / "golden_set", tmp_path / "golden_set")
    monkeypatch.setenv("ARMWISE_ROOT", str(tmp_path))
    assert settings.root() == tmp_path
    assert trajectory.load("v1")
    with (tmp_path / "golden_set/v1/trajectories/sessions.jsonl").open("a") as file:
        file.write("\n")
    with pytest.raises(InvalidDocument, match=r"sessions\.jsonl: sha256 must be [0-9a-f]+ .*found [0-9a-f]+"):
        trajectory.load("v1")


def test_they_do_not_change_what_the_golden_set_is() -> None:
    """Gates are compared by the set's digest; trajectories are no part of a gate."""
    assert "trajectories" not in (ROOT / "golden_set/v1/MANIFEST.yaml").read_text()
