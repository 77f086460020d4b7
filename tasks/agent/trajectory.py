"""Recorded agent trajectories: the same prompts and output lengths for every arm, whatever its model says.

A live agent's work depends on what the model answers: an arm that answers worse may make longer tasks, or shorter ones.
A replay takes that away. A trajectory is a session of one to three messages of a user; each step adds fixed messages to
the history and asks for an answer of exactly `output_tokens`; what is really answered is thrown away, and the recorded
answer stands in the history of the next step. So every arm does identical work, with a growing history.

    golden_set/<version>/trajectories/sessions.jsonl    one session per line
    golden_set/<version>/trajectories/MANIFEST.yaml     its sha256, origin, licence

`python -m tasks.agent.trajectory v1` makes sessions.jsonl again, byte for byte, from the set's cases: their reference
calls, what the tools answer to them, and the reference answer, cases in their order, one, two and three to a session in
turn. Lengths are counted in words and marks, not in tokens of any one model's tokenizer: of the right order for all.
"""

import hashlib
import json
import re
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import cycle, islice
from typing import Any, Literal

from pydantic import Field

from tasks.agent import golden
from tasks.document import Document, InvalidDocument, parse, read

FILE = "sessions.jsonl"
WORD = re.compile(r"\w+|[^\w\s]")
LENGTHS = (1, 2, 3)  # messages of a user in a session, in turn
Message = dict[str, Any]


class Step(Document):
    """One model call: what is new in the history, whose word it answers, and how long the answer is."""

    after: Literal["user", "tool"]
    adds: list[Message] = Field(min_length=1)
    output_tokens: int = Field(ge=1)


class Trajectory(Document):
    """One session. The system prompt and the tools are the golden set's, and come before the first step's messages."""

    golden_set: str
    id: str
    cases: list[str] = Field(min_length=1)
    tool_calls: int = Field(ge=0)  # in the recorded history
    steps: list[Step] = Field(min_length=1)


def load(version: str) -> tuple[Trajectory, ...]:
    """The trajectories of a golden set. Raises UnknownName, InvalidDocument (missing, changed, malformed)."""
    return _load(version, digest(version))


def digest(version: str) -> str:
    """sha256 of the file, checked against its MANIFEST. Raises UnknownName, InvalidDocument."""
    place = golden.folder(version) / "trajectories"
    wanted = read(place / "MANIFEST.yaml", golden.Manifest).sha256.get(FILE)
    path = place / FILE
    found = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "no such file"
    if found != wanted:
        raise InvalidDocument(
            f"{path}: sha256 must be {wanted} (MANIFEST.yaml), found {found}; a changed set is a new folder"
        )
    return found


@cache
def _load(version: str, _digest: str) -> tuple[Trajectory, ...]:
    path = golden.folder(version) / "trajectories" / FILE
    lines = path.read_text(encoding="utf-8").splitlines()
    return tuple(
        parse(json.loads(line) | {"golden_set": version}, Trajectory, source=f"{path}:{number}")
        for number, line in enumerate(lines, start=1)
    )


def recorded(version: str) -> Iterator[dict[str, Any]]:
    """The trajectories that the cases of a golden set make; those that some model is known to fail are left out."""
    cases = iter([case for case in golden.load(version) if case.known_limit is None])
    for number, length in enumerate(cycle(LENGTHS), start=1):
        session = list(islice(cases, length))
        if not session:
            return
        yield _session(f"t{number:02d}", session)


def _session(name: str, cases: Sequence[golden.Case]) -> dict[str, Any]:
    steps: list[dict[str, Any]] = []
    said: list[Message] = []  # by the assistant in the step before
    for case in cases:
        heard: list[Message] = [{"role": "user", "content": case.query}]
        for answer in _answers(case):
            after = "user" if heard[-1]["role"] == "user" else "tool"
            steps.append({"after": after, "adds": said + heard, "output_tokens": _length(answer["message"])})
            said, heard = [answer["message"]], answer["results"]
    calls = sum(len(case.expected_calls) for case in cases)
    return {"id": name, "cases": [case.id for case in cases], "tool_calls": calls, "steps": steps}


def _answers(case: golden.Case) -> list[dict[str, Any]]:
    """What the assistant said in each step of the reference play, and what the tools answered to it."""
    from tasks.agent import toolbox
    from tasks.agent.desk import Desk

    desk = Desk(golden.material(case.golden_set).index, [task.model_dump() for task in case.initial_tasks], True)
    found = []
    for number, call in enumerate(case.expected_calls, start=1):
        identity = f"{case.id}-{number}"
        function = {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)}
        called = {"id": identity, "type": "function", "function": function}
        message = {"role": "assistant", "content": f"I will use {call.name} for this.", "tool_calls": [called]}
        result = toolbox.call(call.name, dict(call.arguments), desk)
        found.append({"message": message, "results": [{"role": "tool", "tool_call_id": identity, "content": result}]})
    return [*found, {"message": {"role": "assistant", "content": case.reference_answer}, "results": []}]


def _length(message: Message) -> int:
    """Words and marks of what the assistant wrote, a tool call as the text that a model writes for it."""
    calls = [json.dumps(call["function"], ensure_ascii=False) for call in message.get("tool_calls", [])]
    return len(WORD.findall(" ".join([message["content"], *calls])))


if __name__ == "__main__":
    sys.stdout.writelines(json.dumps(one, ensure_ascii=False) + "\n" for one in recorded(sys.argv[1]))
