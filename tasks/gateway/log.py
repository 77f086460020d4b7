"""One JSON line per event, to standard output and to <state>/requests.log. What a request said is never in it.

A line that cannot be written (full disk, closed pipe) is counted and the request goes on: the log serves the gateway.
ARMWISE_LOG_PROMPTS=1 adds the request's body; keys and tokens travel in headers, and headers are never written.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO


def logs_prompts() -> bool:
    """Whether the user asked for request bodies in the log."""
    return os.environ.get("ARMWISE_LOG_PROMPTS") == "1"


class Log:
    """Appends lines; `on_error` is called for each that was lost."""

    def __init__(self, path: Path, *, echo: TextIO | None = None, on_error: Callable[[], None] = lambda: None) -> None:
        self.path = path
        self.file: TextIO | None = None  # opened by the first line
        self.echo = sys.stdout if echo is None else echo
        self.on_error = on_error

    def write(self, event: str, **fields: Any) -> None:
        """Write one line: at (seconds since the epoch), event, fields."""
        line = json.dumps({"at": round(time.time(), 6), "event": event, **fields}, default=str) + "\n"
        for stream_of in (self._file, self._echo):
            try:
                stream = stream_of()
                stream.write(line)
                stream.flush()
            except (OSError, ValueError):  # ValueError: the stream was closed
                self.on_error()

    def close(self) -> None:
        """Close the file; a later line opens it again."""
        file, self.file = self.file, None
        try:
            if file:
                file.close()
        except OSError:
            self.on_error()

    def _echo(self) -> TextIO:
        return self.echo

    def _file(self) -> TextIO:
        if self.file is None:
            self.file = self.path.open("a", buffering=1, encoding="utf-8")
        return self.file
