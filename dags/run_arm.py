"""One run of one arm: claim a slot, deploy, verify, gate, drive both tiers, release, store, judge.

`claim` is the setup. It waits, deferred, until a slot is free and shows its place in the queue; what it returns, the
path of the run folder, is all that travels between tasks. `release`, `validate`, `load` and `judge` are teardowns: they
follow whatever became of the work, a kill or a person's "mark failed" included. Only `judge` decides about the run: it
fails when any task did. A gate that says FAIL skips the load and fails nothing.

To try again, clear `deploy` with everything after it: its setup makes a new attempt. Any other task refuses to work on
an attempt that has no deployment, and says so.
"""

import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from airflow.sdk import Param, XComArg, chain, dag, task
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException
from armwise_claim import Claim
from armwise_connection import use_connection

from tasks import arm, plan, run, stage, target


def choice(names: list[str], first: str, says: str) -> Param:
    """A drop-down of what a registry folder holds."""
    return Param(first if first in names else next(iter(names), None), type="string", enum=names, description=says)


FORM = {
    "arm": choice(arm.names(), "cpu-baseline", "Server configuration under test: a file in deploy/arms"),
    "target": choice(target.names(), "local-cpu", "Where it is deployed: a folder in deploy/targets"),
    "plan": choice(plan.names(), "demo", "What is measured, how long, under which SLOs: a file in deploy/plans"),
    "repeat": Param(1, type="integer", minimum=1, description="Index of this repetition; each is a fresh deployment"),
}
POLITE = 10  # the machine may be measuring the next run already while this one is stored
SAFE_TO_REPEAT = {"retries": 2, "retry_delay": timedelta(seconds=5)}


def perform(name: str, *, hours: float, nice: int = 0, **options: object) -> Callable[[str], XComArg]:
    """The task of one stage. Plans and leases bound its time far below `hours`, which only a hang reaches."""

    @task(task_id=name, execution_timeout=timedelta(hours=hours), **options)
    def work(run_dir: str) -> None:
        use_connection()
        os.nice(nice)
        if because := stage.skipped(name, Path(run_dir)):
            raise AirflowSkipException(because)
        stage.perform(name, Path(run_dir))

    return work


@task(execution_timeout=timedelta(hours=1), **SAFE_TO_REPEAT)
def judge(run_dir: str, ti: object, dag_run: object) -> None:
    """Judge the rows, write the page, and decide about the run: no other teardown does."""
    from tasks.report import of_run, page

    use_connection()
    os.nice(POLITE)
    decided = None
    try:
        stage.perform("judge", Path(run_dir))
    except stage.StageFailed as error:  # the plan's fail_on: trying again finds the same
        decided = str(error)
    judged = run.read(Path(run_dir))
    print(f"page: {page.write(of_run.build(judged.run_id, judged.attempt))}")
    states = ti.get_task_states(dag_id=dag_run.dag_id, run_ids=[dag_run.run_id])[dag_run.run_id]
    if because := decided or stage.failure(Path(run_dir), states):
        raise AirflowFailException(because)


@dag(
    schedule=None,
    catchup=False,
    params=FORM,
    max_active_runs=16,  # only a cap: the slot's lease serialises runs
    is_paused_upon_creation=False,
    tags=["armwise"],
    doc_md=__doc__,
)
def run_arm() -> None:
    claim = Claim(task_id="claim")
    run_dir = claim.output
    work = [
        perform("deploy", hours=1)(run_dir),
        perform("verify", hours=0.25)(run_dir),
        perform("gate", hours=2)(run_dir),
        perform("drive_gateway", hours=12)(run_dir),
        perform("drive_agent", hours=12)(run_dir),
    ]
    release = perform("release", hours=0.25, **SAFE_TO_REPEAT)(run_dir)
    validate = perform("validate", hours=0.5, nice=POLITE, **SAFE_TO_REPEAT)(run_dir)
    load = perform("load", hours=0.5, nice=POLITE, **SAFE_TO_REPEAT)(run_dir)
    last = judge(run_dir)

    chain(claim.as_setup(), *work, release, validate, load, last)
    for teardown in (release, validate, load, last):
        teardown.as_teardown(setups=claim, on_failure_fail_dagrun=teardown is last)


run_arm()
