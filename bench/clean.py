"""No false alarm: clean runs of the sim, of every sim arm and of different seeds, through all stages up to validate.

    python -m bench.clean [--quick] [--runs N] [--first N] [--at-once N] [--keep FOLDER]

Each run is a deployment of its own with its gate and both tiers; nothing is planted. An alarm is a broken rule. What a
run raises is printed with its evidence; the last line is JSON. --quick makes five runs, one per arm or nearly.

Only alarms count. Findings and what is unverified are counted beside them: an arm that varies a flag which leaves no
trace at this load is rightly told.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
TIER: dict[str, Any] = {"drain_s": 15, "calibrate_s": 1}
SECONDS = 6  # of load per level; a clean run is clean however short, and a hundred of them take time
Row = dict[str, Any]


def main() -> None:
    asked = _arguments()
    with _checkout(asked.keep) as root:
        arms = sorted(path.stem for path in (root / "deploy" / "arms").glob("sim-*.yaml"))
        work = [(number, arms[number % len(arms)]) for number in range(asked.first, asked.first + asked.runs)]
        began, rows = time.monotonic(), []
        with ProcessPoolExecutor(asked.at_once) as pool:
            for row in pool.map(_one, *zip(*work, strict=True)):
                rows.append(row)
                _say(row, len(rows), asked.runs)
    _tell(rows, time.monotonic() - began)
    sys.exit(1 if any(row["alarms"] for row in rows) else 0)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.clean", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="five runs")
    parser.add_argument("--runs", type=int, help="how many (100)")
    parser.add_argument("--first", type=int, default=0, help="number of the first run, which gives its seed and loads")
    parser.add_argument("--at-once", type=int, default=2, help="how many beside each other")
    parser.add_argument("--keep", type=Path, help="an empty folder in which runs and their files stay")
    asked = parser.parse_args()
    asked.runs = asked.runs or (5 if asked.quick else 100)
    return asked


@contextmanager
def _checkout(keep: Path | None) -> Iterator[Path]:
    """Declarations of its own, state in a folder of its own, no database; in the environment, for the workers."""
    folder = Path(keep or tempfile.mkdtemp(prefix="armwise-clean-"))
    root = folder / "root"
    shutil.copytree(ROOT / "deploy", root / "deploy", ignore=_models)
    (root / "deploy" / "models").symlink_to(ROOT / "deploy" / "models")
    for name in ("golden_set", "sql"):
        (root / name).symlink_to(ROOT / name)
    target = {"driver": "process", "says": "the sim, for a bench", "slots": [f"s{i}" for i in range(16)]}
    _write(root / "deploy" / "targets" / "sim" / "target.yaml", target | {"command": _command()})
    os.environ |= {"ARMWISE_ROOT": str(root), "ARMWISE_HOME": str(folder / "home"), "ARMWISE_DB_URL": "none"}
    try:
        yield root
    finally:
        if keep is None:
            shutil.rmtree(folder, ignore_errors=True)


def _models(folder: str, _names: list[str]) -> list[str]:
    return ["models"] if Path(folder) == ROOT / "deploy" else []


def _command() -> list[str]:
    return [sys.executable, "-m", "tasks.engines.sim"]


def _write(path: Path, content: object) -> None:
    path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")


def _one(number: int, arm: str) -> Row:
    """One run with a plan of its own seed. What is said by the stages goes to a file beside the run."""
    root, name = Path(os.environ["ARMWISE_ROOT"]), f"clean-{number}"
    _write(root / "deploy" / "plans" / f"{name}.yaml", _plan(number))
    began = time.monotonic()
    with (root.parent / f"{name}.log").open("w", encoding="utf-8") as log, _said_to(log):
        found = _run(arm, name)
    told = {"number": number, "arm": arm, "seconds": round(time.monotonic() - began, 1), "alarms": found["reasons"]}
    return told | {
        "findings": found["findings"],
        "checks": len(found["expectations"]),
    }


def _plan(number: int) -> Row:
    """Loads differ from run to run, too: 1 to 8 users of single calls, 1 to 3 of tasks."""
    tiers = {
        "gateway": TIER | {"levels": [{"users": 1 + number % 8, "duration_s": SECONDS}], "max_tokens": 64},
        "agent": TIER | {"levels": [{"users": 1 + number % 3, "duration_s": SECONDS}]},
    }
    return {
        "purpose": "a clean run that no rule may object to",
        "seed": 1000 + number,
        "tiers": tiers,
        "gate": {"at_once": 8, "timeout_s": 120},
        "budget": {"start_s": 120, "gate_s": 150, "drive_s": 240, "release_s": 60, "grace_s": 90},
    }


@contextmanager
def _said_to(log: Any) -> Iterator[None]:
    before, sys.stdout = sys.stdout, log
    try:
        yield
    finally:
        sys.stdout = before


def _run(arm: str, plan: str) -> Row:
    """All stages up to validate. Raises nothing: a stage that failed is an alarm."""
    from tasks import artifact, stage
    from tasks.stages.claim import claim

    run_dir, failure = claim(arm=arm, target="sim", plan=plan), None
    try:
        for name in stage.ORDER[1 : stage.ORDER.index("release")]:
            if stage.skipped(name, run_dir) is None:
                stage.perform(name, run_dir)
    except Exception as error:  # noqa: BLE001 (whatever it is, a clean run should not have had it)
        failure = f"{name}: {error or type(error).__name__}"
    for name in ("release", "validate"):
        stage.perform(name, run_dir)
    found = artifact.read(run_dir / "validation.json")
    return found | {"reasons": [*([failure] if failure else []), *found["reasons"]]}


def _say(row: Row, done: int, of: int) -> None:
    words = "; ".join(row["alarms"]) or "clean"
    print(f"{done:3d} of {of}: {row['arm']:26s} {row['seconds']:6.1f} s  {row['checks']} checks  {words}", flush=True)


def _tell(rows: list[Row], seconds: float) -> None:
    alarms = [words for row in rows for words in row["alarms"]]
    findings = Counter(words.partition(": ")[2].partition(": ")[0] for row in rows for words in row["findings"])
    print()
    for arm in sorted({row["arm"] for row in rows}):
        ours = [row for row in rows if row["arm"] == arm]
        print(f"{arm:26s} {len(ours):3d} runs, {sum(bool(row['alarms']) for row in ours)} with an alarm")
    for words, count in findings.most_common():
        print(f"finding in {count:3d} runs: {words}")
    told = {
        "bench": "clean",
        "runs": len(rows),
        "first": min(row["number"] for row in rows),
        "runs_with_alarm": sum(bool(row["alarms"]) for row in rows),
        "alarms": len(alarms),
        "checks": sum(row["checks"] for row in rows),
        "findings": dict(findings),
        "arms": len({row["arm"] for row in rows}),
        "seconds": round(seconds, 1),
    }
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
