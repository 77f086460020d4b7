"""bench/gpu_host/unpack.sh makes, of what was carried, a checkout that knows its version and runs its own command."""

import subprocess
import tarfile
from importlib.metadata import version
from pathlib import Path

from conftest import CHECKOUT


def test_what_was_carried_becomes_a_checkout(tmp_path: Path) -> None:
    (tmp_path / "carried.py").write_text("WORD = 'carried'\n")
    (tmp_path / "parts").mkdir()
    with tarfile.open(tmp_path / "site.tar.xz", "w:xz") as site:
        site.add(tmp_path / "carried.py", "carried.py")
    whole = (tmp_path / "site.tar.xz").read_bytes()
    for number, half in enumerate((whole[:100], whole[100:])):
        (tmp_path / "parts" / f"part.{number}").write_bytes(half)
    with tarfile.open(tmp_path / "source.tgz", "w:gz") as source:
        for name in ("pyproject.toml", "tasks"):
            source.add(CHECKOUT / name, name)
    host = tmp_path / "host"
    unpack = [str(CHECKOUT / "bench" / "gpu_host" / "unpack.sh"), tmp_path / "parts", tmp_path / "source.tgz", host]
    subprocess.run(["bash", *map(str, unpack)], check=True)
    asked = "import carried, tasks; from importlib.metadata import version; print(carried.WORD, version('armwise'))"
    for environment in (".venv", ".venv-engine"):
        argv = [str(host / environment / "bin" / "python"), "-P", "-c", f"{asked}; print(tasks.__file__)"]
        said = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
        assert said.splitlines() == [f"carried {version('armwise')}", str(host / "tasks" / "__init__.py")]
