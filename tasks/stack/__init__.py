"""The local stack: Airflow, the gateway and the database of one machine, all on loopback.

    parts.py      which processes there are, in the order in which they start
    airflow.py    Airflow's configuration, by environment alone; its secrets; is it healthy
    process.py    start, find and stop processes by the marker that every one of them carries
    local.py      up, down and what is running
    api.py        Airflow's public REST API, as much of it as `armwise demo` and the tests need

One stack belongs to one home folder (ARMWISE_HOME), so stacks stand side by side. Every process carries that folder in
its environment and so do its children, whoever dies first: what belongs to a stack is found in /proc, never in a pid
file that a kill leaves stale. Nothing here imports Airflow: it is started as `python -m airflow ...`.
"""
