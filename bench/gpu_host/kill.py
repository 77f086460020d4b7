"""python -m bench.gpu_host.kill --plan PLAN --arm ARM [--target local-gpu] [--slot gpu0]

Is the GPU given back when the runner is killed in mid-tier and nobody looks? `armwise run` is started, SIGKILLed while
its gateway tier has calls in flight, and the GPU's memory is read four times a second until it is back at the level of
before the claim. The lease's supervisor must do it: within the plan's grace and the few seconds that an engine takes to
end. Afterwards `armwise stage release` writes what it finds. Prints one line of JSON; exit code 1 if it took longer.
"""

import argparse
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tasks import run as runs
from tasks import settings, stage
from tasks.drivers import _gpu

TIER_WITHIN_S = 400.0
CALLS = 20  # ended before the kill: the tier is well under way
BACK_WITHIN_S = 45.0  # beside the grace: the supervisor's 15 s, and the driver
SLACK_MIB = 64


def main() -> None:
    words = argparse.ArgumentParser(description="SIGKILL of the runner in mid-tier")
    words.add_argument("--arm", required=True)
    words.add_argument("--plan", required=True)
    words.add_argument("--target", default="local-gpu")
    words.add_argument("--slot", default="gpu0")
    given = words.parse_args()
    before = _gpu.memory_used_mib(given.slot)
    argv = [sys.executable, "-c", "from tasks.cli import main; main()", "run", given.arm]
    child = subprocess.Popen([*argv, "--plan", given.plan, "--target", given.target], start_new_session=True)
    folder = _in_mid_tier(child)
    if folder is None:
        child.kill()
        sys.exit("kill: the run never reached its gateway tier")
    held = _gpu.memory_used_mib(given.slot)
    killed_at = time.monotonic()
    child.send_signal(signal.SIGKILL)
    child.wait()
    grace_s = runs.read(folder).plan.budget.grace_s
    back_s = _back(folder, given.slot, before, within_s=grace_s + BACK_WITHIN_S, since=killed_at)
    after = _gpu.memory_used_mib(given.slot)
    stage.perform("release", folder)
    found: dict[str, Any] = {"run": folder.parent.name, "memory_mib": {"before": before, "held": held, "after": after}}
    print(json.dumps(found | {"grace_s": grace_s, "back_after_s": back_s and round(back_s, 2)}))
    sys.exit(0 if back_s is not None else 1)


def _in_mid_tier(child: subprocess.Popen[bytes]) -> Path | None:
    """The run's folder once its gateway tier has answered calls; None if the run ended before, or took too long."""
    known = set(settings.runs().glob("*/*/gateway"))
    until = time.monotonic() + TIER_WITHIN_S
    while time.monotonic() < until and child.poll() is None:
        for tier in set(settings.runs().glob("*/*/gateway")) - known:
            spools = list(tier.glob("requests*.jsonl"))
            if sum(spool.read_bytes().count(b"\n") for spool in spools) >= CALLS:
                return tier.parent
        time.sleep(0.2)
    return None


def _back(folder: Path, slot: str, before: list[int] | None, *, within_s: float, since: float) -> float | None:
    """Seconds until memory (where there is a GPU) and the run's processes are as before; None: not in time."""
    from tasks.drivers import _processes

    while (elapsed := time.monotonic() - since) < within_s:
        now = _gpu.memory_used_mib(slot)
        is_freed = all(n <= b + SLACK_MIB for n, b in zip(now or [], before or [], strict=True))
        if is_freed and not _processes.of(folder):
            return elapsed
        time.sleep(0.25)
    return None


if __name__ == "__main__":
    main()
