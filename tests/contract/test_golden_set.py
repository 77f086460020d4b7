"""One suite over every golden set: the reference play of each case passes, and each way of getting it wrong fails."""

import json
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tasks import settings
from tasks.agent import golden, graph
from tasks.document import InvalidDocument
from tasks.record import TASK_FAILURES
from tasks.traffic.stream import Answer

ROOT = Path(__file__).resolve().parents[2]
SETS = sorted(path.parent.name for path in (ROOT / "golden_set").glob("*/MANIFEST.yaml"))
CASES = [case for version in SETS for case in golden.load(version)]
GOOD = {"failure": None, "failure_detail": None, "is_aborted": False}
DEMO = "deploy/models/demo/model"


@dataclass
class Script:
    """What a model says: calls one step at a time, then the answer."""

    calls: list[tuple[str, Any]]
    answer: str
    asked: list[int] = field(default_factory=list)

    def ask(self, _messages: Any, _tools: Any, step: int) -> Answer:
        if step > len(self.calls):
            return Answer(GOOD, self.answer, "", [])
        name, arguments = self.calls[step - 1]
        text = arguments if isinstance(arguments, str) else json.dumps(arguments)
        return Answer(GOOD, "Next.", "", [{"id": f"c{step}", "name": name, "arguments": text}])


def reference(case: golden.Case) -> Script:
    return Script([(call.name, dict(call.arguments)) for call in case.expected_calls], case.reference_answer)


def judged(case: golden.Case, script: Script) -> tuple[bool, str | None, str | None]:
    return golden.judge(case, graph.play(case, ask=script.ask))


def each(cases: list[golden.Case]) -> Any:
    assert cases, "a rule that no case tests"
    return pytest.mark.parametrize("case", cases, ids=lambda case: f"{case.golden_set}-{case.id}")


CALLING = [case for case in CASES if case.expected_calls]
SEARCHING = [case for case in CASES if any(call.name == "web_search" for call in case.expected_calls)]
ORDERED = [case for case in CASES if len(case.expected_calls) > 1 and case.order == "fixed"]
FREE = [case for case in CASES if case.order == "free"]
CHANGING = [
    case for case in CASES if [t.model_dump() for t in case.initial_tasks] != [t.model_dump() for t in case.final_tasks]
]
NAMES = sorted(
    {call.rules["query"].all_of[0] for case in SEARCHING for call in case.expected_calls if "query" in call.rules}
)


def test_v1_is_there() -> None:
    cases = golden.load("v1")
    assert len(cases) == 41
    assert [case.id for case in cases if golden.is_known_limit(case, DEMO)] == ["g41"]
    assert not any(golden.is_known_limit(case, "Qwen/Qwen2.5-3B-Instruct") for case in cases)


@pytest.mark.parametrize("version", SETS)
def test_a_set_can_be_used(version: str) -> None:
    assert golden.load(version) and golden.material(version).system
    assert re.fullmatch(r"[0-9a-f]{64}", golden.digest(version))
    frozen = json.loads((golden.folder(version) / "tools.json").read_text())
    assert json.dumps(list(golden.material(version).tools)) == json.dumps(frozen)


@each(CASES)
def test_the_reference_play_passes(case: golden.Case) -> None:
    assert judged(case, reference(case)) == (True, None, None)


@each(SEARCHING)
def test_another_wording_of_query_and_answer_passes(case: golden.Case) -> None:
    """Upper case, quotes, the keyword before the name, thousands separators."""
    script = reference(case)
    script.calls = [(name, _reworded(name, args)) for name, args in script.calls]
    script.answer = re.sub(r"(?<!\d)(\d{1,3})(\d{3})(?!\d)", _separated, script.answer.upper())
    assert judged(case, script) == (True, None, None)


def _separated(match: re.Match[str]) -> str:
    is_year = len(match[0]) == 4 and match[0][:2] in ("18", "19", "20")
    return match[0] if is_year else f"{match[1]},{match[2]}"


