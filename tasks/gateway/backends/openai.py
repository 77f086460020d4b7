"""Any server that speaks the OpenAI chat protocol.

The end of an answer is found by its keys, in streams and plain answers alike, without rebuilding events or documents:
inside a JSON string every quote is escaped, so the bytes `"usage":{` can only be a real key, whatever the model wrote.
The last occurrence counts: servers that repeat the usage in every chunk end with the right one.
"""

import json
import re
from typing import Any

from tasks.gateway.backends import Ending

_USAGE = re.compile(rb'"usage"\s*:\s*(?=\{)')
_FINISH = re.compile(rb'"finish_reason"\s*:\s*"(\w+)"')
_DONE = re.compile(rb"^data: ?\[DONE\]\s*\Z", re.MULTILINE)
_ERROR = re.compile(rb'^(?:data: ?)?\{\s*"error"\s*:', re.MULTILINE)

EXAMPLES = [
    (
        b'data: {"choices":[{"index":0,"delta":{"content":""},"finish_reason":"tool_calls"}]}\n\n'
        b'data: {"choices":[],"usage":{"prompt_tokens":91,"total_tokens":101,"completion_tokens":10,'
        b'"prompt_tokens_details":{"cached_tokens":64}}}\n\ndata: [DONE]\n\n',
        Ending(91, 64, 10, "tool_calls", is_done=True),
    ),
    (
        b'{"choices":[{"message":{"content":"say \\"usage\\":{} twice"},"finish_reason":"stop"}],'
        b'"usage": {"prompt_tokens":7,"completion_tokens":2,"prompt_tokens_details":null}}',
        Ending(7, None, 2, "stop"),
    ),
    (b'data: {"error":{"message":"out of memory"}}\n\ndata: [DONE]\n\n', Ending(is_done=True, is_error=True)),
    (b'data: {"choices":[{"delta":{"content":"cut', Ending()),
]


def chat_url(base: str) -> str:
    """Takes the base with or without /v1, since people copy it either way."""
    return base.rstrip("/").removesuffix("/v1") + "/v1/chat/completions"


def headers(key: str | None) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"} if key else {}


def ending(tail: bytes) -> Ending:
    usage = _usage(tail)
    details = usage.get("prompt_tokens_details")
    reasons = _FINISH.findall(tail)
    return Ending(
        input_tokens=_count(usage.get("prompt_tokens")),
        cached_input_tokens=_count(details.get("cached_tokens")) if isinstance(details, dict) else None,
        output_tokens=_count(usage.get("completion_tokens")),
        finish_reason=reasons[-1].decode() if reasons else None,
        is_done=_DONE.search(tail) is not None,
        is_error=_ERROR.search(tail) is not None,
    )


def _usage(tail: bytes) -> dict[str, Any]:
    found = list(_USAGE.finditer(tail))
    if not found:
        return {}
    text = tail[found[-1].end() :].decode("utf-8", "replace")
    try:
        usage, _ = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):  # cut in the middle: the upstream died here
        return {}
    return usage if isinstance(usage, dict) else {}


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
