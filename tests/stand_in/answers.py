"""What the stand-in engine says: a golden case played right, one step at a time.

The last message of the user names the case; how many assistant messages follow it is the step. Step k makes expected
call k after one sentence; after the last call comes the reference answer. Any other message gets a fixed answer.
"""

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TOKEN = re.compile(r"\s?\w+|\s?[^\w\s]|\s")
UNKNOWN = "I could not find it."


@dataclass
class Reply:
    """One answer: its text, and the tool call that follows the text, if any."""

    content: str
    tool: str | None = None
    arguments: str = ""


def tokens(text: str) -> list[str]:
    """Pieces of text; joined, they are the text again. One piece counts as one token."""
    return TOKEN.findall(text)


def read_cases() -> dict[str, dict[str, Any]]:
    """Query -> case, of every golden set below ARMWISE_ROOT (default: the checkout)."""
    root = Path(os.environ.get("ARMWISE_ROOT") or Path(__file__).resolve().parents[2])
    lines = [line for path in root.glob("golden_set/*/cases.jsonl") for line in path.read_text().splitlines()]
    return {case["query"]: case for case in map(json.loads, lines)}


def reply(messages: list[dict[str, Any]], cases: dict[str, dict[str, Any]], faults: dict[str, str]) -> Reply:
    """The next thing that a perfect model would say, or a planted fault."""
    asked = max((i for i, message in enumerate(messages) if message["role"] == "user"), default=-1)
    case = cases.get(_text(messages[asked])) if asked >= 0 else None
    if case is None or "wrong_answers" in faults:
        return Reply("I do not know." if "wrong_answers" in faults else UNKNOWN)
    step = sum(message["role"] == "assistant" for message in messages[asked + 1 :])
    calls = case["expected_calls"]
    if step >= len(calls):
        return Reply(case["reference_answer"])
    arguments = json.dumps(calls[step]["arguments"])
    if "rubbish_json" in faults:
        arguments = arguments[:-2].replace(":", "", 1)
    return Reply(f"I will use {calls[step]['name']} for step {step + 1}.", calls[step]["name"], arguments)


def _text(message: dict[str, Any]) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
