"""How a tier is getting on, read from its own rows: the spools are the only word between client and stage.

Rows are stamped by the monotonic clock, which is one for all processes of a machine.
"""

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tasks import rows
from tasks.plan import Tier

WINDOW_S = 10.0


@dataclass
class Follower:
    """Reads one spool as it grows."""

    path: Path
    offset: int = 0
    rest: bytes = b""

    def new(self) -> list[dict[str, Any]]:
        """Whole rows that were appended since the last time."""
        try:
            with self.path.open("rb") as file:
                file.seek(self.offset)
                new = file.read()
        except FileNotFoundError:
            return []
        self.offset += len(new)
        *lines, self.rest = (self.rest + new).split(b"\n")
        return [json.loads(line) for line in lines]


@dataclass
class Progress:
    """Follows a tier's spools. `ends` holds (end in ns, is good) of the rows that ended within the last WINDOW_S."""

    folder: Path
    plan: Tier
    followers: dict[Path, Follower] = field(default_factory=dict)
    level: int = 0
    level_began_at: float = 0.0
    done: int = 0
    failed: int = 0
    aborted: int = 0
    last_failure: str | None = None
    ends: list[tuple[int, bool]] = field(default_factory=list)

    def read(self) -> None:
        """Take in what was appended since the last time."""
        for path in rows.spools(self.folder, "requests"):
            for row in self.followers.setdefault(path, Follower(path)).new():
                self._take(row)
        oldest_ns = time.monotonic_ns() - int(WINDOW_S * 1e9)
        self.ends = sorted(end for end in self.ends if end[0] >= oldest_ns)

    def _take(self, row: dict[str, Any]) -> None:
        if row["level"] > self.level:
            self.level, self.level_began_at = row["level"], row["sent_at"]
        if row["is_aborted"]:
            self.aborted += 1
            return
        self.done += 1
        self.failed += row["failure"] is not None
        if row["failure"]:
            self.last_failure = f"{row['failure']}: {row['failure_detail']}"
        self.ends.append((row["t_end_ns"], row["failure"] is None))

    def is_hopeless(self, *, at_least: int) -> bool:
        """Whether every call of the whole window failed, and there were enough of them."""
        spans_ns = self.ends[-1][0] - self.ends[0][0] if self.ends else 0
        return spans_ns > 0.8 * WINDOW_S * 1e9 and len(self.ends) >= at_least and not any(good for _, good in self.ends)

    def left_s(self) -> float:
        """Seconds of offered load that are left, drains not counted."""
        number = max(self.level, 1)
        gone_s = time.time() - self.level_began_at if self.level else 0.0
        here_s = max(self.plan.levels[number - 1].duration_s - gone_s, 0.0)
        return here_s + sum(level.duration_s for level in self.plan.levels[number:])

    def says(self) -> str:
        """One line for people."""
        number = max(self.level, 1)
        head = f"level {number}/{len(self.plan.levels)}, {self.plan.levels[number - 1].says}: "
        if not self.level:
            return f"{head}no call has ended yet, {self.left_s():.0f} s of load"
        return (
            f"{head}{self.done} calls done ({len(self.ends) / WINDOW_S:.1f}/s), {self.failed} failed, "
            f"{self.left_s():.0f} s left"
        )
