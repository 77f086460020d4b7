"""Parse dags/ as Airflow's dag processor does and print its shape as JSON. A process of its own: Airflow's import takes
seconds, changes the process and warns, none of which a test should inherit.
"""

import json
import os
import sys
import tempfile
import time
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]


def main() -> None:
    os.environ |= {
        "AIRFLOW_HOME": tempfile.mkdtemp(),
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(CHECKOUT / "plugins"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    }
    import airflow.sdk  # noqa: F401, TID251 (this is the edge; imported before the clock starts)
    from airflow.dag_processing.dagbag import DagBag  # noqa: TID251

    began = time.monotonic()
    bag = DagBag(CHECKOUT / "dags")
    answer = {
        "seconds": time.monotonic() - began,
        "errors": bag.import_errors,
        "modules": sorted(name for name in sys.modules if name.startswith("tasks.")),
        "dags": {name: dag_shape(dag) for name, dag in bag.dags.items()},
    }
    print(json.dumps(answer, default=str))


def dag_shape(dag: object) -> dict[str, object]:
    return {
        "schedule": dag.schedule,
        "catchup": dag.catchup,
        "dagrun_timeout": dag.dagrun_timeout,
        "params": {name: dag.params.get_param(name).schema for name in dag.params},
        "defaults": {name: dag.params[name] for name in dag.params},
        "tasks": {task.task_id: task_shape(task) for task in dag.tasks},
    }


def task_shape(task: object) -> dict[str, object]:
    return {
        "is_setup": task.is_setup,
        "is_teardown": task.is_teardown,
        "decides": bool(task.on_failure_fail_dagrun),
        "retries": task.retries,
        "timeout_s": task.execution_timeout.total_seconds() if task.execution_timeout else None,
        "upstream": sorted(task.upstream_task_ids),
    }


if __name__ == "__main__":
    main()
