"""The golden set: frozen cases with what a right play of each must hold, and the judge of a played case.

A set is a folder of golden_set/: cases.jsonl, corpus.jsonl (what web_search finds), system.txt, tools.json (which tools
the model is offered, in the very text that is sent) and MANIFEST.yaml with the sha256 of each. A file that differs from
its MANIFEST is refused: a changed case is a new set, not an edit.

An expected call has the arguments of a reference play; those named in `rules` are judged by rule (tasks/agent/rule.py),
so that any model's wording can pass, the others must be equal. Expected calls must come in order, unless the case says
`order: free`. Other calls between them are allowed unless `extra_calls` is false.

`known_limit` says that some models cannot do this case, and why: a limit of the model, not of an arm. For these models
the case is played, judged, stored and reported, and counts neither for nor against the pass rate. For every other model
it counts like any case.
"""

import hashlib
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, Protocol

from pydantic import Field

from tasks import catalog, settings
from tasks.agent import rule, toolbox
from tasks.agent.desk import Index, index_of
from tasks.arm import Arm
from tasks.document import Document, InvalidDocument, parse, read
from tasks.record import TASK_FAILURES

FILES = ("cases.jsonl", "corpus.jsonl", "system.txt", "tools.json")


class Task(Document):
    id: int
    title: str | rule.Rule
    done: bool


class Call(Document):
    name: str
    arguments: dict[str, str | int]
    rules: dict[str, rule.Rule] = {}


class KnownLimit(Document):
    models: list[str] = Field(min_length=1)  # an arm's model.path or model.repo
    reason: str = Field(min_length=20)


class Case(Document):
    """One line of cases.jsonl. `golden_set` is the set's name, put in when the case is read."""

    golden_set: str
    id: str
    category: str
    query: str  # what the user says
    initial_tasks: list[Task] = []
    expected_calls: list[Call] = []
    order: Literal["fixed", "free"] = "fixed"
    extra_calls: bool = True
    answer: rule.Rule
    reference_answer: str
    final_tasks: list[Task] = []
    known_limit: KnownLimit | None = None


class Manifest(Document):
    """MANIFEST.yaml: where a set comes from, and the sha256 of each of its files."""

    licence: str
    origin: str
    frozen_on: str
    sha256: dict[str, str]


@dataclass(frozen=True)
class Material:
    """What all cases of a set share. `tools` are the schemas that the model is sent, derived from the functions."""

    system: str
    tools: tuple[dict[str, Any], ...]
    index: Index


class Play(Protocol):
    """What the judge looks at; tasks.agent.graph.Played has more."""

    answer: str | None
    calls: list[dict[str, Any]]
    tasks: list[dict[str, Any]]
    failure: str | None
    failure_detail: str | None


def folder(version: str) -> Path:
    """Folder of one set. Raises UnknownName."""
    sets = settings.root() / "golden_set"
    known = sorted(path.parent.name for path in sets.glob("*/MANIFEST.yaml"))
    if version not in known:
        raise catalog.UnknownName(f"{sets}: no '{version}'; known: {', '.join(known) or 'none'}")
    return sets / version


def load(version: str) -> tuple[Case, ...]:
    """The cases of one set, checked against its MANIFEST. Raises UnknownName, InvalidDocument."""
    return _cases(_checked(version), version)


def digest(version: str) -> str:
    """sha256 over the MANIFEST's checksums: the identity of the whole set. Raises UnknownName, InvalidDocument."""
    sums = read(folder(version) / "MANIFEST.yaml", Manifest).sha256
    return hashlib.sha256(json.dumps(sums, sort_keys=True).encode()).hexdigest()


def material(version: str) -> Material:
    """System prompt, tools and search index of a set; read once per process. Raises UnknownName, InvalidDocument."""
    return _material(folder(version))


def first_messages(case: Case) -> list[dict[str, str]]:
    """What the first step of a play sends."""
    return [{"role": "system", "content": material(case.golden_set).system}, {"role": "user", "content": case.query}]


def model_of(arm: Arm) -> str:
    """The name by which known limits speak of an arm's model."""
    return arm.model.path or arm.model.repo or arm.model.served_as


def is_known_limit(case: Case, model: str) -> bool:
    return case.known_limit is not None and model in case.known_limit.models


