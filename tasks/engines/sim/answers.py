"""What the sim says, and into which tokens everything falls.

A golden case is played right: the last message of the user names it, how many assistant messages follow is the step,
and step k is one sentence and then expected call k; after the last call comes the reference answer. Any other prompt
gets filler, whose length and words depend on prompt and seed alone.

A piece is a token that is sent: its kind (content, reasoning, name or arguments of a tool call) and its text. Prompts
fall into tokens the same way, so an answer that comes back in the next prompt is the same tokens again, and the prefix
cache finds it. Tokens are words and marks, not those of the model's own tokenizer: counts are of the right order.
"""

import hashlib
import json
import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any

from tasks import settings

TOKEN = re.compile(r"\s?\w+|\s?[^\w\s]|\s")
FILLER = ("the", "server", "counts", "what", "it", "sent", "and", "when", "so", "that", "nobody", "has", "to", "guess")
SHORTEST, SPREAD = 24, 81  # tokens of filler, ours: 24 to 104
Piece = tuple[str, str]
Message = Mapping[str, Any]


@dataclass(frozen=True)
class Reply:
    """One answer: text, and the tool call that follows it, if any."""

    content: str
    tool: str | None = None
    arguments: str = ""


@dataclass
class Answer:
    """What will be sent, token by token. `is_cut`: the limit ended it."""

    pieces: list[Piece]
    is_cut: bool = False
    has_call: bool = False

    @property
    def finish_reason(self) -> str:
        return "length" if self.is_cut else "tool_calls" if self.has_call else "stop"


@dataclass(frozen=True)
class Asked:
    """What a request's body asks for, as far as it matters here."""

    messages: Sequence[Message]
    tools: Sequence[Any] = ()
    limit: int | None = None
    is_fixed: bool = False  # ignore_eos, or min_tokens equal to the limit
    parses_calls: bool = True
    seed: int = 0
    struck: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@lru_cache(maxsize=4096)
def tokens(text: str) -> tuple[str, ...]:
    """Pieces of text; joined, they are the text again."""
    return tuple(TOKEN.findall(text))


@cache
def cases() -> dict[str, dict[str, Any]]:
    """Query -> case, of every golden set of the checkout."""
    paths = sorted((settings.root() / "golden_set").glob("*/cases.jsonl"))
    lines = [line for path in paths for line in path.read_text(encoding="utf-8").splitlines()]
    return {case["query"]: case for case in map(json.loads, lines)}


def prompt(messages: Sequence[Message], tools: Sequence[Any]) -> list[str]:
    """A chat as tokens, up to where the assistant begins to speak."""
    found = ["<tools>", *tokens(json.dumps(tools))] if tools else []
    for message in messages:
        found += [f"<{message.get('role')}>", *tokens(text_of(message))]
        for call in message.get("tool_calls") or ():
            function = call["function"]
            found += [f"<call>{function['name']}", *tokens(function["arguments"])]
        found.append("<end>")
    return [*found, "<assistant>"]


def spoken(pieces: Sequence[Piece]) -> list[str]:
    """An answer as the tokens that it will be in a later prompt."""
    return [f"<call>{text}" if kind == "name" else text for kind, text in pieces]


def block_hashes(words: Sequence[str], size: int, salt: str) -> tuple[Hashable, ...]:
    """One hash per full block: of its tokens, all before it, and the salt."""
    digest, found = salt.encode(), []
    for start in range(0, len(words) - size + 1, size):
        digest = hashlib.blake2b(digest + "\x1f".join(words[start : start + size]).encode(), digest_size=16).digest()
        found.append(digest)
    return tuple(found)


def digest(words: Sequence[str]) -> str:
    """Identity of a prompt."""
    return hashlib.blake2b("\x1f".join(words).encode(), digest_size=12).hexdigest()


def answer(asked: Asked) -> Answer:
    """The next thing that a perfect model would say, planted faults of the words included."""
    reply = _reply(asked)
    pieces: list[Piece] = [("content", text) for text in tokens(reply.content)]
    has_call = reply.tool is not None and asked.parses_calls
    if reply.tool is not None and has_call:
        pieces += [("name", reply.tool), *(("arguments", text) for text in tokens(_arguments(reply, asked)))]
    elif reply.tool is not None:
        call = f'\n<tool_call>\n{{"name": "{reply.tool}", "arguments": {_arguments(reply, asked)}}}\n</tool_call>'
        pieces += [("content", text) for text in tokens(call)]
    if reasoning := asked.struck.get("reasoning"):
        pieces = [("reasoning", f" {word}") for word in _words("thought", int(reasoning["tokens"]))] + pieces
    return _bounded(Answer(pieces, has_call=has_call), asked)


def text_of(message: Message) -> str:
    """Text of a message, whose content may be a list of parts."""
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def _reply(asked: Asked) -> Reply:
    last = max((i for i, message in enumerate(asked.messages) if message.get("role") == "user"), default=-1)
    case = cases().get(text_of(asked.messages[last])) if last >= 0 else None
    if case is None:
        return Reply(_filler(asked))
    step = sum(message.get("role") == "assistant" for message in asked.messages[last + 1 :])
    calls = case["expected_calls"]
    if step >= len(calls) or not asked.tools:
        return Reply(case["reference_answer"])
    call = calls[step]
    return Reply(f"I will use {call['name']} for step {step + 1}.", call["name"], json.dumps(call["arguments"]))


def _arguments(reply: Reply, asked: Asked) -> str:
    is_bad = "bad_tool_json" in asked.struck
    return reply.arguments[:-2].replace(":", "", 1) if is_bad else reply.arguments


def _filler(asked: Asked) -> str:
    text = f"{asked.seed}/" + "\n".join(text_of(message) for message in asked.messages)
    length = SHORTEST + int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "big") % SPREAD
    return " ".join(_words(text, length))


def _words(text: str, count: int) -> list[str]:
    start = len(text)
    return [FILLER[(start + i) % len(FILLER)] for i in range(count)]


def _bounded(found: Answer, asked: Asked) -> Answer:
    """Cut at the limit; filled up to it where the length is fixed."""
    limit = len(found.pieces) if asked.limit is None else asked.limit
    if asked.is_fixed:
        found.pieces += [("content", f" {word}") for word in _words("so", max(0, limit - len(found.pieces)))]
        found.is_cut = True
        if short := asked.struck.get("short_output"):
            found.is_cut, limit = False, max(1, int(limit * short["share"]))
    elif len(found.pieces) > limit:
        found.is_cut = True
    del found.pieces[limit:]
    return found
