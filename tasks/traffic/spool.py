"""Rows that survive a kill: one JSON line, one write, straight to the kernel.

A row that was appended is safe from the death of the process (not of the machine: nothing waits for the disk while it
measures). A row that does not fit on a full disk is taken out again, and the spool refuses all that follow.
"""

import errno
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class SpoolBroken(RuntimeError):
    """A row could not be written; the message names the file and why. What was written before stays."""


class Spool:
    """One file of rows. Raises FileExistsError if it is there: rows of two tries must not mix."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self.broken: str | None = None
        self.file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o644)

    def append(self, row: Mapping[str, Any]) -> None:
        """Write one row. Raises SpoolBroken."""
        if self.broken:
            raise SpoolBroken(self.broken)
        line = (json.dumps(row, ensure_ascii=False, default=str) + "\n").encode("utf-8", errors="replace")
        try:
            written = os.write(self.file, line)
            if written < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            os.ftruncate(self.file, self.size)
            self.broken = (
                f"{self.path}: a row could not be written: {error.strerror}; {self.size} bytes of rows are kept"
            )
            raise SpoolBroken(self.broken) from error
        self.size += written

    def close(self) -> None:
        os.close(self.file)
