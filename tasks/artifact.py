"""Files of a run folder. Written under a temporary name and renamed: a file that exists is complete.

Rows that must survive a kill go to a spool (JSON lines, one write per row); `read_rows` forgives exactly one torn last
line, which is what a kill leaves behind.
"""

import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


class BrokenArtifact(ValueError):
    """A file of a run folder that cannot be read; names the file, the line and what was found."""


def write_once(path: Path, content: Mapping[str, Any]) -> Path:
    """Write one JSON document, unless it exists: a stage never edits what it left. Returns path."""
    return path if path.exists() else write(path, content)


def write(path: Path, content: Mapping[str, Any]) -> Path:
    """Write one JSON document atomically. Raises OSError (a full disk) and leaves no half file. Returns path."""
    return write_bytes(path, (json.dumps(content, indent=1, default=str) + "\n").encode())


def write_bytes(path: Path, content: bytes) -> Path:
    """Write bytes atomically and durably: temporary file, fsync, rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return path


def read(path: Path) -> dict[str, Any]:
    """Read one JSON document. Raises BrokenArtifact if it is missing or broken."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise BrokenArtifact(f"{path}: is missing") from error
    except (OSError, ValueError) as error:
        raise BrokenArtifact(f"{path}: cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise BrokenArtifact(f"{path}: must be a JSON object, found {type(content).__name__}")
    return content


def optional(folder: Path, name: str) -> dict[str, Any]:
    """Read <name>.json of a folder; empty if it is not there. Raises BrokenArtifact if it is broken."""
    path = folder / f"{name}.json"
    return read(path) if path.exists() else {}


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    """Write JSON lines atomically."""
    return write_bytes(path, "".join(json.dumps(row, default=str) + "\n" for row in rows).encode())


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Read JSON lines. A torn last line is dropped; any other broken line raises BrokenArtifact. Missing: no rows."""
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            if line:
                rows.append(json.loads(line))
        except ValueError as error:
            if number == len(lines):
                break  # no newline after it: the writer was killed in the middle of this row
            raise BrokenArtifact(f"{path}:{number}: not JSON: {line[:80]!r}") from error
    return rows
