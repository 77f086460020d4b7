"""What the sim really did: one JSON line per request, and one per event of the server's life.

    {"what": "request", "id", "number", "arrived_ns", "waited_s", "prompt", "cached", "output", "preemptions",
     "faults": [...], "end", "sent": [[ns, "role" | "tokens" | "finish" | "usage" | "error" | "done", tokens, due_ns]]}
    {"what": "start" | "restart" | "stop" | "faults", "at_ns", ...}

Stamps are of the monotonic clock of the machine, the one that a client on it reads, taken just before the system call
that sent the bytes; `due_ns` is when the model had them ready, so the sim's own lateness is known. `arrived_ns` is when
all of a request was read; `waited_s` is from there to the start of its first step, in seconds of the model. A line is
written when its request ends; requests in flight at a stop or a restart are written then.
"""

import json
import time
from pathlib import Path
from typing import Any


class Record:
    """Appends to a file, or drops everything if there is none."""

    def __init__(self, path: str | None) -> None:
        self.file = None
        if path:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            self.file = Path(path).open("a", encoding="utf-8", buffering=1)  # noqa: SIM115 (open while the server is)

    def note(self, what: str, **told: Any) -> None:
        if self.file is not None:
            self.file.write(json.dumps({"what": what, "at_ns": time.monotonic_ns(), **told}) + "\n")


def read(path: Path) -> list[dict[str, Any]]:
    """All lines of a record, a torn last one left out."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]