def judge(case: Case, played: Play) -> tuple[bool, str | None, str | None]:
    """(is it right, a key of record.TASK_FAILURES, the reason in words)."""
    if played.failure:
        return False, played.failure, played.failure_detail or TASK_FAILURES[played.failure]
    if fault := _missing(case, played.calls):
        return False, "missing_call", fault
    if not case.extra_calls and len(played.calls) > len(case.expected_calls):
        return False, "unexpected_call", f"{len(played.calls)} calls, expected {len(case.expected_calls)}"
    if fault := _wrong_tasks(case.final_tasks, played.tasks):
        return False, "wrong_tasks", fault
    if fault := rule.fault(case.answer, played.answer or ""):
        return False, "wrong_answer", f"the answer {fault}"
    return True, None, None


def _missing(case: Case, made: list[dict[str, Any]]) -> str | None:
    """The first expected call that no call of its own fulfils."""
    left = list(made)
    for expected in case.expected_calls:
        at = next((i for i, call in enumerate(left) if _fulfils(expected, call)), None)
        if at is None:
            place = "" if case.order == "free" else ", or not in its place"
            return f"no call {expected.name} {json.dumps(expected.arguments, ensure_ascii=False)}{place}"
        left = left[:at] + left[at + 1 :] if case.order == "free" else left[at + 1 :]
    return None


def _fulfils(expected: Call, made: dict[str, Any]) -> bool:
    if made["name"] != expected.name:
        return False
    given = {key: value for key, value in made["arguments"].items() if value not in ("", None)}
    if set(given) != set(expected.arguments):
        return False
    return all(
        rule.fault(expected.rules[key], str(value)) is None
        if key in expected.rules
        else value == expected.arguments[key]
        for key, value in given.items()
    )


def _wrong_tasks(expected: list[Task], found: list[dict[str, Any]]) -> str | None:
    if len(expected) != len(found):
        return f"the task list has {len(found)} tasks, expected {len(expected)}"
    for want, task in zip(expected, found, strict=True):
        if (want.id, want.done) != (task["id"], task["done"]):
            return f"the task list has {task}, expected id {want.id}, done {want.done}"
        fault = rule.fault(want.title, task["title"]) if isinstance(want.title, rule.Rule) else None
        if fault or (isinstance(want.title, str) and want.title != task["title"]):
            return f"the title of task {want.id} {fault or f'is not {want.title!r}'}, found {task['title']!r}"
    return None


def _checked(version: str) -> Path:
    """The set's folder. Raises InvalidDocument if a file is missing, differs from the MANIFEST, or is not in it."""
    place = folder(version)
    sums = read(place / "MANIFEST.yaml", Manifest).sha256
    faults = [f"{place}/MANIFEST.yaml: sha256.{name}: is missing" for name in FILES if name not in sums]
    for name, wanted in sums.items():
        path = place / name
        found = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "no such file"
        if found != wanted:
            faults.append(
                f"{path}: sha256 must be {wanted} (MANIFEST.yaml), found {found}; a changed set is a new folder"
            )
    if faults:
        raise InvalidDocument("\n".join(faults))
    return place


@cache
def _cases(place: Path, version: str) -> tuple[Case, ...]:
    cases = []
    for number, line in enumerate((place / "cases.jsonl").read_text(encoding="utf-8").splitlines(), start=1):
        source = f"{place}/cases.jsonl:{number}"
        cases.append(parse(_json(line, source) | {"golden_set": version}, Case, source=source))
    ids = [case.id for case in cases]
    twice = sorted({i for i in ids if ids.count(i) > 1})
    if twice:
        raise InvalidDocument(f"{place}/cases.jsonl: id: must be unique, found twice: {', '.join(twice)}")
    return tuple(cases)


@cache
def _material(place: Path) -> Material:
    _checked(place.name)
    frozen = json.loads((place / "tools.json").read_text(encoding="utf-8"))
    tools = tuple(toolbox.schema(tool["function"]["name"]) for tool in frozen)
    if json.dumps(tools) != json.dumps(frozen):
        raise InvalidDocument(
            f"{place}/tools.json: differs from the schemas of tasks/agent/tools; change the tool back"
        )
    corpus = (place / "corpus.jsonl").read_text(encoding="utf-8").splitlines()
    documents = [_json(line, f"{place}/corpus.jsonl:{number}") for number, line in enumerate(corpus, start=1)]
    return Material((place / "system.txt").read_text(encoding="utf-8").strip(), tools, index_of(documents))


def _json(line: str, source: str) -> dict[str, Any]:
    try:
        content = json.loads(line)
    except ValueError as error:
        raise InvalidDocument(f"{source}: not JSON: {error}") from error
    if not isinstance(content, dict):
        raise InvalidDocument(f"{source}: must be an object, found {type(content).__name__}")
    return content
