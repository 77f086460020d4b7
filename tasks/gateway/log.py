"""One JSON line per event, to <state>/requests.log and to standard output. What a request said is never in it.

Lines are whole whoever else writes: each is one write to a file opened for appending, and on standard output, which may
be a pipe that several workers share, no longer than a pipe takes at once. A longer line (a prompt) is in the file only.
A line that cannot be written (full disk, closed pipe) is counted and the request goes on: the log serves the gateway.
ARMWISE_LOG_PROMPTS=1 adds the request's body; keys and tokens travel in headers, and headers are never written.
"""

import json
import os
import select
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

_JSON = json.JSONEncoder(default=str, ensure_ascii=False)


def logs_prompts() -> bool:
    """Whether the user asked for request bodies in the log."""
    return os.environ.get("ARMWISE_LOG_PROMPTS") == "1"


class Log:
    """Appends lines; `on_error` is called for each that was lost."""

    def __init__(self, path: Path, *, echo: TextIO | None = None, on_error: Callable[[], None] = lambda: None) -> None:
        self.path = path
        self.file: int | None = None  # opened by the first line
        self.echo = sys.stdout if echo is None else echo
        self.on_error = on_error

    def write(self, event: str, **fields: Any) -> None:
        """Write one line: at (seconds since the epoch), event, fields."""
        text = _JSON.encode({"at": round(time.time(), 6), "event": event, **fields}) + "\n"
        line = text.encode("utf-8", "replace")
        try:
            if os.write(self._descriptor(), line) < len(line):
                self.on_error()
        except OSError:
            self.on_error()
        if len(line) <= select.PIPE_BUF:
            self._echo(text)

    def close(self) -> None:
        """Close the file; a later line opens it again."""
        file, self.file = self.file, None
        try:
            if file is not None:
                os.close(file)
        except OSError:
            self.on_error()

    def _echo(self, text: str) -> None:
        try:
            self.echo.write(text)
            self.echo.flush()
        except (OSError, ValueError):  # ValueError: the stream was closed
            self.on_error()

    def _descriptor(self) -> int:
        if self.file is None:
            self.file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        return self.file
