"""Runs that start and stop in seconds, and a look at the machine that is not the project's own.

`living` reads every process's environment with psutil: which processes of a run are left is never asked of the code
under test. STRAYS is an engine that starts processes which try to get away: in a session of their own, with an empty
environment, deaf to SIGTERM, orphaned.
"""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from conftest import PLAN, STAND_IN, TARGET, write_yaml

from tasks import artifact
from tasks.stages.claim import claim

UNGATED = {"none_because": "these tests are about starting and stopping"}
STRAYS = f"""
import os, subprocess, sys
deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
orphaning = '''
import subprocess
quiet = dict.fromkeys(("stdout", "stderr"), subprocess.DEVNULL)
print(subprocess.Popen(["sleep", "600"], env={{}}, start_new_session=True, **quiet).pid)
'''
strays = [
    subprocess.Popen(["sleep", "600"], start_new_session=True).pid,
    subprocess.Popen([sys.executable, "-c", deaf], start_new_session=True).pid,
    int(subprocess.run([sys.executable, "-c", orphaning], capture_output=True, text=True).stdout),
]
print("strays", *strays, flush=True)
os.execv(sys.executable, [sys.executable, {str(STAND_IN)!r}, *sys.argv[1:]])
"""
HOLDER = """
import sys, time
from pathlib import Path
from tasks import lease, stage
from tasks.stages.claim import claim
run_dir = claim(arm="cpu-baseline", target="stand-in", plan=sys.argv[1])
with lease.kept_alive(run_dir):
    stage.perform("deploy", run_dir)
    print(run_dir, flush=True)
    time.sleep(600)
"""


def plan(sandbox: Path, name: str = "short", **budget: float) -> str:
    """A plan without a gate, whose lease is lost after 1.5 s of silence unless `budget` says otherwise."""
    content = PLAN | {"gate": UNGATED, "budget": PLAN["budget"] | {"grace_s": 1.5} | budget}
    write_yaml(sandbox / "deploy" / "plans" / f"{name}.yaml", content)
    return name


def claimed(sandbox: Path, **budget: float) -> Path:
    """A run folder with a live lease, and no engine."""
    return claim(arm="cpu-baseline", target="stand-in", plan=plan(sandbox, **budget))


def use_engine(sandbox: Path, script: str) -> None:
    """Make target stand-in start another engine."""
    path = sandbox / "engine.py"
    path.write_text(script)
    target = TARGET | {"command": [sys.executable, str(path)]}
    write_yaml(sandbox / "deploy" / "targets" / "stand-in" / "target.yaml", target)


def age(run_dir: Path, **times: Any) -> None:
    """Set fields of a lease as if time had passed."""
    artifact.write(run_dir / "lease.json", artifact.read(run_dir / "lease.json") | times)


def hold(plan_name: str, tmp_path: Path) -> tuple[subprocess.Popen, Path]:
    """A process of its own that holds a deployed run, and its folder."""
    with (tmp_path / "holder.out").open("w") as out:
        holder = subprocess.Popen([sys.executable, "-c", HOLDER, plan_name], stdout=out, stderr=subprocess.STDOUT)
    said = tmp_path / "holder.out"

    def folder() -> str | None:
        assert holder.poll() is None, said.read_text()
        last = said.read_text().strip().splitlines()[-1:]
        return last[0] if last and last[0].startswith("/") else None

    return holder, Path(until(folder, within_s=30))


def living(run_dir: Path) -> list[str]:
    """Commands of live processes whose environment names the run folder, the supervisor's among them."""
    found = []
    for process in psutil.process_iter():
        try:
            if str(run_dir) in process.environ().values() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(f"{process.pid} {' '.join(process.cmdline())}")
        except (psutil.Error, OSError):
            continue
    return found


def guards(run_dir: Path) -> list[int]:
    """Pids of the run's supervisor and its watcher."""
    found = [int(line.split()[0]) for line in living(run_dir) if "-m tasks.drivers._supervisor" in line]
    assert len(found) == 2, found
    return found


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def accepts(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def until(asked: Callable[[], Any], *, within_s: float) -> Any:
    """What `asked` returns once that is true."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        answer = asked()
        if answer:
            return answer
        time.sleep(0.05)
    raise AssertionError(f"not within {within_s} s: {asked.__name__}")


def armwise(*words: str, file_bytes: int | None = None) -> subprocess.Popen:
    """The console script, as a shell would start it. `file_bytes`: no file may grow beyond, as on a full disk."""
    program = [str(Path(sys.executable).with_name("armwise")), *words]
    if file_bytes is not None:
        program = ["prlimit", f"--fsize={file_bytes}", *program]
    return subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ)


def last_line(capsys: Any, begin: str) -> str:
    """What follows `begin` in the last printed line that begins so."""
    return [line for line in capsys.readouterr().out.splitlines() if line.startswith(begin)][-1].removeprefix(begin)
