"""Fixtures that every suite uses. `armwise_home`: an empty state folder, and no database unless the test asks for one.
`sandbox`: a checkout of its own to spoil. `postgres`: an empty database with today's schema, on a real Postgres.

The sandbox has copies of the declarations (the model folders are links), links to golden_set/ and sql/, a target
`stand-in` that starts tests/stand_in/engine.py, and a plan `smoke` that takes seconds. Faults of the engine are planted
by the environment variable STAND_IN_FAULT, which the process driver hands on.
"""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

CHECKOUT = Path(__file__).resolve().parents[1]
STAND_IN = Path(__file__).resolve().parent / "stand_in" / "engine.py"
TARGET = {
    "driver": "process",
    "says": "the stand-in engine of the tests, on this machine",
    "slots": ["s0"],
    "command": [sys.executable, str(STAND_IN)],
}
UNCALIBRATED = {"calibrate_s": 0, "not_calibrated_because": "seconds that only tests of calibration spend"}
PLAN = {
    "purpose": "seconds, for tests: one short level per tier",
    "seed": 7,
    "tiers": {
        "gateway": {"levels": [{"users": 2, "duration_s": 2}], "drain_s": 5, "max_tokens": 32} | UNCALIBRATED,
        "agent": {"levels": [{"users": 2, "duration_s": 3}], "drain_s": 5} | UNCALIBRATED,
    },
    "gate": {"at_once": 4, "timeout_s": 60},
    "budget": {"start_s": 20, "gate_s": 60, "drive_s": 60, "release_s": 20, "grace_s": 10},
}


@pytest.fixture
def armwise_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    """An empty state folder; ARMWISE_HOME points to it."""
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("ARMWISE_HOME", str(folder))
    if "postgres" not in request.fixturenames:
        monkeypatch.setenv("ARMWISE_DB_URL", "none")
    return folder


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The embedded Postgres, one for all tests; yields the URL of its database armwise, which serves as a template."""
    from tasks import database

    with pytest.MonkeyPatch.context() as patch, reachable_folder() as home:
        patch.setenv("ARMWISE_HOME", str(home))
        patch.delenv("ARMWISE_DB_URL", raising=False)
        database.up()
        url = database.url()
        with _admin(url).connect() as connection:
            connection.exec_driver_sql("alter system set fsync = off")
            connection.exec_driver_sql("select pg_reload_conf()")
        patch.undo()
        yield url
        patch.setenv("ARMWISE_HOME", str(home))
        database.down()


@contextmanager
def reachable_folder() -> Iterator[Path]:
    """For a server that root runs as another user: every start of pytest closes pytest's own folders to others."""
    with tempfile.TemporaryDirectory(prefix="armwise-test-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o711)
        yield Path(folder)


@contextmanager
def database_like(server: str, template: str = "armwise") -> Iterator[str]:
    """A database of its own on the server of `postgres_server`, named by ARMWISE_DB_URL; yields that URL."""
    name, admin = f"test_{os.urandom(6).hex()}", _admin(server)
    with admin.connect() as connection:
        connection.exec_driver_sql(f"create database {name} template {template} owner armwise")
    url = server.replace("/armwise?", f"/{name}?")
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("ARMWISE_DB_URL", url)
            yield url
    finally:
        with admin.connect() as connection:
            connection.exec_driver_sql(f"drop database {name} with (force)")


@pytest.fixture
def postgres(postgres_server: str) -> Iterator[str]:
    """An empty database with today's schema, named by ARMWISE_DB_URL; yields that URL."""
    with database_like(postgres_server) as url:
        yield url


def _admin(url: str) -> Any:
    """An engine of the server's superuser, each statement a transaction of its own."""
    import sqlalchemy

    admin = url.replace("//armwise@/armwise", "//postgres@/postgres")
    return sqlalchemy.create_engine(admin, isolation_level="AUTOCOMMIT", poolclass=sqlalchemy.NullPool)


@pytest.fixture
def home(postgres: str, armwise_home: Path) -> Path:
    """An empty state folder with a database."""
    return armwise_home


@pytest.fixture
def sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, armwise_home: Path) -> Path:
    """A checkout of its own (ARMWISE_ROOT), with target `stand-in` and plan `smoke`; state in armwise_home."""
    root = checkout_copy(tmp_path / "root")
    monkeypatch.setenv("ARMWISE_ROOT", str(root))
    return root


def checkout_copy(root: Path) -> Path:
    """What `sandbox` is made of, for a fixture that lives longer."""
    shutil.copytree(CHECKOUT / "deploy", root / "deploy", ignore=lambda folder, _: _models(folder))
    (root / "deploy" / "models").symlink_to(CHECKOUT / "deploy" / "models")
    for name in ("golden_set", "sql"):
        (root / name).symlink_to(CHECKOUT / name)
    write_yaml(root / "deploy" / "targets" / "stand-in" / "target.yaml", TARGET)
    slos = sorted(path.stem for path in (root / "deploy" / "slos").glob("*.yaml"))
    write_yaml(root / "deploy" / "plans" / "smoke.yaml", PLAN | {"slos": slos})
    return root


def write_yaml(path: Path, content: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


def _models(folder: str) -> list[str]:
    return ["models"] if Path(folder) == CHECKOUT / "deploy" else []