def _reworded(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    if name != "web_search":
        return arguments
    entity = next(n for n in sorted(NAMES, key=len, reverse=True) if arguments["query"].startswith(n))
    return {"query": f"{arguments['query'].removeprefix(entity).strip()} of “{entity.upper()}”?"}


@each(SEARCHING)
def test_a_search_for_another_name_fails(case: golden.Case) -> None:
    for at, (name, arguments) in enumerate(reference(case).calls):
        if name == "web_search":
            script = reference(case)
            first, *rest = arguments["query"].split()
            script.calls[at] = (name, {"query": " ".join([first + "x", *rest])})
            assert judged(case, script)[:2] == (False, "missing_call")


@each(SEARCHING)
def test_a_search_for_another_fact_fails(case: golden.Case) -> None:
    """Every keyword that some case uses for another fact, and no keyword at all."""
    for at, (name, arguments) in enumerate(reference(case).calls):
        if name != "web_search":
            continue
        rule = case.expected_calls[at].rules["query"]
        entity = str(rule.all_of[0])
        own = arguments["query"].lower().removeprefix(entity.lower()).strip()
        for keyword in _other_facts(own):
            script = reference(case)
            script.calls[at] = (name, {"query": f"{entity} {keyword}"})
            assert judged(case, script)[:2] == (False, "missing_call"), keyword


FACTS_OF = [  # facts that the same kind of thing has, by the oracle's keywords
    ["founder", "founding year", "headquarters", "employees"],
    ["maker", "price", "release year", "weight"],
    ["profession", "birthplace", "birth year"],
    ["location", "opening hours", "ticket price", "opening year", "architect"],
    ["venue", "date", "ticket price", "organiser"],
    ["maintainer", "latest version", "programming language", "release year"],
    ["population", "mayor", "river"],
]


def _other_facts(own: str) -> list[str]:
    kinds = [facts for facts in FACTS_OF if own in facts]
    assert kinds, own
    return ["", *(fact for facts in kinds for fact in facts if fact != own)]


@each(CALLING)
def test_a_missing_call_fails(case: golden.Case) -> None:
    for at in range(len(case.expected_calls)):
        script = reference(case)
        del script.calls[at]
        assert judged(case, script)[:2] == (False, "missing_call")


@each(ORDERED)
def test_the_wrong_order_fails(case: golden.Case) -> None:
    script = reference(case)
    script.calls.reverse()
    assert judged(case, script)[:2] == (False, "missing_call")


@each(FREE)
def test_another_order_passes_where_it_does_not_matter(case: golden.Case) -> None:
    script = reference(case)
    script.calls.reverse()
    assert judged(case, script)[0]


@each(CALLING)
def test_the_same_call_again_is_a_loop(case: golden.Case) -> None:
    script = reference(case)
    script.calls.append(script.calls[-1])
    assert judged(case, script)[:2] == (False, "loop")


@each(CALLING)
def test_malformed_json_fails_even_when_mended(case: golden.Case) -> None:
    script = reference(case)
    name, arguments = script.calls[0]
    script.calls.insert(0, (name, json.dumps(arguments)[:-2]))
    assert judged(case, script)[:2] == (False, "malformed_call")


@each(CASES)
def test_an_answer_that_says_nothing_fails(case: golden.Case) -> None:
    for answer in ("", "I do not know.", "42"):
        script = reference(case)
        script.answer = answer
        assert judged(case, script)[:2] == (False, "wrong_answer"), answer


@each(
    [case for case in CASES if re.search(r"\d", case.reference_answer) and case.category in ("search_one", "two_hop")]
)
def test_an_answer_with_another_number_fails(case: golden.Case) -> None:
    script = reference(case)
    script.answer = re.sub(r"\d(?=\D*$)", lambda m: str((int(m[0]) + 1) % 10), script.answer)
    assert judged(case, script)[:2] == (False, "wrong_answer")


@each(FREE)
def test_the_other_one_of_a_comparison_fails(case: golden.Case) -> None:
    choice = case.answer.chooses
    assert choice
    script = reference(case)
    said, so, _ = script.answer.partition(", so ")
    script.answer = f"{said}{so}{choice.other} is {choice.adjectives[0]}."
    assert judged(case, script)[:2] == (False, "wrong_answer")


@each([case for case in CASES if not case.expected_calls])
def test_a_call_where_none_is_due_fails(case: golden.Case) -> None:
    script = reference(case)
    script.calls = [("manage_tasks", {"action": "list"})]
    assert judged(case, script)[:2] == (False, "unexpected_call")


@each(CASES)
def test_a_task_too_many_fails(case: golden.Case) -> None:
    script = reference(case)
    script.calls.append(("manage_tasks", {"action": "add", "title": "something else"}))
    assert judged(case, script)[1] == ("wrong_tasks" if case.extra_calls else "unexpected_call")


@each([case for case in CHANGING if any("title" in call.arguments for call in case.expected_calls)])
def test_a_task_with_another_title_fails(case: golden.Case) -> None:
    script = reference(case)
    script.calls = [(n, a | {"title": a["title"].split()[0]} if "title" in a else a) for n, a in script.calls]
    assert judged(case, script)[:2] == (False, "missing_call")


@each([case for case in CASES if any(call.arguments.get("action") == "complete" for call in case.expected_calls)])
def test_the_wrong_task_done_fails(case: golden.Case) -> None:
    script = reference(case)
    script.calls = [(n, a | {"id": a["id"] + 1} if "id" in a else a) for n, a in script.calls]
    assert judged(case, script)[:2] == (False, "missing_call")


@each(CASES)
def test_every_search_of_the_reference_finds_its_document(case: golden.Case) -> None:
    """Else the answer could not be known. Cases where it is not there say `not found`."""
    from tasks.agent.desk import best

    for call in case.expected_calls:
        if call.name == "web_search":
            titles = [
                hit["title"] for hit in best(golden.material(case.golden_set).index, str(call.arguments["query"]))
            ]
            entity = call.rules["query"].all_of[0]
            assert (titles[0] == entity) or case.category == "not_found"


def test_failures_are_words_of_the_record() -> None:
    kinds = {"missing_call", "unexpected_call", "wrong_tasks", "wrong_answer", "loop", "step_limit", "malformed_call"}
    assert kinds | {"request", "wrong_length"} == set(TASK_FAILURES)


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(ROOT / "golden_set", tmp_path / "golden_set")
    monkeypatch.setenv("ARMWISE_ROOT", str(tmp_path))
    assert settings.root() == tmp_path
    return tmp_path / "golden_set" / "v1"


@pytest.mark.parametrize("name", golden.FILES)
def test_a_changed_file_is_refused(copied: Path, name: str) -> None:
    assert golden.load("v1")
    with (copied / name).open("a") as file:
        file.write("\n")
    with pytest.raises(InvalidDocument, match=rf"{name}: sha256 must be [0-9a-f]+ .*, found [0-9a-f]+"):
        golden.load("v1")


def test_a_missing_file_and_one_that_the_manifest_lacks_are_refused(copied: Path) -> None:
    (copied / "corpus.jsonl").unlink()
    manifest = (copied / "MANIFEST.yaml").read_text()
    (copied / "MANIFEST.yaml").write_text(re.sub(r"  system\.txt: .*\n", "", manifest))
    with pytest.raises(InvalidDocument) as caught:
        golden.load("v1")
    assert "corpus.jsonl: sha256 must be" in str(caught.value) and "found no such file" in str(caught.value)
    assert "MANIFEST.yaml: sha256.system.txt: is missing" in str(caught.value)


def test_an_unknown_set_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"golden_set: no 'v9'; known: v1"):
        golden.load("v9")


def test_the_model_was_trained_on_the_system_prompt_and_tools_of_v1() -> None:
    for name in ("system.txt", "tools.json"):
        assert (ROOT / "deploy/models/demo" / name).read_bytes() == (ROOT / "golden_set/v1" / name).read_bytes()


def test_the_generator_still_makes_v1(tmp_path: Path) -> None:
    """The corpus, and every case but those made by hand."""
    script = ROOT / "deploy/models/demo/generate.py"
    subprocess.run([sys.executable, "-B", str(script), "data", "--out", str(tmp_path)], check=True, timeout=120)
    assert (tmp_path / "corpus.jsonl").read_bytes() == (ROOT / "golden_set/v1/corpus.jsonl").read_bytes()
    made = (tmp_path / "cases.jsonl").read_text().splitlines()
    assert len(made) == 40 and made == (ROOT / "golden_set/v1/cases.jsonl").read_text().splitlines()[:40]
