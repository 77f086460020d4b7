"""The bytes of a stream: server-sent events as vLLM writes them, each in an HTTP chunk of its own.

One event carries all tokens that one step brought. Text is escaped once, when it is sent; nothing else is built per
event but the joining of ready-made parts.
"""

import json
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from tasks.engines.sim.answers import Piece

DONE = b"data: [DONE]\n\n"
TAIL = b',"logprobs":null,"finish_reason":null}]}\n\n'
ROLE = b'{"role":"assistant","content":""}'
_escaped = json.encoder.encode_basestring_ascii
_json = json.JSONEncoder(separators=(",", ":")).encode


def opening(answer_id: str, created: int, model: str) -> bytes:
    """What all events of one stream begin with, up to their choices."""
    told = _json({"id": answer_id, "object": "chat.completion.chunk", "created": created, "model": model})
    return f"data: {told[:-1]},".encode()


def framed(event: bytes) -> bytes:
    """As one chunk of HTTP's chunked encoding."""
    return b"%x\r\n%b\r\n" % (len(event), event)


def event(opening: bytes, delta: bytes) -> bytes:
    return b'%b"choices":[{"index":0,"delta":%b%b' % (opening, delta, TAIL)


def delta(pieces: Sequence[Piece], call_id: str, reasoning_key: str = "reasoning") -> bytes:
    """The delta that carries these tokens."""
    if len(pieces) == 1 and pieces[0][0] == "content":
        return b'{"content":%b}' % _escaped(pieces[0][1]).encode()
    texts = {kind: "".join(text for _, text in run) for kind, run in groupby(pieces, key=lambda piece: piece[0])}
    found: dict[str, Any] = {}
    if "reasoning" in texts:
        found[reasoning_key] = texts["reasoning"]
    if "content" in texts:
        found["content"] = texts["content"]
    if "name" in texts:
        function = {"name": texts["name"], "arguments": texts.get("arguments", "")}
        found["tool_calls"] = [{"id": call_id, "type": "function", "index": 0, "function": function}]
    elif "arguments" in texts:
        found["tool_calls"] = [{"index": 0, "function": {"arguments": texts["arguments"]}}]
    return _json(found).encode()


def finish(opening: bytes, reason: str) -> bytes:
    """The event with the finish reason, which carries no token."""
    choice = f'"choices":[{{"index":0,"delta":{{}},"logprobs":null,"finish_reason":"{reason}"}}]}}\n\n'
    return opening + choice.encode()


def usage(opening: bytes, counts: dict[str, Any]) -> bytes:
    return opening + f'"choices":[],"usage":{_json(counts)}}}\n\n'.encode()


def error(message: str, status: int = 500) -> bytes:
    told = {"error": {"message": message, "type": "InternalServerError", "param": None, "code": status}}
    return f"data: {_json(told)}\n\n".encode()


def message(pieces: Sequence[Piece], call_id: str) -> dict[str, Any]:
    """The message of an answer that is not streamed."""
    texts = {kind: "".join(text for _, text in run) for kind, run in groupby(pieces, key=lambda piece: piece[0])}
    found: dict[str, Any] = {"role": "assistant", "content": texts.get("content", ""), "tool_calls": []}
    if "reasoning" in texts:
        found["reasoning"] = texts["reasoning"]
    if "name" in texts:
        function = {"name": texts["name"], "arguments": texts.get("arguments", "")}
        found["tool_calls"] = [{"id": call_id, "type": "function", "function": function}]
    return found
