"""The Connection `armwise_db`: how tasks of the DAGs reach the Postgres that rows are stored in."""

import os

from airflow.sdk import Connection


def use_connection() -> None:
    """Hand the Connection to tasks/, which never imports Airflow, through ARMWISE_DB_URL of this task's process."""
    uri = Connection.get("armwise_db").get_uri()
    os.environ["ARMWISE_DB_URL"] = uri.replace("postgres://", "postgresql://", 1)
