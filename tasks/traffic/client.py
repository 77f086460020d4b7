"""client.json: what the client says of itself, several processes made into one.

A number that limits how far the client can be trusted (loop lag, delay in sending, share of a core) is that of the
worst process; a count is the sum. Each process is listed beside it.

client.json format 1 (2026-11): the first.
"""

import os
import platform
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tasks import artifact, plan
from tasks.traffic import saturation

FORMAT = 1
WORST = [f"{name}_{at}" for name in ("loop_lag_ms", "schedule_delay_ms") for at in ("p50", "p99", "max")]
OF_A_CORE = ("cpu_share", "cpu_wait_share")
OWN = ("process", "pid", "requests", "unsent", *OF_A_CORE, *WORST)
Note = dict[str, Any]


def merged(number: int, offered: plan.Level, notes: Sequence[Note]) -> Note:
    """One level, from what each process says of it (conduct.one_level)."""
    firsts = [note["t_all_finished_one_ns"] for note in notes]
    return {
        "level": number,
        **offered.model_dump(),
        "started_at": min(note["started_at"] for note in notes),
        "ended_at": time.time(),
        "t_start_ns": min(note["t_start_ns"] for note in notes),
        "t_load_end_ns": max(note["t_load_end_ns"] for note in notes),
        "t_end_ns": max(note["t_end_ns"] for note in notes),
        "t_all_finished_one_ns": None if None in firsts else max(firsts),
        "requests": sum(note["requests"] for note in notes),
        "unsent": sum(note["unsent"] for note in notes),
        **worst(notes),
        "processes": [{name: note[name] for name in OWN} for note in notes],
    }


def worst(notes: Sequence[Note]) -> Note:
    """Each figure of the process where it is worst; None where no process has it."""
    found = {name: [note[name] for note in notes if note[name] is not None] for name in (*OF_A_CORE, *WORST)}
    return {name: max(values, default=None) for name, values in found.items()}


def flow(notes: Sequence[Note]) -> saturation.Flow:
    """Of all processes together."""
    flows = [saturation.Flow(**note["flow"]) for note in notes]
    return sum(flows[1:], start=flows[0])


def write(folder: Path, told: Note, levels: Sequence[Note], *, started_at: float) -> None:
    """Write client.json: `told` about the tier as a whole, and its levels so far. Raises OSError."""
    content = {
        "format": FORMAT,
        "tier": folder.name,
        **told,
        "locust": version("locust"),
        "gevent": version("gevent"),
        "python": platform.python_version(),
        "pid": os.getpid(),
        "parent_pid": os.getppid(),
        "started_at": started_at,
        "ended_at": time.time(),
        **worst(levels),
        "levels": list(levels),
    }
    artifact.write(folder / "client.json", content)
