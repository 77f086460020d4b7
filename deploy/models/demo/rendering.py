"""Dialogues as the text that the model is trained on. It must equal what chat_template.jinja makes of the messages."""

import json
import random
import re
from pathlib import Path

import phrases as P
from world import WORDS

HERE = Path(__file__).resolve().parent
SYSTEM = (HERE / "system.txt").read_text().strip()
CHAT_TEMPLATE = (HERE / "chat_template.jinja").read_text()
TOOLS = json.loads((HERE / "tools.json").read_text())
TOOLS_HEAD = "\n\nTools, one JSON object per line:\n<tools>\n"
TOOLS_TAIL = (
    "\n</tools>\n\nTo call a tool, write its name and arguments as JSON between tool_call tags:\n"
    '<tool_call>\n{"name": <name>, "arguments": <object>}\n</tool_call>'
)


def render_system(system: str, tools: list[dict] | None) -> str:
    body = system.strip()
    if tools:
        lines = [
            json.dumps(
                {"type": "function", "function": {k: t["function"][k] for k in ("name", "description", "parameters")}},
                ensure_ascii=False,
            )
            for t in tools
        ]
        body += TOOLS_HEAD + "\n".join(lines) + TOOLS_TAIL
    return f"<|im_start|>system\n{body}<|im_end|>\n"


def render_assistant(m: dict) -> str:
    text = m["content"] or ""
    for c in m.get("tool_calls") or []:
        call = json.dumps({"name": c["name"], "arguments": c["arguments"]}, ensure_ascii=False)
        text += ("\n" if text else "") + f"<tool_call>\n{call}\n</tool_call>"
    return text + "<|im_end|>"


def segments(messages: list[dict]) -> list[tuple[str, bool]]:
    """Text pieces of a dialogue after the system turn; True marks what the assistant writes."""
    out, lead = [], ""
    for m in messages:
        if m["role"] == "assistant":
            out += [(lead + "<|im_start|>assistant\n", False), (render_assistant(m), True)]
            lead = "\n"
        else:
            body = f"<tool_response>\n{m['content']}\n</tool_response>" if m["role"] == "tool" else m["content"].strip()
            lead += f"<|im_start|>user\n{body}<|im_end|>\n"
    return out


def system_variant(rng: random.Random) -> str:
    """Other system turns: some rules left out or moved, a line before or after, tools in another order."""
    head, *rest = SYSTEM.split("\n")
    rules = [re.sub(r"^\d+\. ", "", line) for line in rest if re.match(r"\d+\. ", line)]
    if rng.random() < 0.7:
        rules = rng.sample(rules, rng.randint(3, len(rules)))
        system = head + "\n" + "\n".join("- " + line for line in rules)
    else:
        system = SYSTEM
    note = rng.choice(
        (
            "Session {h}.",
            "Request id: {h}",
            "Today is {d}.",
            "User: {w}.",
            "{h}",
            "The office is in {w}.",
            "Date: {d}. Session {h}.",
        )
    )
    note = note.format(
        h=f"{rng.getrandbits(48):012x}",
        d=f"{rng.randint(1, 28)} {rng.choice(P.MONTH)} {rng.randint(2019, 2027)}",
        w=rng.choice(WORDS).capitalize(),
    )
    x = rng.random()
    system = f"{note}\n{system}" if x < 0.35 else f"{system}\n\n{note}" if x < 0.6 else system
    return render_system(system, TOOLS if rng.random() < 0.7 else TOOLS[::-1])
