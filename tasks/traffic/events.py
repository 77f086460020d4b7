"""What a streamed answer said: server-sent events in, tokens, chunks and faults out. Pure: no clock, no socket.

The input is the body in pieces as they arrived, each with its stamp. An event is there when its closing blank line is,
so its stamp is that of the piece which brought it; however the network cut the bytes, the events are the same.

- A chunk is a delta that carried something: content, reasoning, a tool call's name or arguments. A delta with a role
  alone is no token. Servers write reasoning as `reasoning` or `reasoning_content`, some as both: one delta, one chunk.
- Token counts come from the server's `usage` alone; with usage in every event the last one counts.
- The first fault of a stream is its failure. A stream that ends without finish_reason or without [DONE] is truncated,
  and half an event at its very end is part of that.
- Lines end with LF or CRLF. A lone CR, which the standard also allows, is not known from any server of this field.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

Piece = tuple[int, bytes]  # arrival in ns of a monotonic clock, and what arrived
FIELDS = (b"data", b"event", b"id", b"retry")
JUNK = "a line that is no field of an event"
BROKEN_ENDS = ("abort", "error")  # finish reasons with which engines end what they could not finish
NO_CONNECTION = ("upstream_refused", "upstream_unreachable", "upstream_connect_timeout")
DETAIL_CHARS = 300


@dataclass
class Heard:
    """What one stream said. Failure is a key of record.FAILURES or None."""

    content: str = ""
    reasoning: str = ""
    tool_calls: list[dict[str, str]] = field(default_factory=list)
    chunks_ns: list[int] = field(default_factory=list)
    first_answer_ns: int | None = None
    input_tokens: int | None = None
    cached_input_tokens: int | None = None
    output_tokens: int | None = None
    finish_reason: str | None = None
    is_done: bool = False
    failure: str | None = None
    failure_detail: str | None = None

    @property
    def is_complete(self) -> bool:
        return self.is_done and self.finish_reason is not None


class _Fault(Exception):
    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind


def listen(pieces: Iterable[Piece]) -> Heard:
    """Read a 200's body. Never raises: what is wrong is the failure of the result."""
    pieces = list(pieces)
    heard, calls, said = Heard(), _Calls(), list(events(pieces))
    for arrived_ns, name, data, is_whole in said:
        try:
            _event(heard, calls, arrived_ns, name, data)
        except _Fault as fault:
            if is_whole and heard.failure is None:
                heard.failure, heard.failure_detail = fault.kind, str(fault)[:DETAIL_CHARS]
    heard.tool_calls = calls.all()
    if said and all(name == JUNK for _, name, _, _ in said):
        _no_stream(heard, b"".join(piece for _, piece in pieces))
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
        "tool_calls": len(heard.tool_calls),
        "icl_ms_max": max(gaps) / 1e6 if gaps else None,
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


def events(pieces: Iterable[Piece]) -> Iterator[tuple[int, str, bytes, bool]]:
    """(arrival in ns, name of the event, data, whether its end arrived). What is no field of an event is named JUNK."""
    name, data, at, is_whole = "", list[bytes](), 0, True
    for at, line, is_whole in _lines(pieces):
        key, _, value = line.partition(b":")
        if not line:
            if data:
                yield at, name, b"\n".join(data), True
            name, data = "", []
        elif key == b"data":
            data.append(value.removeprefix(b" "))
        elif key == b"event":
            name = value.strip().decode(errors="replace")
        elif key not in (b"", *FIELDS) and (is_whole or not _begins_field(line)):
            yield at, JUNK, line, is_whole
    if data:
        yield at, name, b"\n".join(data), False


def _begins_field(line: bytes) -> bool:
    return any(field.startswith(line) for field in FIELDS)


def _lines(pieces: Iterable[Piece]) -> Iterator[tuple[int, bytes, bool]]:
    rest, at = list[bytes](), 0
    for at, piece in pieces:
        *whole, tail = piece.split(b"\n")
        for line in whole:
            yield at, b"".join([*rest, line]).removesuffix(b"\r"), True
            rest = []
        rest.append(tail)
    if last := b"".join(rest).removesuffix(b"\r"):
        yield at, last, False


