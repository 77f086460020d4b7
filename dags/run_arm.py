"""One run of one arm: claim a slot, deploy, verify, gate, drive both tiers, release, store, judge.

`claim` is the setup. It waits without holding a worker until a slot is free and shows its place in the queue; what it
returns, the path of the run folder, is all that travels between tasks. `release`, `validate`, `load` and `judge` are
teardowns: they follow whatever became of the work, a kill or a person's "mark failed" included. Only `judge` decides
about the run: it fails when any task did. A gate that says FAIL skips the load and fails nothing.

To try again, clear `deploy` with everything after it: its setup makes a new attempt. Any other task refuses to work on
an attempt that has no deployment, and says so.
"""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from airflow.sdk import Connection, Param, PokeReturnValue, XComArg, chain, dag, task
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from tasks import arm, plan, stage, target


def choice(names: list[str], first: str, says: str) -> Param:
    """A drop-down of what a registry folder holds."""
    return Param(first if first in names else next(iter(names), None), type="string", enum=names, description=says)


FORM = {
    "arm": choice(arm.names(), "cpu-baseline", "Server configuration under test: a file in deploy/arms"),
    "target": choice(target.names(), "local-cpu", "Where it is deployed: a folder in deploy/targets"),
    "plan": choice(plan.names(), "demo", "What is measured, how long, under which SLOs: a file in deploy/plans"),
    "repeat": Param(1, type="integer", minimum=1, description="Index of this repetition; each is a fresh deployment"),
}
SAFE_TO_REPEAT = {"retries": 2, "retry_delay": timedelta(seconds=5)}


def use_connection() -> None:
    """Let this task's process reach Postgres through the Connection `armwise_db`."""
    import os

    uri = Connection.get("armwise_db").get_uri()
    os.environ["ARMWISE_DB_URL"] = uri.replace("postgres://", "postgresql://", 1)


@task.sensor(
    mode="reschedule",
    poke_interval=5,
    timeout=timedelta(days=2).total_seconds(),  # in the queue
    execution_timeout=timedelta(minutes=5),  # of one look at it
)
def claim(params: dict, dag_run: object) -> PokeReturnValue:
    """Take a slot, or look again in a moment."""
    from tasks.lease import SlotBusy
    from tasks.stages.claim import claim as take

    if unknown := sorted({*params} - {*FORM}):
        raise AirflowFailException(f"no field {', '.join(unknown)} in the form; known: {', '.join(FORM)}")
    use_connection()
    try:
        folder = take(**params, key=dag_run.run_id)
    except SlotBusy as busy:
        print(busy)
        return PokeReturnValue(is_done=False)
    return PokeReturnValue(is_done=True, xcom_value=str(folder))


def perform(name: str, *, hours: float, **options: object) -> Callable[[str], XComArg]:
    """The task of one stage. Plans and leases bound its time far below `hours`, which only a hang reaches."""

    @task(task_id=name, execution_timeout=timedelta(hours=hours), **options)
    def work(run_dir: str) -> None:
        use_connection()
        if because := stage.skipped(name, Path(run_dir)):
            raise AirflowSkipException(because)
        stage.perform(name, Path(run_dir))

    return work


@task(retries=2, retry_delay=timedelta(seconds=5), execution_timeout=timedelta(hours=1))
def judge(run_dir: str, ti: object, dag_run: object) -> None:
    """Judge the stored rows; then fail if anything before it failed, since no other teardown decides about the run."""
    use_connection()
    stage.perform("judge", Path(run_dir))
    states = ti.get_task_states(dag_id=dag_run.dag_id, run_ids=[dag_run.run_id])[dag_run.run_id]
    failed = [name for name in stage.ORDER if states.get(name) in ("failed", "upstream_failed")]
    if failed:
        raise AirflowFailException(f"this run failed in {failed[0]}; all that did not work: {', '.join(failed)}")
    worked = [name for name in stage.ORDER if name in stage.NEEDS_LEASE and states.get(name) == "success"]
    if earlier := [name for name in worked if not stage.done(name, Path(run_dir))]:
        raise AirflowFailException(f"{', '.join(earlier)} worked on an earlier attempt: clear from deploy")


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
    slot = claim()
    work = [
        perform("deploy", hours=1)(slot),
        perform("verify", hours=0.25)(slot),
        perform("gate", hours=2)(slot),
        perform("drive_gateway", hours=12)(slot),
        perform("drive_agent", hours=12)(slot),
    ]
    release = perform("release", hours=0.25, **SAFE_TO_REPEAT)(slot)
    validate = perform("validate", hours=0.5, **SAFE_TO_REPEAT)(slot)
    load = perform("load", hours=0.5, **SAFE_TO_REPEAT)(slot)
    last = judge(slot)

    chain(slot.as_setup(), *work, release, validate, load, last)
    for teardown in (release, validate, load, last):
        teardown.as_teardown(setups=slot, on_failure_fail_dagrun=teardown is last)


run_arm()
