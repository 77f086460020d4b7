"""A server of which nothing is known but its answers."""

from pathlib import Path

import pytest
from stand_in.launch import running

from tasks.arm import Arm, Model
from tasks.engines import openai

ARM = Arm(engine="openai", question="is this a test?", model=Model(repo="any", served_as="tiny"), price="p")


def test_everything_is_unverified_but_the_name(tmp_path: Path) -> None:
    flags = ["--model", "m", "--served-model-name", "tiny"]
    with running(*flags, log=tmp_path / "log", VLLM_API_KEY="k") as engine:
        assert openai.ready(engine.url, "k") and not openai.ready(engine.url, "wrong")
        found = openai.effective(engine.url, "k", None)
    differences, unverified = openai.compare(ARM, found)
    assert (found["source"], differences) == ("none", [])
    assert [row["flag"] for row in unverified] == ["model.repo"]


def test_a_name_that_the_server_does_not_list_is_a_difference() -> None:
    differences, _ = openai.compare(ARM, {"config": {"models": ["a", "b"]}})
    assert [(row["requested"], row["effective"]) for row in differences] == [("tiny", "a, b")]


def test_it_cannot_be_started() -> None:
    with pytest.raises(ValueError, match="endpoint driver"):
        openai.argv(ARM, host="h", port=1)
