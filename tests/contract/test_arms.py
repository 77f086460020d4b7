"""Every file in deploy/arms keeps the contract of an arm, and every bad one is answered with one line per fault."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from tasks import arm, price
from tasks.document import UNRESOLVED, InvalidDocument

NAMES = arm.names()
SHIPPED = {
    *("cpu-baseline", "cpu-no-prefix-caching", "cpu-ngram", "cpu-draft", "cpu-no-chunked-prefill", "endpoint"),
    *("qwen2.5-3b-baseline", "qwen2.5-3b-chunked-prefill", "qwen2.5-3b-speculative"),
    *("qwen3-4b-bf16", "qwen3-4b-fp8", "qwen3-4b-draft", "qwen3-4b-max-num-seqs-128"),
}


def test_what_the_project_promises_is_there() -> None:
    assert set(NAMES) >= SHIPPED


@pytest.mark.parametrize("name", NAMES)
def test_loads_and_names_exist(name: str) -> None:
    found = arm.load(name)
    assert found.question.endswith("?")
    assert found.price in price.names()
    assert found.control is None or found.control in NAMES


@pytest.mark.parametrize("name", [name for name in NAMES if arm.load(name).control is not None])
def test_one_thing_differs_from_the_control_and_companions_are_needed(name: str) -> None:
    found = arm.load(name)
    differs = arm.differences(found, arm.load(str(found.control)))
    assert len(found.varies) == 1
    assert set(differs) == {*found.varies, *found.companions}


def test_no_two_arms_are_the_same() -> None:
    times = Counter(arm.load(name).digest() for name in NAMES)
    assert max(times.values()) == 1


def test_every_family_has_a_nightly_control() -> None:
    measured = [found for found in map(arm.load, NAMES) if found.engine != "sim"]  # a sim is never worth a night
    controls = {found.control for found in measured} - {None}
    assert controls and all(arm.load(str(name)).nightly for name in controls)


@pytest.mark.parametrize("name", [name for name in NAMES if arm.load(name).model.repo and arm.load(name).url is None])
def test_a_hub_model_is_pinned_or_says_that_it_is_not(name: str) -> None:
    found = arm.load(name)
    revision = str(found.model.revision)
    assert revision == UNRESOLVED or (len(revision) == 40 and int(revision, 16))
    assert found.image == UNRESOLVED or "@sha256:" in str(found.image)
    assert ("model.revision" in arm.unresolved(found)) == (revision == UNRESOLVED)


def test_an_unresolved_draft_model_counts() -> None:
    assert "flags.speculative-config.revision" in arm.unresolved(arm.load("qwen3-4b-draft"))


def spoil(root: Path, name: str, edit: Any) -> Path:
    """Edit the parsed content of one arm of the sandbox. Returns its path."""
    path = root / "deploy" / "arms" / f"{name}.yaml"
    content = yaml.safe_load(path.read_text())
    edit(content)
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda a: a.update(flag={}), "flag: not a known field; known: "),
        (lambda a: a["model"].update(pth="x"), "model.pth: not a known field; known: path, repo, revision, served_as"),
        (lambda a: a.update(nightly="yes please"), "nightly: Input should be a valid boolean, found 'yes please'"),
        (lambda a: a.update(engine="vlm"), "no 'vlm'; known: openai, sim, vllm"),
        (lambda a: a["flags"].update({"max-num-seq": 8}), "flags.max-num-seq: not a flag of vllm; near: max-num-seqs"),
        (lambda a: a["flags"].update({"port": 1}), "flags.port: not a flag of an arm; the driver sets it"),
        (lambda a: a["flags"].update({"model": "x"}), "flags.model: not a flag of an arm; write model.path"),
        (
            lambda a: a["flags"].update({"no-enable-chunked-prefill": True}),
            "flags.no-enable-chunked-prefill: not a flag of vllm; near: enable-chunked-prefill",
        ),
        (lambda a: a.update(control="cpu-basline"), "control: .*no 'cpu-basline'; known: cpu-baseline"),
        (lambda a: a.update(control="cpu-ngram-x", varies=[]), "an arm with a control must say what it varies"),
        (lambda a: a.update(control=None), "varies and companions need a control"),
        (lambda a: a["model"].pop("path"), "model: exactly one of path, repo must be given"),
        (lambda a: a.pop("question"), "question: is missing"),
        (
            lambda a: a["flags"].update({"max-num-seqs": 16}),
            "flags.max-num-seqs: 16 differs from 8 in control cpu-baseline.*one variable at a time",
        ),
        (
            lambda a: a["env"].update(VLLM_CPU_KVCACHE_SPACE="2"),
            "env.VLLM_CPU_KVCACHE_SPACE: '2' differs from '1' in control cpu-baseline",
        ),
        (
            lambda a: a["varies"].append("flags.max-num-seqs"),
            "varies: flags.max-num-seqs does not differ from control cpu-baseline",
        ),
    ],
)
def test_a_fault_is_one_line_that_names_file_and_field(sandbox: Path, edit: Any, words: str) -> None:
    path = spoil(sandbox, "cpu-ngram", edit)
    with pytest.raises(ValueError, match=words) as error:
        arm.load("cpu-ngram")
    assert len(str(error.value).splitlines()) == 1
    assert str(path.parent) in str(error.value) or "tasks.engines" in str(error.value)


def test_a_repeated_flag_is_named_with_both_lines(sandbox: Path) -> None:
    path = sandbox / "deploy" / "arms" / "cpu-baseline.yaml"
    path.write_text(path.read_text().replace("  max-num-seqs: 8\n", "  max-num-seqs: 8\n  max-num-seqs: 16\n"))
    with pytest.raises(InvalidDocument, match=r"repeated key: 'max-num-seqs' stands on line \d+ and again on line \d+"):
        arm.load("cpu-baseline")


def test_all_faults_of_a_file_are_told_at_once(sandbox: Path) -> None:
    def edit(content: Any) -> None:
        content["flags"] |= {"max-num-seqs": 16, "dtyp": "x"}

    spoil(sandbox, "cpu-ngram", edit)
    with pytest.raises(InvalidDocument) as error:
        arm.load("cpu-ngram")
    assert [line.split(": ")[1] for line in str(error.value).splitlines()] == ["flags.dtyp", "flags.max-num-seqs"]


def test_an_unknown_arm_is_answered_with_the_known_ones(sandbox: Path) -> None:
    with pytest.raises(ValueError, match="no 'cpu-basline'; known: cpu-baseline, cpu-draft"):
        arm.load("cpu-basline")
