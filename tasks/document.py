"""Declarations: strict YAML in, frozen records out, all faults of a file named at once.

A fault names the file, the field, what was found and what is allowed. A repeated key is a fault, since YAML would
silently keep the last one: a repeated --model flag once stalled a whole rollout.
"""

import hashlib
import json
from collections.abc import Hashable
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError
from yaml.constructor import ConstructorError

UNRESOLVED = "unresolved"  # what cannot be known here; `armwise pin` fills it in where there is a network


class InvalidDocument(ValueError):
    """One line per fault: file: field: what is wrong."""


class Document(BaseModel):
    """The one strict schema base: unknown fields are faults, records are frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    def digest(self) -> str:
        """sha256 of the canonical JSON: the content's identity, whatever the YAML's layout."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


class _StrictLoader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: dict[Hashable, int] = {}
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            line = key_node.start_mark.line + 1
            if key in seen:
                raise ConstructorError(None, None, f"'{key}' stands on line {seen[key]} and again on line {line}")
            seen[key] = line
        return super().construct_mapping(node, deep=deep)


Record = TypeVar("Record", bound=Document)


def read_yaml(path: Path) -> Any:
    """Parse one YAML file. Raises InvalidDocument for bad YAML, a repeated key or an unreadable file."""
    try:
        return yaml.load(path.read_text(encoding="utf-8"), Loader=_StrictLoader)
    except ConstructorError as error:
        raise InvalidDocument(f"{path}: repeated key: {error.problem}") from error
    except (yaml.YAMLError, UnicodeDecodeError, OSError) as error:
        raise InvalidDocument(f"{path}: cannot be read: {error}") from error


def read(path: Path, schema: type[Record]) -> Record:
    """Read one YAML file into its schema. Raises InvalidDocument with every fault."""
    return parse(read_yaml(path), schema, source=str(path))


def parse(content: Any, schema: type[Record], *, source: str) -> Record:
    """Validate parsed content. `source` is the name that faults carry."""
    if not isinstance(content, dict):
        raise InvalidDocument(f"{source}: must be a mapping, found {type(content).__name__}")
    try:
        return schema.model_validate_json(json.dumps(content, default=str))
    except ValidationError as error:
        raise InvalidDocument("\n".join(_line(source, fault, schema) for fault in error.errors())) from error


def _line(source: str, fault: Any, schema: type[BaseModel]) -> str:
    field = ".".join(str(part) for part in fault["loc"])
    if fault["type"] == "extra_forbidden":
        return f"{source}: {field}: not a known field; known: {', '.join(_known(schema, fault['loc'][:-1]))}"
    if fault["type"] == "missing":
        return f"{source}: {field}: is missing"
    where = f"{source}: {field}" if field else source
    found = "" if fault["type"] == "value_error" else f", found {fault['input']!r}"
    return f"{where}: {fault['msg'].removeprefix('Value error, ')}{found}"


def _known(schema: type[BaseModel], parents: tuple[Any, ...]) -> list[str]:
    """Field names at the place of a fault; walks the annotations of the schema."""
    for part in parents:
        if part not in schema.model_fields:
            continue
        kinds = _models(schema.model_fields[part].annotation)
        schema = kinds[0] if kinds else schema
    return sorted(schema.model_fields)


def _models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for inner in getattr(annotation, "__args__", ()) for model in _models(inner)]
