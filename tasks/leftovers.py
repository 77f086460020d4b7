"""What outlived its lease on this machine, and freeing it.

The supervisor ends a run's processes when its lease lapses. What is left is what outlived even that: both guards were
killed, or the machine was too busy. A run with a live lease is never touched; one whose lease lapsed a moment ago is
still its supervisor's to stop. Found by markers and leases, never by names. A slot whose holder's lease is over needs
no freeing: the next claim takes it. What was freed is noted in `<home>/reaped.jsonl`.
"""

import json
import time
from pathlib import Path
from typing import Any

from tasks import artifact, catalog, drivers, lease, settings
from tasks.drivers import _supervised

Leftover = dict[str, Any]  # run_dir, why, processes


def reap() -> list[Leftover]:
    """Free everything that outlived its lease. Returns what was freed: run_dir, why, freed, processes_left."""
    reaped = [free(Path(found["run_dir"]), found["why"]) for found in find()]
    for row in reaped:
        note(row)
    return reaped


def find() -> list[Leftover]:
    """What the drivers know of that outlived its lease."""
    return [found for name in catalog.module_names(drivers) for found in catalog.module_of(drivers, name).leftovers()]


def free(run_dir: Path, why: str) -> Leftover:
    """Stop what is left of one run, whose lease is over, and end that lease for good."""
    lease.end(run_dir, f"reaped: {why}")
    return {"run_dir": str(run_dir), "why": why, **stop(run_dir, {}, reason=why)}


def stop(run_dir: Path, deployment: dict[str, Any], *, reason: str) -> dict[str, list[str]]:
    """Take down what a run deployed, and whatever runs under its supervisor. Idempotent. `freed`, `processes_left`."""
    driver = catalog.module_of(drivers, driver_name(run_dir))
    proofs = [driver.down(deployment, run_dir, reason=reason), _supervised.stop(run_dir)]
    return {
        "freed": [words for proof in proofs for words in proof["freed"]],
        "processes_left": list(dict.fromkeys(words for proof in proofs for words in proof["processes_left"])),
    }


def driver_name(run_dir: Path) -> str:
    """The run's driver; where run.json cannot be read, the one that goes by what it finds on this machine."""
    try:
        return str(artifact.read(run_dir / "run.json")["target"]["document"]["driver"])
    except (artifact.BrokenArtifact, KeyError, TypeError):
        return "process"


def note(row: Leftover) -> None:
    """Append to <home>/reaped.jsonl."""
    with (settings.home() / "reaped.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({"at": time.time(), **row}) + "\n")
