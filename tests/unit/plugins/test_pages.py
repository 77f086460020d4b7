"""Pages in Airflow: what a run folder may show while its run lives. tests/e2e asks Airflow itself."""

import sys

import pytest
from conftest import CHECKOUT
from fastapi import HTTPException

from tasks import artifact, settings

pytestmark = pytest.mark.services  # a Postgres


@pytest.fixture
def pages(armwise_home, monkeypatch):
    monkeypatch.setenv("AIRFLOW_HOME", str(armwise_home / "airflow"))
    monkeypatch.setattr(sys, "path", [*sys.path, str(CHECKOUT / "plugins")])
    return pytest.importorskip("armwise_pages", reason="Airflow is not installed")


def test_the_registrations_of_a_runs_own_gateway_hold_a_key_and_are_not_shown(pages):
    folder = settings.runs() / "r" / "1"
    shown = artifact.write(folder / "gateway-server" / "address.json", {"url": "http://127.0.0.1:1"})
    artifact.write(folder / "gateway-server" / "backends.json", {"backends": [{"key": "secret"}]})
    (folder / "innocent.json").symlink_to("gateway-server/backends.json")
    assert pages.run_folder("r/1/gateway-server/address.json").path == shown.resolve()
    for name in ("gateway-server/backends.json", "innocent.json"):
        with pytest.raises(HTTPException, match="404"):
            pages.run_folder(f"r/1/{name}")
    listing = pages.run_folder("r/1/gateway-server").body.decode()
    assert "address.json" in listing and "backends.json" not in listing
