"""What outlived its lease on this machine, and freeing it.

The supervisor ends a run's processes when its lease lapses. What is left is what outlived even that: both guards were
killed, or the machine was too busy. A run with a live lease is never touched; one whose lease lapsed a moment ago is
still its supervisor's to stop. Found by markers and leases, never by names. A slot whose holder's lease is over needs
no freeing: the next claim takes it. The gateway forgets the run too, or a server that is not ours would keep its arm's
technique from every later run. What was freed is noted in `<home>/reaped.jsonl`.
"""

import json
import time
from pathlib import Path
from typing import Any

from tasks import artifact, catalog, drivers, lease, run, settings
from tasks.drivers import _key, _supervised
from tasks.gateway import client
from tasks.stages.deploy import GATEWAY_FOLDER
from tasks.traffic import calibration

Leftover = dict[str, Any]  # run_dir, why, processes
SECRETS = (_key.NAME, f"{GATEWAY_FOLDER}/token", f"{GATEWAY_FOLDER}/backends.json")


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
    stopped = stop(run_dir, {}, reason=why)
    deregister(run_dir, {})
    if not stopped["processes_left"]:
        forget_secrets(run_dir)
    return {"run_dir": str(run_dir), "why": why, **stopped}


def stop(run_dir: Path, deployment: dict[str, Any], *, reason: str) -> dict[str, list[str]]:
    """Take down what a run deployed, and whatever runs under its supervisor. Idempotent. `freed`, `processes_left`."""
    driver = catalog.module_of(drivers, driver_name(run_dir))
    proofs = [driver.down(deployment, run_dir, reason=reason), _supervised.stop(run_dir)]
    return {
        "freed": [words for proof in proofs for words in proof["freed"]],
        "processes_left": list(dict.fromkeys(words for proof in proofs for words in proof["processes_left"])),
    }


def deregister(run_dir: Path, deployment: dict[str, Any]) -> bool:
    """Is the gateway without this run? One that the run brought goes with it; one that is gone routes nothing."""
    if deployment.get("gateway_started"):
        return True
    try:
        this, gateway = run.read(run_dir), client.find()
        if gateway is not None:
            for technique in (this.technique, calibration.technique(this.technique)):
                client.deregister(gateway, technique, this.owner)
    except client.GatewayFailed as error:
        print(f"{run_dir}: {error}", flush=True)
        return False
    except (artifact.BrokenArtifact, ValueError):  # without run.json nothing was ever registered
        return True
    return True


def forget_secrets(run_dir: Path) -> None:
    """Remove the keys that a run folder held; only after its processes are gone."""
    for name in SECRETS:
        (run_dir / name).unlink(missing_ok=True)


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
