"""Every recipe of docs/adding.md is executed: its one file, in a copy of the project, passes the folder's own suite."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.services  # a pytest of its own for each recipe
ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```\w+ (?P<path>\S+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
SUITES = {
    "deploy/arms": "test_arms.py",
    "deploy/targets": "test_targets.py",
    "deploy/slos": "test_slos.py",
    "tasks/agent/tools": "test_tools.py",
    "sql/report": "test_reports.py",
    "tasks/engines": "test_engines.py",
    "tasks/drivers": "test_drivers.py",
}
RECIPES = {match["path"]: match["text"] for match in BLOCK.finditer((ROOT / "docs/adding.md").read_text())}


def folder_of(path: str) -> str:
    return next(folder for folder in SUITES if path.startswith(folder))


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The files git tracks, in a folder of their own."""
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True).stdout.decode()
    for name in filter(None, tracked.split("\0")):
        if (ROOT / name).exists():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, tmp_path / name)
    return tmp_path


def run_suite(project: Path, suite: str, name: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"tests/contract/{suite}", "-k", name]
    environment = os.environ | {"PYTHONPATH": str(project), "ARMWISE_ROOT": str(project)}
    environment.pop("ARMWISE_HOME", None)
    return subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, timeout=200)


def test_every_kind_has_a_recipe() -> None:
    assert {folder_of(path) for path in RECIPES} == set(SUITES)


@pytest.mark.parametrize("path", RECIPES)
def test_one_file_is_enough(copy: Path, path: str) -> None:
    assert not (copy / path).exists()
    (copy / path).parent.mkdir(parents=True, exist_ok=True)
    (copy / path).write_text(RECIPES[path])
    name = Path(path).parent.name if path.endswith("target.yaml") else Path(path).stem

    ran = run_suite(copy, SUITES[folder_of(path)], name)

    assert ran.returncode == 0, ran.stdout + ran.stderr  # 5 would mean that no test looked at the new file
    assert re.search(r"\d+ passed", ran.stdout), ran.stdout