def _event(heard: Heard, calls: "_Calls", at: int, name: str, data: bytes) -> None:
    if name == JUNK:
        raise _Fault("malformed", f"{JUNK}: {_head(data)}")
    if data.strip() == b"[DONE]":
        heard.is_done = True
        return
    content = _parsed(data)
    if name == "error" or _error(content):
        raise _Fault("error_event", _error(content) or str(content))
    choices = content.get("choices")
    _usage(heard, content.get("usage"))
    if not isinstance(choices, list) and not content.get("usage"):
        raise _Fault("malformed", f"an event without choices: {_head(data)}")
    for choice in choices or []:
        _choice(heard, calls, at, choice)


def _parsed(data: bytes) -> dict[str, Any]:
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _Fault("malformed", f"an event that is not JSON: {_head(data)}") from error
    if not isinstance(content, dict):
        raise _Fault("malformed", f"an event that is not an object: {_head(data)}")
    return content


def _choice(heard: Heard, calls: "_Calls", at: int, choice: Any) -> None:
    delta = (choice.get("delta") or {}) if isinstance(choice, dict) else None
    if not isinstance(delta, dict):
        raise _Fault("malformed", f"a choice without a delta: {str(choice)[:80]}")
    reasoning = _text(delta, "reasoning") or _text(delta, "reasoning_content")
    content = _text(delta, "content") or _text(delta, "refusal")
    is_call = calls.add(delta.get("tool_calls"))
    heard.reasoning += reasoning
    heard.content += content
    if reasoning or content or is_call:
        heard.chunks_ns.append(at)
    if (content or is_call) and heard.first_answer_ns is None:
        heard.first_answer_ns = at
    if reason := choice.get("finish_reason"):
        heard.finish_reason = str(reason)
        if reason in BROKEN_ENDS:
            raise _Fault("error_event", f"the engine ended the answer with finish_reason {reason}")


def _text(delta: dict[str, Any], key: str) -> str:
    value = delta.get(key)
    if value is not None and not isinstance(value, str):
        raise _Fault("malformed", f"delta.{key} is not text: {str(value)[:80]}")
    return value or ""


class _Calls:
    """Tool calls put together from their parts, by index; a server that sends no index continues the last one."""

    def __init__(self) -> None:
        self.parts: dict[int, dict[str, str]] = {}

    def add(self, deltas: Any) -> bool:
        """Whether any part carried a name or arguments."""
        if deltas is not None and not isinstance(deltas, list):
            raise _Fault("malformed", f"delta.tool_calls is not a list: {str(deltas)[:80]}")
        return any([self._add_one(part) for part in deltas or []])  # a list: every part is added

    def _add_one(self, part: Any) -> bool:
        function = (part.get("function") or {}) if isinstance(part, dict) else None
        if not isinstance(function, dict):
            raise _Fault("malformed", f"a tool call that is not an object: {str(part)[:80]}")
        call = self.parts.setdefault(self._index(part), {"id": "", "name": "", "arguments": ""})
        name, arguments = _text(function, "name"), _text(function, "arguments")
        call["id"] = call["id"] or _text(part, "id")
        call["name"] += name
        call["arguments"] += arguments
        return bool(name or arguments)

    def _index(self, part: dict[str, Any]) -> int:
        index = part.get("index")
        if isinstance(index, int):
            return index
        last = max(self.parts, default=-1)
        return last + 1 if part.get("id") or last < 0 else last

    def all(self) -> list[dict[str, str]]:
        ordered = [self.parts[index] for index in sorted(self.parts)]
        return [call | {"id": call["id"] or f"call_{number}"} for number, call in enumerate(ordered)]


def _usage(heard: Heard, usage: Any) -> None:
    if not usage:
        return
    if not isinstance(usage, dict):
        raise _Fault("malformed", f"usage is not an object: {str(usage)[:80]}")
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
