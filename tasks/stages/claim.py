"""The first stage: check everything that can be checked without a machine, take a slot, make the run folder.

It cannot half-succeed. What is wrong with the input is said, all of it at once, before the slot is touched. The folder
of an attempt is made under the slot's lock, with its lease; if anything fails after that, the lease is given back and
the failure is stored in the folder. The run id of a claim with a key (Airflow's DAG run) is the same each time it is
asked, so a second claim of that key is the next attempt of the same run.

Waiting is the caller's: a claim asks once. One with a key keeps its place in the queue between two askings.
"""

import dataclasses
import hashlib
import os
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from tasks import arm as arms
from tasks import artifact, catalog, drivers, engines, lease, leftovers, settings, slo, slot, stage
from tasks import plan as plans
from tasks import price as prices
from tasks import run as runs
from tasks import target as targets
from tasks.arm import Arm
from tasks.document import InvalidDocument
from tasks.drivers import _gpu
from tasks.plan import Plan
from tasks.price import Price
from tasks.run import Run
from tasks.target import Target

Loaded = TypeVar("Loaded")


def claim(*, arm: str, target: str, plan: str, repeat: int = 1, key: str | None = None) -> Path:
    """Take a slot for one run of an arm. Returns the run folder. Raises SlotBusy, UnknownName, InvalidDocument."""
    asked_at = time.time()
    draft = _draft(arm, target, plan, repeat, key)
    for row in leftovers.reap():
        print(f"claim: freed what run {row['run_dir']} had left: {row['why']}", flush=True)
    busy = []
    for name in draft.target.slots:
        wanted = dataclasses.replace(draft, slot=name)
        try:
            held = lease.acquire(wanted, waiting_as=draft.run_id if key else None)
        except lease.SlotBusy as error:
            busy.append(str(error))
            continue
        for other in draft.target.slots if key else ():
            slot.leave(target, other, draft.run_id, busy=lease.SlotBusy)
        return _begin(wanted, held, asked_at=min(asked_at, held["asked_at"]))
    raise lease.SlotBusy("\n".join(busy))


def _draft(arm: str, target: str, plan: str, repeat: int, key: str | None) -> Run:
    """The run as declared, without a slot. Raises with every fault of the declarations."""
    errors: list[Exception] = []
    the_arm = _loaded(arms.load, arm, errors)
    the_target = _loaded(targets.load, target, errors)
    the_plan = _loaded(plans.load, plan, errors)
    the_price = _loaded(prices.load, the_arm.price, errors) if the_arm else None
    if repeat < 1:
        errors.append(InvalidDocument(f"repeat: must be at least 1, got {repeat}"))
    if the_plan and the_price:
        errors += map(InvalidDocument, _plan_faults(plan, the_plan, the_arm.price if the_arm else "", the_price))
    if the_arm and the_plan:
        errors += map(InvalidDocument, _length_faults(plan, the_plan, arm, the_arm))
    if the_arm and the_target:
        errors += map(InvalidDocument, _pair_faults(arm, the_arm, target, the_target))
    if len(errors) == 1:
        raise errors[0]
    if errors or not (the_arm and the_target and the_plan and the_price):
        raise InvalidDocument("\n".join(map(str, errors)))
    its_id = run_id(arm, key)
    attempt = int(known[-1].name) + 1 if (known := runs.attempts(its_id)) else 1
    return Run(
        folder=settings.runs() / its_id / str(attempt),
        run_id=its_id,
        attempt=attempt,
        arm_name=arm,
        arm=the_arm,
        target_name=target,
        target=the_target,
        plan_name=plan,
        plan=the_plan,
        price=the_price,
        repeat=repeat,
        slot="",
        seed=the_plan.seed,
        claimed_at=0,
    )


def _loaded(load: Callable[[str], Loaded], name: str, errors: list[Exception]) -> Loaded | None:
    try:
        return load(name)
    except (catalog.UnknownName, InvalidDocument) as error:
        errors.append(error)
        return None


