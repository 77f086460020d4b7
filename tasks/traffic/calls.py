"""Tool calls of a streamed answer, put together from their parts. Pure."""

from typing import Any


class Fault(Exception):
    """What an event has wrong: a key of record.FAILURES, and the words."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind


def text(delta: dict[str, Any], key: str) -> str:
    """The text under a key, empty where there is none. Raises Fault."""
    value = delta.get(key)
    if value is not None and not isinstance(value, str):
        raise Fault("malformed", f"delta.{key} is not text: {str(value)[:80]}")
    return value or ""


class Calls:
    """Tool calls put together from their parts, by index; a server that sends no index continues the last one."""

    def __init__(self) -> None:
        self.parts: dict[int, dict[str, str]] = {}

    def add(self, deltas: Any) -> bool:
        """Whether any part carried a name or arguments."""
        if deltas is not None and not isinstance(deltas, list):
            raise Fault("malformed", f"delta.tool_calls is not a list: {str(deltas)[:80]}")
        return any([self._add_one(part) for part in deltas or []])  # a list: every part is added

    def _add_one(self, part: Any) -> bool:
        function = (part.get("function") or {}) if isinstance(part, dict) else None
        if not isinstance(function, dict):
            raise Fault("malformed", f"a tool call that is not an object: {str(part)[:80]}")
        call = self.parts.setdefault(self._index(part), {"id": "", "name": "", "arguments": ""})
        name, arguments = text(function, "name"), text(function, "arguments")
        call["id"] = call["id"] or text(part, "id")
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
