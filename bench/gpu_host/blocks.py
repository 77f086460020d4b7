"""python -m bench.gpu_host.blocks --plan PLAN [--target local-gpu] --within SECONDS [--first N] ARM ARM ...

Runs of arms one after the other, in the order given, for a machine that is lent by the second: none is begun that the
longest run so far would not let end in time, and none after two failures in a row. An arm's second mention is its
second repeat, and so on; `--first` says how many mentions of the order were done by an earlier call. Prints a line of
JSON per run, and last where the time went:

    start     claim until the engine answers
    load      levels open (offered load, warm-up included)
    held      claim to proven release; the rest is verify, gate, cache resets, client start, release
    wall      the same, and what lies between runs
"""

import argparse
import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any


def main() -> None:
    words = argparse.ArgumentParser(description="arms in a given order, within a given time")
    words.add_argument("arms", nargs="+")
    words.add_argument("--plan", required=True)
    words.add_argument("--target", default="local-gpu")
    words.add_argument("--within", type=float, required=True, help="seconds from now")
    words.add_argument("--first", type=int, default=0, help="mentions of the order that were done before")
    given = words.parse_args()
    _keep_the_driver_loaded()
    until, longest, done = time.monotonic() + given.within, 0.0, []
    seen: Counter[str] = Counter(given.arms[: given.first])
    for arm in given.arms[given.first :]:
        if time.monotonic() + longest > until:
            print(
                f"blocks: {until - time.monotonic():.0f} s left, the longest run took {longest:.0f} s: stopped",
                flush=True,
            )
            break
        began = time.monotonic()
        seen[arm] += 1
        row = _run(arm, given.plan, given.target, seen[arm], deadline_s=until - began)
        longest = max(longest, time.monotonic() - began)
        done.append(row | {"wall_s": round(time.monotonic() - began, 1)})
        print(json.dumps(done[-1]), flush=True)
        if len(done) > 1 and all(one["exit"] for one in done[-2:]):
            print("blocks: two failures in a row: stopped", flush=True)
            break
    print(json.dumps(account(done)))


def _keep_the_driver_loaded() -> None:
    """A GPU that nobody has open is set up anew at the next start; this handle stays open as long as this process."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except (ImportError, OSError):
        return
    except pynvml.NVMLError:
        return


def _run(arm: str, plan: str, target: str, repeat: int, *, deadline_s: float) -> dict[str, Any]:
    """One `armwise run`; its own words go to stderr. Stopped in order, release and all, when the time is up."""
    argv = [sys.executable, "-c", "from tasks.cli import main; main()", "run", arm]
    child = subprocess.Popen(
        [*argv, "--plan", plan, "--target", target, "--repeat", str(repeat)], stdout=subprocess.PIPE, text=True
    )
    try:
        said, _ = child.communicate(timeout=max(deadline_s, 1))
    except subprocess.TimeoutExpired:
        child.terminate()
        said, _ = child.communicate(timeout=60)
    print(said, file=sys.stderr, flush=True)
    folder = next((line.split(": ", 1)[1] for line in said.splitlines() if line.startswith("run folder: ")), None)
    fault = next((line for line in said.splitlines() if line.startswith("this run FAILED")), None)
    return {
        "arm": arm,
        "repeat": repeat,
        "exit": child.returncode,
        "fault": fault,
        **(_times(Path(folder)) if folder else {}),
    }


def _times(folder: Path) -> dict[str, Any]:
    """What the run folder says of its seconds."""
    deployment, release = _read(folder / "deployment.json"), _read(folder / "release.json")
    levels = [
        level for tier in ("gateway", "agent") for level in _read(folder / tier / "client.json").get("levels", [])
    ]
    load = sum((level["t_load_end_ns"] - level["t_start_ns"]) / 1e9 for level in levels)
    claimed = _read(folder / "run.json").get("claimed_at")
    ready = deployment.get("ready_at")
    memory = (release.get("proof") or {}).get("gpu_memory_mib")
    return {
        "run": folder.parent.name,
        "start_s": round(ready - claimed, 1) if ready and claimed else None,
        "load_s": round(load, 1),
        "held_s": release.get("held_s") and round(release["held_s"], 1),
        "gpu_memory_mib": memory,
    }


def account(done: list[dict[str, Any]]) -> dict[str, Any]:
    """Seconds by use over all runs; `load_share` is load / (held - start)."""
    total = {name: sum(row.get(f"{name}_s") or 0.0 for row in done) for name in ("start", "load", "held", "wall")}
    after = total["held"] - total["start"]
    rounded = {f"{name}_s": round(value, 1) for name, value in total.items()}
    return {"runs": len(done), **rounded, "load_share": round(total["load"] / after, 3) if after > 0 else None}


def _read(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text())) if path.exists() else {}


if __name__ == "__main__":
    main()
