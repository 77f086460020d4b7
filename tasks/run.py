"""A run: one deployment of one arm through all tiers. Its folder is the contract between stages.

    runs/<run_id>/<attempt>/     one folder per attempt; a new try is a new attempt, never an edit of the old
        run.json                 identity, seed, limits, and the arm, plan, target and price as they were (this module)
        lease.json               who holds the slot until when (tasks/lease.py); the supervisor reads it too
        phases/<stage>.json      when each stage began and ended, and how (tasks/stage.py)
        deployment.json  effective.json  golden.jsonl  gate.json  <tier>/...  release.json  validation.json
        judgement.json           percentiles with bounds, SLO verdicts, costs

Format 1 (2026-11): the first.
"""

import hashlib
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks import artifact, settings
from tasks.arm import Arm
from tasks.document import parse
from tasks.plan import Plan
from tasks.price import Price
from tasks.target import Target

FORMAT = 1
TIERS = ("gateway", "agent")


@dataclass(frozen=True)
class Run:
    """run.json, read back. Every document is the copy taken at claim, not today's file."""

    folder: Path
    run_id: str
    attempt: int
    arm_name: str
    arm: Arm
    target_name: str
    target: Target
    plan_name: str
    plan: Plan
    price: Price
    repeat: int
    slot: str
    seed: int
    claimed_at: float  # seconds since the epoch

    @property
    def technique(self) -> str:
        """The arm's name as it travels in the X-Technique header and in metric labels."""
        return self.arm_name

    @property
    def owner(self) -> str:
        """Who registers at the gateway, and whom X-Run names: the attempt. A late release of an earlier attempt takes
        nothing away from it, and two runs of one arm reach each its own engine."""
        return f"{self.run_id}/{self.attempt}"

    def rng(self, purpose: str) -> random.Random:
        """A generator of its own for each purpose, the same for every arm of a plan and repeat."""
        text = f"{self.seed}/{self.repeat}/{purpose}"
        return random.Random(hashlib.sha256(text.encode()).digest())


def document(run: Run) -> dict[str, Any]:
    """The content of run.json."""
    return {
        "format": FORMAT,
        "run_id": run.run_id,
        "attempt": run.attempt,
        "repeat": run.repeat,
        "slot": run.slot,
        "seed": run.seed,
        "claimed_at": run.claimed_at,
        "technique": run.technique,
        "arm": {"name": run.arm_name, "digest": run.arm.digest(), "document": run.arm.model_dump(mode="json")},
        "plan": {"name": run.plan_name, "digest": run.plan.digest(), "document": run.plan.model_dump(mode="json")},
        "target": {"name": run.target_name, "document": run.target.model_dump(mode="json")},
        "price": {"name": run.arm.price, "document": run.price.model_dump(mode="json")},
    }


def read(folder: Path) -> Run:
    """Read a run folder's identity. Raises BrokenArtifact (missing, torn, another format), InvalidDocument."""
    path = folder / "run.json"
    content = artifact.read(path)
    if content.get("format") != FORMAT:
        raise artifact.BrokenArtifact(f"{path}: format: must be {FORMAT}, found {content.get('format')!r}")
    try:
        return Run(
            folder=folder,
            run_id=content["run_id"],
            attempt=content["attempt"],
            repeat=content["repeat"],
            slot=content["slot"],
            seed=content["seed"],
            claimed_at=content["claimed_at"],
            arm_name=content["arm"]["name"],
            arm=parse(content["arm"]["document"], Arm, source=f"{path}: arm"),
            plan_name=content["plan"]["name"],
            plan=parse(content["plan"]["document"], Plan, source=f"{path}: plan"),
            target_name=content["target"]["name"],
            target=parse(content["target"]["document"], Target, source=f"{path}: target"),
            price=parse(content["price"]["document"], Price, source=f"{path}: price"),
        )
    except (KeyError, TypeError) as error:
        raise artifact.BrokenArtifact(f"{path}: lacks {error}") from error


def attempts(run_id: str) -> list[Path]:
    """Folders of the attempts of one run, first to last."""
    folders = [p for p in (settings.runs() / run_id).glob("*") if p.name.isdigit()]
    return sorted(folders, key=lambda p: int(p.name))


def find(name: str) -> Path:
    """A run folder by path, or the last attempt of a run id. Raises BrokenArtifact with the known ids."""
    if (Path(name) / "run.json").exists():
        return Path(name)
    found = attempts(name) or attempts(Path(name).name)
    if not found:
        known = sorted(p.name for p in settings.runs().glob("*"))[-5:]
        raise artifact.BrokenArtifact(f"{name}: no such run folder or run id; latest: {', '.join(known) or 'none'}")
    return found[-1]
