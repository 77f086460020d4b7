"""What a streamed answer said: pieces of its body in, tokens, chunks and faults out. Pure: no clock, no socket.

- A chunk is a delta that carried something: content, reasoning, a tool call's name or arguments. A delta with a role
  alone is no token. Servers write reasoning as `reasoning` or `reasoning_content`, some as both: one delta, one chunk.
- Token counts come from the server's `usage` alone; with usage in every event the last one counts.
- The first fault of a stream is its failure. A stream that ends without finish_reason or without [DONE] is truncated,
  and half an event at its very end is part of that.

JSON is read by orjson, a fifth of the standard library's time; the latter decides about what orjson does not take.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import orjson

from tasks.metrics import STALL_MS
from tasks.traffic.calls import Calls, Fault, text
from tasks.traffic.sse import COMMENT, JUNK, Piece, events

KINDS = ("role", "content", "reasoning", "tool_call", "end", "usage", "error", "comment")
BROKEN_ENDS = ("abort", "error")  # finish reasons with which engines end what they could not finish
NO_CONNECTION = ("upstream_refused", "upstream_unreachable", "upstream_connect_timeout")
DETAIL_CHARS = 300


@dataclass
class Heard:
    """What one stream said. Failure is a key of record.FAILURES or None.

    `kinds` counts what came, by KINDS: a delta with several things in it counts for each of them; `end` is one that
    says nothing but why the answer ends, or nothing at all.
    """

    content: str = ""
    reasoning: str = ""
    tool_calls: list[dict[str, str]] = field(default_factory=list)
    chunks_ns: list[int] = field(default_factory=list)
    reasoning_chunks: int = 0
    first_answer_ns: int | None = None
    input_tokens: int | None = None
    cached_input_tokens: int | None = None
    output_tokens: int | None = None
    finish_reason: str | None = None
    is_done: bool = False
    failure: str | None = None
    failure_detail: str | None = None
    kinds: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))

    @property
    def is_complete(self) -> bool:
        return self.is_done and self.finish_reason is not None


def listen(pieces: Iterable[Piece]) -> Heard:
    """Read a 200's body. Never raises: what is wrong is the failure of the result."""
    listener, junk, is_stream = _Listener(), list[bytes](), False
    heard = listener.heard
    for arrived_ns, name, data, is_whole in events(pieces):
        if name == JUNK:
            junk.append(data)
        is_stream = is_stream or name not in (JUNK, COMMENT)
        try:
            listener.event(arrived_ns, name, data)
        except Fault as fault:
            heard.kinds["error"] += fault.kind == "error_event"
            if is_whole and heard.failure is None:
                heard.failure, heard.failure_detail = fault.kind, str(fault)[:DETAIL_CHARS]
    listener.end()
    if junk and not is_stream:
        _no_stream(heard, b"\n".join(junk))
    _judge_end(heard)
    return heard


def _no_stream(heard: Heard, body: bytes) -> None:
    message = error_message(body)
    heard.failure = "error_event" if message else "malformed"
    heard.failure_detail = message or f"not an event stream: {_head(body)}"


def fields(heard: Heard) -> dict[str, Any]:
    """The fields of record.REQUEST that a stream tells."""
    stamps = heard.chunks_ns
    gaps = [b - a for a, b in pairwise(stamps)]
    return {
        "t_first_token_ns": stamps[0] if stamps else None,
        "t_first_answer_ns": heard.first_answer_ns,
        "t_last_token_ns": stamps[-1] if stamps else None,
        "finish_reason": heard.finish_reason,
        "input_tokens": heard.input_tokens,
        "cached_input_tokens": heard.cached_input_tokens,
        "output_tokens": heard.output_tokens,
        "chunks": len(stamps),
        "reasoning_chunks": heard.reasoning_chunks,
        "tool_calls": len(heard.tool_calls),
        "icl_ms_max": max(gaps) / 1e6 if gaps else None,
        "stalls": sum(gap > STALL_MS * 1e6 for gap in gaps) if gaps else None,
        "failure": heard.failure,
        "failure_detail": heard.failure_detail,
    }


def error_message(body: bytes) -> str | None:
    """The message of an error body in the shapes servers use: {"error": {"message"}}, {"error": text}, {"message"}."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        return None
    error = _error(content) if isinstance(content, dict) else None
    return error[:DETAIL_CHARS] if error else None


def is_no_connection(body: bytes) -> bool:
    """Whether an error body is the gateway's word for: there is no connection to the engine."""
    try:
        kind = json.loads(body)["error"]["type"]
    except (ValueError, RecursionError, KeyError, TypeError):
        return False
    return kind in NO_CONNECTION