def _length_faults(plan_name: str, plan: Plan, arm_name: str, arm: Arm) -> list[str]:
    """A plan that fixes output lengths needs an engine that can."""
    fixes = {
        "tiers.agent.replay": plan.tiers.agent.replay,
        "tiers.gateway.output_tokens": plan.tiers.gateway.output_tokens,
    }
    if {"min_tokens", "ignore_eos"} <= catalog.module_of(engines, arm.engine).TAKES:
        return []
    where = f"{plans.folder() / plan_name}.yaml"
    why = f"fixes output lengths, which engine {arm.engine} of arm {arm_name} cannot promise"
    return [f"{where}: {name}: {why}" for name, is_asked in fixes.items() if is_asked]


def _plan_faults(name: str, plan: Plan, price_name: str, price: Price) -> list[str]:
    path = plans.folder() / f"{name}.yaml"
    found = []
    for one in plan.slos:
        try:
            slo.load(one)
        except InvalidDocument as error:
            found.append(str(error))
    golden = settings.root() / "golden_set" / plan.gate.golden_set
    if plan.gate.none_because is None and not golden.is_dir():
        found.append(f"{path}: gate.golden_set: {golden}: no such folder")
    if plan.spend_cap_usd is not None and not isinstance(price.usd_per_hour, float):
        price_path = prices.folder() / f"{price_name}.yaml"
        found.append(f"{path}: spend_cap_usd: {price_path}: usd_per_hour is unresolved, so nothing can be capped")
    return found


def _pair_faults(name: str, arm: Arm, target_name: str, target: Target) -> list[str]:
    path, values = arms.folder() / f"{name}.yaml", arms.flatten(arm.model_dump())
    todo = arms.unresolved(arm)
    found = [
        f"{path}: {key}: is {'unresolved' if key in todo else 'missing'}, and target {target_name} needs it; "
        f"where there is a network: armwise pin {name}"
        for key in target.needs
        if key in todo or (values.get(key) is None and not _has_no(key, arm))
    ]
    try:
        driver = catalog.module_of(drivers, target.driver)
    except catalog.UnknownName as error:
        return [*found, f"{targets.folder() / target_name / 'target.yaml'}: driver: {error}"]
    files = {"arm": path, "target": targets.folder() / target_name / "target.yaml"}
    split = [fault.partition(": ") for fault in driver.faults(arm, target)]
    return found + [f"{files[which]}: {words}" for which, _, words in split]


def _has_no(key: str, arm: Arm) -> bool:
    """A model folder of the checkout has no revision of a hub: the checkout's own commit says which it is."""
    return key == "model.revision" and arm.model.path is not None


def run_id(arm: str, key: str | None) -> str:
    """Readable, and for a key the same each time."""
    if key is not None:
        return f"{arm}-{hashlib.sha256(key.encode()).hexdigest()[:12]}"
    return f"{arm}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


def _begin(run: Run, held: dict[str, Any], *, asked_at: float) -> Path:
    """Write run.json. Whatever fails is stored, and the slot is given back."""
    phase: dict[str, Any] = {
        "stage": "claim",
        "began_at": asked_at,
        "pid": os.getpid(),
        "waited_s": held["acquired_at"] - asked_at,
        "gpu_memory_mib": _gpu.memory_used_mib(run.slot),
    }
    try:
        content = runs.document(dataclasses.replace(run, claimed_at=held["acquired_at"]))
        artifact.write(run.folder / "run.json", content)
        stage.note(run.folder, phase | {"ended_at": time.time(), "state": "done", "error": None})
        until = f"until {lease.clock(held['expires_at'])} at the latest ({held['because']})"
        print(
            f"claim: slot {run.target_name}.{run.slot} for run {run.run_id} attempt {run.attempt}, {until}", flush=True
        )
    except BaseException as error:
        with suppress(OSError):
            words = str(error) or type(error).__name__
            stage.note(run.folder, phase | {"ended_at": time.time(), "state": "failed", "error": words})
        lease.give_back(run.folder, "the claim failed")
        raise
    return run.folder
