"""What the tasks of one DAG run print and fail with, as they do: read from Airflow's log files, not through its API.

The machine measures while this watches, so it stays cheap: it only reads what was appended.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PRINTED = "task.stdout"


class Tail:
    """New lines of all tasks of one DAG run; `news` may be called as often as one likes."""

    def __init__(self, logs: Path, dag_id: str, run_id: str) -> None:
        self.folder = logs / f"dag_id={dag_id}" / f"run_id={run_id}"
        self._read: dict[Path, int] = {}
        self._last: dict[str, str] = {}

    def news(self) -> Iterator[tuple[str, str]]:
        """(task id, line) of what was printed since the last call, oldest task first; a repeated line is left out."""
        for path in sorted(self.folder.glob("task_id=*/attempt=*.log"), key=lambda p: p.stat().st_ctime):
            task = path.parent.name.removeprefix("task_id=")
            for line in self._appended(path):
                if line != self._last.get(task):
                    self._last[task] = line
                    yield task, line

    def _appended(self, path: Path) -> Iterator[str]:
        with path.open("rb") as file:
            file.seek(self._read.get(path, 0))
            content = file.read()
        complete = content[: content.rfind(b"\n") + 1]
        self._read[path] = self._read.get(path, 0) + len(complete)
        for line in complete.splitlines():
            event = _parsed(line)
            if event.get("logger") == PRINTED:
                yield str(event["event"])
            for fault in event.get("error_detail") or ():
                yield f"{fault['exc_type']}: {fault['exc_value']}"


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
