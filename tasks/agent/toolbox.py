"""The tools as the model sees them, and what happens when it calls one.

A tool is a file in tasks/agent/tools: one typed function whose docstring the model reads, and EXAMPLES. Its JSON schema
is derived from the signature: Annotated[type, what the parameter means], Literal for a choice, `| None` with a default
for what may be left out. The keyword `desk` is what the played task can touch; the model never sees it. Which tools are
offered, and in which order, is said by a golden set's tools.json: a model may have been trained on that very text.

Arguments come from the model: they may be anything. What does not fit raises BadCall with words that the model can use.
"""

import inspect
import json
import types
import typing
from collections.abc import Callable
from functools import cache
from typing import Annotated, Any

from tasks import catalog
from tasks.agent import tools
from tasks.agent.desk import Desk

MOST_CHARS = 16_000  # of one tool's output: the model's context is finite
_JSON_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean"}


class BadCall(ValueError):
    """A call that names no tool, is not JSON, or does not fit the tool's schema."""


@cache
def names() -> tuple[str, ...]:
    return tuple(catalog.module_names(tools))


@cache
def function(name: str) -> Callable[..., Any]:
    """The function of a tool. Raises UnknownName."""
    return getattr(catalog.module_of(tools, name), name)  # type: ignore[no-any-return]


@cache
def schema(name: str) -> dict[str, Any]:
    """The schema of one tool, as it is sent to the model."""
    tool = function(name)
    parameters, required = {}, []
    for parameter, kind in _parameters(name).items():
        parameters[parameter] = _property(kind)
        if inspect.signature(tool).parameters[parameter].default is inspect.Parameter.empty:
            required.append(parameter)
    schema = {"type": "object", "properties": parameters, "required": required}
    description = " ".join((tool.__doc__ or "").split())
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


def call(name: str, arguments: dict[str, Any], desk: Desk) -> str:
    """Carry out one parsed call. Returns the tool's output, cut at MOST_CHARS; a tool that failed says so in it."""
    try:
        result = function(name)(**arguments, **({"desk": desk} if _takes_desk(name) else {}))
    except (OSError, ValueError) as error:  # a live search that failed: the model is told, the task goes on
        result = {"error": f"{name} failed: {error}"}
    output = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
    return output if len(output) <= MOST_CHARS else output[:MOST_CHARS] + " ... (cut)"


def parse(name: str, arguments: str) -> dict[str, Any]:
    """The arguments of a call, checked against the tool's schema. An optional one that is null is left out.

    Raises BadCall.
    """
    if name not in names():
        raise BadCall(f"no tool '{name}'; known: {', '.join(names())}")
    try:
        content = json.loads(arguments)
    except (ValueError, RecursionError) as error:
        raise BadCall(f"{name}: arguments are not JSON: {error}") from error
    if not isinstance(content, dict):
        raise BadCall(f"{name}: arguments must be an object, found {type(content).__name__}")
    declared = schema(name)["function"]["parameters"]
    given = {key: value for key, value in content.items() if value is not None or key in declared["required"]}
    faults = [f"{key}: is missing" for key in declared["required"] if key not in given]
    faults += [words for key, value in given.items() if (words := _misfit(key, value, declared["properties"]))]
    if faults:
        raise BadCall(f"{name}: {'; '.join(faults)}")
    return given


@cache
def _takes_desk(name: str) -> bool:
    return "desk" in inspect.signature(function(name)).parameters


def _misfit(key: str, value: Any, properties: dict[str, dict[str, Any]]) -> str | None:
    if key not in properties:
        return f"{key[:80]}: not a parameter; known: {', '.join(properties)}"
    wanted = next(kind for kind, name in _JSON_TYPES.items() if name == properties[key]["type"])
    if type(value) is not wanted:
        return f"{key}: must be {properties[key]['type']}, found {type(value).__name__}"
    if isinstance(value, str) and value != value.encode("utf-8", "replace").decode():
        return f"{key}: must be text that can be encoded"  # half of a surrogate pair, which no engine takes back
    allowed = properties[key].get("enum")
    if allowed and value not in allowed:
        return f"{key}: must be one of {', '.join(allowed)}, found {str(value)[:80]!r}"
    return None


def _parameters(name: str) -> dict[str, Any]:
    """Parameter -> its annotation, without `desk`."""
    hints = typing.get_type_hints(function(name), include_extras=True)
    return {key: kind for key, kind in hints.items() if key not in ("desk", "return")}


def _property(annotation: Any) -> dict[str, Any]:
    is_said = typing.get_origin(annotation) is Annotated
    kind, says = typing.get_args(annotation) if is_said else (annotation, None)
    description = {"description": says} if says else {}
    if isinstance(kind, types.UnionType):
        kind = next(k for k in typing.get_args(kind) if k is not type(None))
    if typing.get_origin(kind) is typing.Literal:
        return {"type": "string", "enum": list(typing.get_args(kind))} | description
    return {"type": _JSON_TYPES[kind]} | description
