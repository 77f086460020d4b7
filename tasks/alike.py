"""Is a run alike to the one that it will be compared with, in everything but what its arm varies?

Compared with a valid run of the arm's control under the same plan and target, the latest of the same repeat if there is
one: image, model revision, GPU model, versions (GPU driver and engine among them), golden set, and the digest of what
both tiers send in which order. Another repeat sends something else on purpose, so there the digest is not compared.
What `varies` names may differ, and where it names engine, version or image, versions may too.

A difference is a finding of this run and no fault of it: each of the two is honest alone. It breaks the comparison, and
the report of the pair says so and greys it.
"""

from collections.abc import Mapping
from typing import Any

from tasks import artifact, settings, tables
from tasks.run import Run

OF_THE_ENGINE = frozenset({"engine", "version", "image"})  # keys of an arm: where it varies one, versions may differ
KEYS = {
    "image": "image",
    "model_revision": "model.revision",
    "gpu_model": "resources.gpu_model",
    "golden_sha256": "",  # no arm may vary it
    "workload_sha256": "",
}
Facts = dict[str, Any]
NOTHING: Facts = {"compared_with": None, "why_not": "", "unlike": None, "unlike_in": "", "control_hit_ratio": {}}


def facts(run: Run) -> Facts:
    """compared_with (a run id or None), why_not, unlike (how many), unlike_in (words), control_hit_ratio by tier."""
    control, why_not = control_run(run)
    if control is None:
        return NOTHING | {"why_not": why_not}
    found = differences(control, _own(run), set(run.arm.varies) | set(run.arm.companions))
    return {
        "compared_with": control["run_id"],
        "why_not": "",
        "unlike": len(found),
        "unlike_in": "; ".join(found),
        "control_hit_ratio": control["hit_ratio"] or {},
    }


def differences(control: Mapping[str, Any], own: Mapping[str, Any], varies: set[str]) -> list[str]:
    """What differs between two runs and nothing declares, in words."""
    is_other = control.get("repeat") != own.get("repeat")
    found = [
        f"{what}: {control[what]} and {own[what]}"
        for what, key in KEYS.items()
        if control[what] != own[what] and key not in varies and not (what == "workload_sha256" and is_other)
    ]
    return found + version_differences(control["versions"], own["versions"], varies)


def version_differences(
    control: Mapping[str, Any] | None, own: Mapping[str, Any] | None, varies: set[str]
) -> list[str]:
    """Versions that differ; none where the arm varies what brings them."""
    if OF_THE_ENGINE & varies:
        return []
    known = (control or {}, own or {})
    names = sorted({name for versions in known for name in versions})
    pairs = [(name, *(versions.get(name, "not known") for versions in known)) for name in names]
    return [f"version of {name}: {first} and {second}" for name, first, second in pairs if first != second]


def _own(run: Run) -> Facts:
    deployment, gate = artifact.optional(run.folder, "deployment"), artifact.optional(run.folder, "gate")
    told = artifact.optional(run.folder, "effective").get("versions") or {}
    return {
        "repeat": run.repeat,
        "image": deployment.get("image"),
        "model_revision": run.arm.model.revision,
        "gpu_model": deployment.get("gpu_model"),
        "golden_sha256": gate.get("golden_sha256"),
        "workload_sha256": tables.workload(run.folder),
        "versions": (deployment.get("versions") or {}) | told,
    }


def control_run(run: Run) -> tuple[Facts | None, str]:
    """(the stored run to compare with, why there is none)."""
    from tasks import database

    if run.arm.control is None:
        return None, "the arm is a control"
    if not database.available():
        return None, "no database here with runs of the control"
    from sqlalchemy import text
    from sqlalchemy.exc import SQLAlchemyError

    asked = {
        "control": run.arm.control,
        "plan_digest": run.plan.digest(),
        "target": run.target_name,
        "run_id": run.run_id,
        "repeat": run.repeat,
    }
    statement = (settings.root() / "sql" / "validate" / "control_run.sql").read_text(encoding="utf-8")
    try:
        with database.engine().connect() as connection:
            row = connection.execute(text(statement), asked).mappings().first()
    except (SQLAlchemyError, database.DatabaseAway) as error:
        return None, f"runs of the control cannot be read: {str(error).splitlines()[0]}"
    if row is None:
        return None, f"no valid run of the control {run.arm.control} is stored under this plan and target"
    return dict(row), ""
