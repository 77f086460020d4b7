"""What the parts of Airflow are told."""

import json
import stat

import pytest

from tasks.stack import airflow


@pytest.fixture
def told(tmp_path):
    return lambda: airflow.environment(
        tmp_path, port=8123, metadata_url="postgresql://a/airflow", rows_url="postgres://r"
    )


def test_nothing_listens_beyond_loopback(told):
    assert told()["AIRFLOW__API__HOST"] == "127.0.0.1"
    assert told()["AIRFLOW__CORE__EXECUTION_API_SERVER_URL"] == "http://127.0.0.1:8123/execution/"
    serving_logs = [name for name in ("scheduler", "triggerer") if "--skip-serve-logs" not in airflow.PARTS[name]]
    assert serving_logs == [], "they would serve logs on every interface"


def test_secrets_are_private_and_outlive_a_restart(told, tmp_path):
    secrets = {name: value for name, value in told().items() if name.endswith(("_KEY", "_SECRET"))}
    assert len(set(secrets.values())) == len(secrets) == 3
    assert {name: told()[name] for name in secrets} == secrets
    password = airflow.password(tmp_path)
    assert airflow.password(tmp_path) == password
    assert json.loads((tmp_path / "airflow" / "passwords.json").read_text()) == {"admin": password}
    for name in ("secrets.json", "passwords.json"):
        assert stat.S_IMODE((tmp_path / "airflow" / name).stat().st_mode) == 0o600


def test_two_homes_share_no_secret(told, tmp_path):
    other = airflow.environment(tmp_path / "other", port=1, metadata_url="", rows_url="")
    assert other["AIRFLOW__API_AUTH__JWT_SECRET"] != told()["AIRFLOW__API_AUTH__JWT_SECRET"]
    assert airflow.password(tmp_path / "other") != airflow.password(tmp_path)
