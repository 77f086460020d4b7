"""Progress is read from the rows alone."""

import json
import time
from pathlib import Path
from typing import Any

from tasks.plan import Level, Tier
from tasks.traffic.progress import WINDOW_S, Progress

PLAN = Tier(levels=[Level(users=2, duration_s=20), Level(users=4, duration_s=30)])
S = 1_000_000_000


def row(*, ago_s: float = 0, failure: str | None = None, **more: Any) -> str:
    content = {"level": 1, "sent_at": time.time() - ago_s, "t_end_ns": time.monotonic_ns() - int(ago_s * S)}
    return json.dumps(content | {"failure": failure, "failure_detail": "why", "is_aborted": False} | more) + "\n"


def test_it_follows_a_growing_file_and_waits_for_the_end_of_a_row(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    progress = Progress(tmp_path, PLAN)
    progress.read()  # nothing there yet
    assert progress.left_s() == 50
    whole = row() + row(failure="http_5xx") + row(is_aborted=True)
    with path.open("a") as file:
        file.write(whole + row()[:20])
        file.flush()
        progress.read()
        assert (progress.done, progress.failed, progress.aborted) == (2, 1, 1)
        assert progress.last_failure == "http_5xx: why"
        file.write(row()[20:])
        file.flush()
        progress.read()
    assert progress.done == 3
    assert "level 1/2, 2 users: 3 calls done (0.3/s), 1 failed" in progress.says()


def test_what_is_left_counts_from_the_levels_first_row(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_text(row(ago_s=5))
    progress = Progress(tmp_path, PLAN)
    progress.read()
    assert 44 < progress.left_s() < 45.1
    path.write_text(path.read_text() + row(ago_s=1, level=2))
    progress.read()
    assert 28.5 < progress.left_s() < 29.1


def test_hopeless_is_a_whole_window_of_failures_and_enough_of_them(tmp_path: Path) -> None:
    def of(*rows: str) -> bool:
        path = tmp_path / "requests.jsonl"
        path.write_text("".join(rows))
        progress = Progress(tmp_path, PLAN)
        progress.read()
        return progress.is_hopeless(at_least=5)

    failing = [row(ago_s=WINDOW_S * 0.99 - 1.1 * n, failure="connect") for n in range(9)]
    assert of(*failing)
    assert not of(*failing[:3], row(ago_s=6), *failing[4:])  # one was good
    assert not of(*failing[4:])  # only five seconds of it
    assert not of(failing[0], failing[8])  # two calls prove nothing
    assert of(row(ago_s=30), *failing)  # what was good long ago does not count
