"""Fixtures that every suite uses. `armwise_home`: an empty state folder. `sandbox`: a checkout of its own to spoil.

The sandbox has copies of the declarations (the model folders are links), links to golden_set/ and sql/, a target
`stand-in` that starts tests/stand_in/engine.py, and a plan `smoke` that takes seconds. Faults of the engine are planted
by the environment variable STAND_IN_FAULT, which the process driver hands on.
"""

import shutil
import sys
from pathlib import Path

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
PLAN = {
    "purpose": "seconds, for tests: one short level per tier",
    "seed": 7,
    "tiers": {
        "gateway": {"levels": [{"users": 2, "duration_s": 2}], "drain_s": 5, "max_tokens": 32},
        "agent": {"levels": [{"users": 2, "duration_s": 3}], "drain_s": 5},
    },
    "gate": {"at_once": 4, "timeout_s": 60},
    "budget": {"start_s": 20, "gate_s": 60, "drive_s": 60, "release_s": 20, "grace_s": 10},
}


@pytest.fixture
def armwise_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty state folder; ARMWISE_HOME points to it."""
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("ARMWISE_HOME", str(folder))
    return folder


@pytest.fixture
def sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, armwise_home: Path) -> Path:
    """A checkout of its own (ARMWISE_ROOT), with target `stand-in` and plan `smoke`; state in armwise_home."""
    root = tmp_path / "root"
    shutil.copytree(CHECKOUT / "deploy", root / "deploy", ignore=lambda folder, _: _models(folder))
    (root / "deploy" / "models").symlink_to(CHECKOUT / "deploy" / "models")
    for name in ("golden_set", "sql"):
        (root / name).symlink_to(CHECKOUT / name)
    write_yaml(root / "deploy" / "targets" / "stand-in" / "target.yaml", TARGET)
    slos = sorted(path.stem for path in (root / "deploy" / "slos").glob("*.yaml"))
    write_yaml(root / "deploy" / "plans" / "smoke.yaml", PLAN | {"slos": slos})
    monkeypatch.setenv("ARMWISE_ROOT", str(root))
    return root


def write_yaml(path: Path, content: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


def _models(folder: str) -> list[str]:
    return ["models"] if Path(folder) == CHECKOUT / "deploy" else []