def _error(content: dict[str, Any]) -> str | None:
    error = content.get("error")
    if isinstance(error, dict):
        return str(error.get("message") or error)
    if error:
        return str(error)
    if content.get("object") == "error" or ("choices" not in content and content.get("message")):
        return str(content.get("message") or content)
    return str(content["detail"]) if content.get("detail") else None


class _Listener:
    """Puts a Heard together, event by event."""

    def __init__(self) -> None:
        self.heard, self.calls = Heard(), Calls()
        self.content, self.reasoning = list[str](), list[str]()

    def event(self, at: int, name: str, data: bytes) -> None:
        """Raises Fault; what the event said before the fault is kept."""
        if name == COMMENT:
            self.heard.kinds["comment"] += 1
        elif name == JUNK:
            raise Fault("malformed", f"{JUNK}: {_head(data)}")
        elif data.strip() == b"[DONE]":
            self.heard.is_done = True
        else:
            self._content(at, name, data)

    def _content(self, at: int, name: str, data: bytes) -> None:
        content = _parsed(data)
        choices, usage = content.get("choices"), content.get("usage")
        is_plain = choices and not name and "error" not in content and "detail" not in content
        if not is_plain and (name == "error" or _error(content)):
            raise Fault("error_event", _error(content) or str(content))
        if usage:
            _usage(self.heard, usage)
        if not isinstance(choices, list) and not usage:
            raise Fault("malformed", f"an event without choices: {_head(data)}")
        for choice in choices or ():
            self._choice(at, choice)

    def end(self) -> None:
        heard = self.heard
        heard.content, heard.reasoning = "".join(self.content), "".join(self.reasoning)
        heard.tool_calls = self.calls.all()

    def _choice(self, at: int, choice: Any) -> None:
        delta = (choice.get("delta") or {}) if isinstance(choice, dict) else None
        if not isinstance(delta, dict):
            raise Fault("malformed", f"a choice without a delta: {str(choice)[:80]}")
        reasoning = text(delta, "reasoning") or text(delta, "reasoning_content")
        content = text(delta, "content") or text(delta, "refusal")
        calls = delta.get("tool_calls")
        self._carry(at, delta, reasoning, content, is_call=calls is not None and self.calls.add(calls))
        if reason := choice.get("finish_reason"):
            self.heard.finish_reason = str(reason)
            if reason in BROKEN_ENDS:
                raise Fault("error_event", f"the engine ended the answer with finish_reason {reason}")

    def _carry(self, at: int, delta: dict[str, Any], reasoning: str, content: str, *, is_call: bool) -> None:
        """Note what one delta carried: at most one chunk, whatever it was."""
        heard, kinds = self.heard, self.heard.kinds
        if not (content or reasoning or is_call):
            kinds["role" if "role" in delta else "end"] += 1
            return
        heard.chunks_ns.append(at)
        if reasoning:
            self.reasoning.append(reasoning)
            heard.reasoning_chunks += 1
            kinds["reasoning"] += 1
        if content:
            self.content.append(content)
            kinds["content"] += 1
        kinds["tool_call"] += is_call
        if heard.first_answer_ns is None and (content or is_call):
            heard.first_answer_ns = at


def _parsed(data: bytes) -> dict[str, Any]:
    try:
        content = orjson.loads(data)
    except ValueError:
        content = _parsed_by_the_book(data)
    if not isinstance(content, dict):
        raise Fault("malformed", f"an event that is not an object: {_head(data)}")
    return content


def _parsed_by_the_book(data: bytes) -> Any:
    """What orjson refuses and Python reads: NaN, half of a surrogate pair."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Fault("malformed", f"an event that is not JSON: {_head(data)}") from error


def _usage(heard: Heard, usage: Any) -> None:
    heard.kinds["usage"] += 1
    if not isinstance(usage, dict):
        raise Fault("malformed", f"usage is not an object: {str(usage)[:80]}")
    details = usage.get("prompt_tokens_details")
    heard.input_tokens = _count(usage.get("prompt_tokens"))
    heard.output_tokens = _count(usage.get("completion_tokens"))
    heard.cached_input_tokens = _count(details.get("cached_tokens")) if isinstance(details, dict) else None


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _judge_end(heard: Heard) -> None:
    if heard.failure is not None:
        return
    if not heard.is_complete:
        lacks = [
            word
            for word, is_there in (("finish_reason", heard.finish_reason), ("[DONE]", heard.is_done))
            if not is_there
        ]
        heard.failure, heard.failure_detail = "truncated", f"the stream ended without {' and '.join(lacks)}"
    elif not heard.chunks_ns:
        heard.failure, heard.failure_detail = "empty", "no content, reasoning or tool call"


def _head(data: bytes) -> str:
    return data[:80].decode(errors="replace")
