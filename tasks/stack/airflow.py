"""Airflow's configuration, by environment alone: what differs from its defaults, and why.

Its secrets are made once per home folder and kept in airflow/secrets.json (0600): restarts keep logins and running
tasks valid. Connection `armwise_db` is the database that the DAGs' tasks store their rows in.
"""

import json
import secrets
import sys
from base64 import urlsafe_b64encode
from pathlib import Path

from tasks import artifact, settings

CONNECTION = "AIRFLOW_CONN_ARMWISE_DB"
USER = "admin"
RUN = (sys.executable, "-m", "airflow")
# Logs are files that the API server reads itself: nobody serves them on a port. The scheduler comes last: by then
# whoever it needs answers.
PARTS = {
    "api-server": (*RUN, "api-server"),
    "dag-processor": (*RUN, "dag-processor"),
    "triggerer": (*RUN, "triggerer", "--skip-serve-logs"),
    "scheduler": (*RUN, "scheduler", "--skip-serve-logs"),
}


def environment(home: Path, *, port: int, metadata_url: str, rows_url: str) -> dict[str, str]:
    """Everything the parts are told. metadata_url is Airflow's own database, rows_url that of the results."""
    folder = home / "airflow"
    kept = _secrets(folder)
    url = f"http://127.0.0.1:{port}"
    return {
        "AIRFLOW_HOME": str(folder),
        "ARMWISE_HOME": str(home),
        "ARMWISE_ROOT": str(settings.root()),
        CONNECTION: rows_url,
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": metadata_url,
        "AIRFLOW__CORE__DAGS_FOLDER": str(settings.root() / "dags"),
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(settings.root() / "plugins"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
        "AIRFLOW__CORE__PARALLELISM": "4",
        "AIRFLOW__CORE__FERNET_KEY": kept["fernet"],
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{url}/execution/",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": f"{USER}:admin",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(folder / "passwords.json"),
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__BASE_URL": url,
        "AIRFLOW__API__WORKERS": "1",
        "AIRFLOW__API__SECRET_KEY": kept["api"],
        "AIRFLOW__API_AUTH__JWT_SECRET": kept["jwt"],
        "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(home / "logs" / "airflow"),
        "AIRFLOW__LOGGING__DAG_PROCESSOR_CHILD_PROCESS_LOG_DIRECTORY": str(home / "logs" / "airflow" / "dag_processor"),
        "AIRFLOW__LOGGING__COLORED_CONSOLE_LOG": "False",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
        **TIMING,
    }


TIMING = {
    # A killed worker is noticed after this silence; the default of 300 s is longer than a whole small run.
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "30",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "5",
    # A task of a scheduler that was killed is taken over by the next one after these, not after five minutes.
    "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "10",
    "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "20",
    # The gap between two stages of a run is paid for: the GPU is held.
    "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "1",
    # Parsing takes CPU from what is measured beside it; the folders of the form's choices change rarely.
    "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "60",
    "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "60",
    "AIRFLOW__DAG_PROCESSOR__PRINT_STATS_INTERVAL": "0",
}


def password(home: Path) -> str:
    """The login of USER; made and written for Airflow's simple auth manager on the first call."""
    path = home / "airflow" / "passwords.json"
    if not path.exists():
        _write_private(path, {USER: secrets.token_urlsafe(12)})
    return str(json.loads(path.read_text())[USER])


def _secrets(folder: Path) -> dict[str, str]:
    path = folder / "secrets.json"
    if not path.exists():
        made = {name: secrets.token_urlsafe(48) for name in ("api", "jwt")}
        _write_private(path, made | {"fernet": urlsafe_b64encode(secrets.token_bytes(32)).decode()})
    return {name: str(value) for name, value in artifact.read(path).items()}


def _write_private(path: Path, content: dict[str, str]) -> None:
    artifact.write(path, content)  # whose temporary file, and so the file, is 0600 from the start
