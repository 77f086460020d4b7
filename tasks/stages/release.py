"""Everything the run held is given back, and it is proven that nothing is left.

Works with what there is: without deployment.json (a deploy that failed half way), without run.json, without the
gateway, with the supervisor killed. The lease and the marker in the processes' environment are enough. The lease is
given back only after no process of the run is left; if one is, the stage fails, the slot stays marked, and the next
claim or `armwise reap` tries again. Twice, or twice at once, is fine.

held_s and billed_from are what the all-in cost is computed from: a slot is bound when it is claimed, and free when that
is proven, or when the supervisor has proven it before us.
"""

import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from tasks import artifact, lease, leftovers, stage
from tasks.drivers import _gpu

FORMAT = 1
GPU_BACK_S = 30.0  # for a driver to take back the memory of a process that is gone
GPU_SLACK_MIB = 64


def release(run_dir: Path) -> Path:
    """Write release.json. Raises StageFailed, with the processes, if one of the run cannot be stopped."""
    path = run_dir / "release.json"
    if path.exists():
        return path
    was_held = lease.lapse(run_dir) is None
    reason = _reason(run_dir)
    deployment = _read(run_dir / "deployment.json")
    deregistered = leftovers.deregister(run_dir, deployment)
    stopped = leftovers.stop(run_dir, deployment, reason=reason)
    if stopped["processes_left"]:
        left = "; ".join(stopped["processes_left"])
        raise stage.StageFailed(f"{run_dir}: cannot be stopped: {left}. The slot stays taken; try: armwise reap")
    released_at = _proven_at(run_dir)
    held = _read(run_dir / "lease.json")
    memory, acquired_at = _gpu_memory(run_dir, str(held.get("slot"))), held.get("acquired_at")
    leftovers.forget_secrets(run_dir)
    lease.give_back(run_dir, f"released: {reason}")
    content: dict[str, Any] = {
        "format": FORMAT,
        "was_held": was_held,
        "freed": stopped["freed"],
        "proof": {"processes_left": [], "gateway_deregistered": deregistered, "gpu_memory_mib": memory},
        "held_s": released_at - acquired_at if acquired_at else None,
        "billed_from": acquired_at,
        "released_at": released_at,
        "reason": reason,
    }
    return artifact.write_once(path, content)


def _reason(run_dir: Path) -> str:
    """Why the run ends now: its first failure, or that all is done."""
    notes = [_read(path) for path in (run_dir / "phases").glob("*.json")]
    failed = [n for n in notes if n.get("state") == "failed" and n.get("stage") not in stage.AFTER_RELEASE]
    if failed:
        first = min(failed, key=lambda n: n.get("ended_at", 0))
        return f"{first['stage']} failed: {str(first.get('error')).splitlines()[0]}"
    why = lease.lapse(run_dir)
    return why or "the work is done"


def _proven_at(run_dir: Path) -> float:
    """When nothing was left: now, or when the supervisor had ended it all, if that was before."""
    ended = _read(run_dir / "supervisor.json")
    if ended.get("processes_left") == []:
        return min(time.time(), float(ended["ended_at"]))
    return time.time()


def _gpu_memory(run_dir: Path, slot: str) -> dict[str, list[int]] | None:
    """MiB in use per GPU of the slot, before the claim and now: back, or waited for in vain. None: no GPU."""
    claims = [_read(path) for path in sorted((run_dir / "phases").glob("claim.*.json"))]
    before = claims[-1].get("gpu_memory_mib") if claims else None
    if before is None:
        return None
    deadline = time.monotonic() + GPU_BACK_S
    after = _gpu.memory_used_mib(slot)
    while after and any(a > b + GPU_SLACK_MIB for a, b in zip(after, before, strict=False)):
        if time.monotonic() > deadline:
            break
        time.sleep(0.5)
        after = _gpu.memory_used_mib(slot)
    return {"before": before, "after": after or []}


def _read(path: Path) -> dict[str, Any]:
    """What can be read; a file that is missing or broken must not keep a GPU from being freed."""
    with suppress(artifact.BrokenArtifact):
        return artifact.read(path)
    return {}
