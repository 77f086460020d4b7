"""The local stack: Airflow, the gateway and the database of one machine, all on loopback.

    airflow.py    Airflow's parts and its configuration, by environment alone; its secrets
    process.py    start, find and stop processes by the marker that every one of them carries
    local.py      up, down and what is running
    api.py        Airflow's public REST API, as much of it as `armwise demo` and the tests need
    follow.py     what a DAG run's tasks print, as they print it

One stack belongs to one home folder (ARMWISE_HOME), so stacks stand side by side. Every process carries that folder in
its environment and so do its children, whoever dies first: what belongs to a stack is found in /proc, never in a pid
file that a kill leaves stale. Nothing here imports Airflow: it is started as `python -m airflow ...`.
"""


class StackFailed(RuntimeError):
    """A part that did not start, does not answer or would not stop; the message holds its own last words."""
