"""armwise before the same faults: a whole `armwise run` of an arm of engine sim, and what it stored.

The arm is the sim with the same flags as for the peers, the fault planted by its environment; the plan has the same
users, prompts from the golden set, and the same fixed number of output tokens. The gate is left out and says why: it
would refuse a server that answers wrongly before anything is measured, and what is asked here is whether the
measuring notices. All of the figures are of the gateway tier: of judgement.json, but for the largest gap, which the
rows have. What it warns of are expectations that are not met (validation.json), but for those of rules 6 and 9, on the
client and the steady window: they come and go with what else the machine does, whatever the server did. The truth is
the sim's record of those calls that the judgement counts.

The report has no output tokens per second: a figure that we do not give.
"""

import json
import sys
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

import yaml

from bench import truth
from bench.tools import OUTPUT, USERS, Report
from bench.verdict import Seen
from tasks import rows

ROOT = Path(__file__).resolve().parents[1]
NAME = "armwise"
ARM, PLAN = "sim-honesty", "honesty"
LEVEL_S = 20
ASIDE = (6, 9)  # rules
GIVEN = ("served-model-name", "enable-prompt-tokens-details")  # by armwise itself, always
PLAN_OF = {
    "purpose": "The same short closed loop that the peers get, for bench/honesty.",
    "seed": 1,
    "tiers": {
        "gateway": {
            "levels": [{"users": USERS, "duration_s": LEVEL_S}],
            "drain_s": 10,
            "max_tokens": OUTPUT,
            "output_tokens": OUTPUT,
        },
        "agent": {"levels": [{"users": 2, "duration_s": 5}], "drain_s": 10},
    },
    "slos": [],
    "gate": {"none_because": "what is asked is whether the measuring notices a fault, not whether the gate does"},
    "budget": {"start_s": 60, "gate_s": 10, "drive_s": 120, "release_s": 30, "grace_s": 30},
}


def version() -> str:
    return version_of("armwise")


def run(folder: Path, faults: str, flags: list[str], step_ms: int) -> int | None:
    """The whole pipeline, on declarations of its own in `folder`. Its exit code, None if it had to be stopped."""
    from bench.honesty import ended

    root = _declarations(folder, faults, flags, step_ms)
    env = {"ARMWISE_ROOT": str(root), "ARMWISE_HOME": str(folder / "home"), "ARMWISE_DB_URL": "none"}
    command = [str(Path(sys.executable).parent / "armwise"), "run", ARM, "--target", "sim", "--plan", PLAN]
    return ended(command, folder, env | {"PYTHONPATH": str(ROOT)}, limit_s=240)


def _declarations(folder: Path, faults: str, flags: list[str], step_ms: int) -> Path:
    """Links to the checkout's own, and beside them the arm, the plan and the target."""
    root = folder / "root"
    for kind in ("arms", "plans", "targets/sim"):
        (root / "deploy" / kind).mkdir(parents=True, exist_ok=True)
    for path in (*(ROOT / "deploy").iterdir(), ROOT / "golden_set", ROOT / "sql"):
        link = root / path.relative_to(ROOT)
        if not link.exists():
            link.symlink_to(path)
    arm = yaml.safe_load((ROOT / "deploy" / "arms" / "sim-baseline.yaml").read_text())
    arm["flags"] |= _flags(flags)
    arm["env"] = {"SIM_STEP_MS": str(step_ms)} | ({"SIM_FAULTS": faults} if faults else {})
    target = yaml.safe_load((ROOT / "deploy" / "targets" / "sim" / "target.yaml").read_text())
    target["command"] = [sys.executable, "-m", "tasks.engines.sim"]
    for name, told in ((f"arms/{ARM}", arm), (f"plans/{PLAN}", PLAN_OF), ("targets/sim/target", target)):
        (root / "deploy" / f"{name}.yaml").write_text(yaml.safe_dump(told))
    return root


def _flags(words: list[str]) -> dict[str, Any]:
    """`--name value` and `--switch` as an arm has them; what armwise sets itself is left out."""
    found: dict[str, Any] = {}
    for word in words:
        if word.startswith("--"):
            found[name := word.removeprefix("--")] = True
        else:
            found[name] = int(word) if word.isdigit() else word
    return {name: value for name, value in found.items() if name not in GIVEN}


def seen(folder: Path) -> Seen:
    """The stored figures and the truth of the newest run in `folder`."""
    run_dir = max((folder / "home" / "runs").glob("*/*"), key=lambda path: path.stat().st_mtime)
    counted = [row for row in rows.read(run_dir, "gateway", "requests") if _is_counted(row)]
    ids = {row["request_id"] for row in counted}
    lines = [line for line in truth.read(run_dir / "sim.jsonl", skip=0)[0] if line["id"] in ids]
    report = read(_json(run_dir / "judgement.json"), _json(run_dir / "validation.json"), counted)
    return Seen(report, truth.ranges(lines, len(ids) - len(lines)), truth.answer_ms(lines))


def read(judgement: dict[str, Any], validation: dict[str, Any], counted: list[dict[str, Any]]) -> Report:
    """`counted`: rows of the gateway tier that are judged."""
    medians = {
        one["metric"]: one
        for one in judgement.get("percentiles", [])
        if one["tier"] == "gateway" and one["q"] == 0.5 and one.get("steps", "all") == "all"
    }
    ttft = medians.get("ttft_ms", {})
    figures = {
        "succeeded": ttft.get("n", 0) - ttft.get("failed", 0),
        "failed": ttft.get("failed"),
        "ttft_ms_p50": ttft.get("estimate"),
        "itl_ms_p50": medians.get("tpot_ms", {}).get("estimate"),
        "gap_ms_max": max((row["icl_ms_max"] for row in counted if row.get("icl_ms_max")), default=None),
    }
    cached = {"cached tokens": sum(row.get("cached_input_tokens") or 0 for row in counted)}
    answer_ms = _numbers({"ttfa": medians.get("ttfa_ms", {}).get("estimate")}).get("ttfa")
    ours = [one for one in validation.get("expectations", []) if one["scope"] != "agent" and one["rule"] not in ASIDE]
    lines = sorted({f"rule {one['rule']} ({one['scope']}): {one['says']}" for one in ours if not one["success"]})
    return Report(_numbers(figures), _numbers(cached), answer_ms, lines)


def _is_counted(row: dict[str, Any]) -> bool:
    return not row.get("is_warmup") and not row.get("is_aborted")


def _numbers(told: dict[str, Any]) -> dict[str, float]:
    """Without what is unknown, and without `inf`, the latency of a failed request."""
    return {name: float(value) for name, value in told.items() if isinstance(value, int | float)}


def _json(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text())) if path.exists() else {}
