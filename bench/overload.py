"""Twice the capacity: what an open loop reports, and what a closed loop reports of the same server.
`python -m bench.overload`

The sim serves one request at a time, of 4 tokens, one step of 50 ms each: 5 requests per second, known beforehand. The
gateway tier of a run (claim, deploy, verify, drive, release) has two levels: 10 arrivals per second, declared
`overload`, and a closed loop of 2 users, which is how a tool with a concurrency cap asks. The truth is the sim's record
of when each request of the open loop arrived and when its first token was really sent. A closed loop never sees that
queue: its users wait for their answers before they ask again (the "coordinated omission" of Tene, 2015).

Error: reported percentile against the record's, of the same requests. Prints a table and, last, one line of JSON; exits
1 if the open loop is off by more than 2 %. --quick: a shorter overload.
"""

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tasks import artifact, rows, stage
from tasks.engines.sim import record
from tasks.stages.claim import claim
from tasks.stats.percentile import nearest_rank

ROOT = Path(__file__).resolve().parents[1]
STEP_MS, TOKENS, FACTOR = 50, 4, 2
CAPACITY_PER_S = 1e3 / (STEP_MS * TOKENS)
QUANTILES = (0.5, 0.95, 0.99)
BOUND = 0.02
STAGES = ("deploy", "verify", "gate", "drive_gateway")
OPEN, CLOSED = 1, 2  # levels


def main(argv: list[str]) -> int:
    with tempfile.TemporaryDirectory() as folder, _settings(Path(folder)):
        found = compare(play(Path(folder) / "root", seconds=6 if "--quick" in argv else 20))
    print("first token after    record ms    open loop ms    error    closed loop ms    error")
    for row in found["rows"]:
        name = f"p{100 * row['q']:g}"
        print(
            f"{name:17s} {row['record_ms']:12.1f} {row['open_ms']:15.1f} {row['open_error']:8.2%}"
            f" {row['closed_ms']:17.1f} {row['closed_error']:8.1%}"
        )
    print(found["window"]["reason"])
    found["passes"] = all(row["open_error"] <= BOUND for row in found["rows"])
    print(json.dumps(found))
    return 0 if found["passes"] else 1


def play(root: Path, *, seconds: float) -> Path:
    """Carry out the run on declarations of its own in `root` (ARMWISE_ROOT). Returns its folder, released."""
    declare(root, seconds)
    run_dir = claim(arm="sim-overload", target="sim", plan="overload")
    try:
        for name in STAGES:
            stage.perform(name, run_dir)
    finally:
        stage.perform("release", run_dir)
    return run_dir


def declare(root: Path, seconds: float) -> None:
    """The arm, the plan and the target, beside links to what else the checkout declares."""
    for path in (*(ROOT / "deploy").iterdir(), ROOT / "golden_set", ROOT / "sql"):
        link = root / path.relative_to(ROOT)
        link.parent.mkdir(parents=True, exist_ok=True)
        if path.name not in ("arms", "plans", "targets") and not link.exists():
            link.symlink_to(path)
    arm = yaml.safe_load((ROOT / "deploy" / "arms" / "sim-baseline.yaml").read_text())
    arm["flags"] |= {"max-num-seqs": 1}
    arm["env"] = {"SIM_STEP_MS": str(STEP_MS)}
    target = yaml.safe_load((ROOT / "deploy" / "targets" / "sim" / "target.yaml").read_text())
    target["command"] = [sys.executable, "-m", "tasks.engines.sim"]
    offered = {"rate_per_s": FACTOR * CAPACITY_PER_S, "arrivals": "poisson", "duration_s": seconds, "overload": True}
    not_calibrated = {"calibrate_s": 0, "not_calibrated_because": "the server's own record is the truth here"}
    gateway = {"levels": [offered, {"users": 2, "duration_s": seconds}], "output_tokens": TOKENS, "max_tokens": TOKENS}
    plan = {
        "purpose": "An overload whose waiting times the server itself knows.",
        "seed": 5,
        "tiers": {
            "gateway": gateway | not_calibrated | {"drain_s": FACTOR * seconds + 10},
            "agent": {"levels": [{"users": 1, "duration_s": 1}]} | not_calibrated,
        },
        "gate": {"none_because": "only the time of answers is looked at, not what they say"},
        "budget": {"start_s": 90, "gate_s": 10, "drive_s": 6 * seconds + 120, "release_s": 30, "grace_s": 60},
    }
    for name, told in (("arms/sim-overload", arm), ("plans/overload", plan), ("targets/sim/target", target)):
        path = root / "deploy" / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump(told))


def compare(run_dir: Path) -> dict[str, Any]:
    """What was reported against the record."""
    calls = rows.read(run_dir, "gateway", "requests")
    lines = {line["id"]: line for line in record.read(run_dir / "sim.jsonl") if line["what"] == "request"}
    queued = [row for row in calls if row["level"] == OPEN]
    told_ms = [_waited_ms(lines[row["request_id"]]) for row in queued]
    closed_ms = [row["ttft_ms"] for row in calls if row["level"] == CLOSED]
    open_ms = [row["ttft_intended_ms"] for row in queued]
    found = []
    for q in QUANTILES:
        truth, opened, closed = (_at(values, q) for values in (told_ms, open_ms, closed_ms))
        row = {"q": q, "record_ms": truth, "open_ms": opened, "open_error": abs(opened - truth) / truth}
        found.append(row | {"closed_ms": closed, "closed_error": abs(closed - truth) / truth})
    window = artifact.read(run_dir / "gateway" / "windows.json")["levels"][0]
    return {"requests": len(queued), "lines": len(lines), "rows": found, "window": window}


def _waited_ms(line: dict[str, Any]) -> float:
    first_ns = next(at_ns for at_ns, what, *_ in line["sent"] if what == "tokens")
    return float((first_ns - line["arrived_ns"]) / 1e6)


def _at(values: list[float], q: float) -> float:
    return sorted(values)[nearest_rank(len(values), q) - 1]


@contextlib.contextmanager
def _settings(folder: Path) -> Iterator[None]:
    before = dict(os.environ)
    os.environ |= {"ARMWISE_ROOT": str(folder / "root"), "ARMWISE_HOME": str(folder / "home"), "ARMWISE_DB_URL": "none"}
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
