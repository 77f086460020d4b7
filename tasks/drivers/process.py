"""The engine is a process of this machine, on loopback, under a supervisor that owns the lease.

`up` picks a free port, has the supervisor start the engine, and follows its start-up: a line of its log every few
seconds, an end at once when it exits, a deadline. The port is free when we look and may be taken when the engine binds;
then another one is tried. Ready means ready by a process of this run: who else answers on the port does not count.

The engine's key is made anew for each deployment and is only in `engine.key` (mode 0600) and the engine's environment.
The engine's development endpoints, which verify and the cache reset need, are open; hence loopback, and nothing else.
"""

import secrets
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tasks import artifact, catalog, engines, lease, settings
from tasks.arm import Arm
from tasks.drivers import _gpu, _key, _port, _processes, _supervised
from tasks.drivers._port import HOST
from tasks.run import Run
from tasks.stage import StageFailed
from tasks.target import Target

LOG = "engine.log"
LAST_LINES = 20
PORT_TRIES = 3
LOOK_EVERY_S = 0.5
SAY_EVERY_S = 5.0
STOPPING_S = 10.0  # that a supervisor may take to stop its engine before others call it a leftover


def faults(arm: Arm, target: Target) -> list[str]:
    """What makes this arm impossible on this machine, in words; looked at before the slot is taken."""
    found = []
    if not target.command:
        found.append("target: command: is missing; it says what starts the engine")
    elif not _executable(target.command[0]):
        hint = ""
        if target.command[0].startswith(".venv-"):
            hint = f"; make it: make {target.command[0].split('/')[0].removeprefix('.venv-')}"
        found.append(f"target: command: {_program(target.command[0])}: no such program{hint}")
    try:
        catalog.module_of(engines, arm.engine).argv(arm, host=HOST, port=0)
    except ValueError as error:
        found.append(f"arm: {error}")
    if arm.model.path is not None and not (settings.root() / arm.model.path).is_dir():
        found.append(f"arm: model.path: {settings.root() / arm.model.path}: no such folder")
    draft = arm.flags.get("speculative-config")
    if isinstance(draft, dict) and _looks_like_path(draft.get("model")):
        folder = settings.root() / str(draft["model"])
        if not folder.is_dir():
            found.append(f"arm: flags.speculative-config.model: {folder}: no such folder")
    return found


def up(run: Run) -> dict[str, Any]:
    """Start the engine and wait until it is ready. Raises StageFailed with its last lines."""
    _supervised.stop(run.folder)  # an earlier try of this stage
    key = secrets.token_urlsafe(24)
    _key.write(run.folder, key)
    _supervised.start(run.folder)
    deadline = time.monotonic() + run.plan.budget.start_s
    engine = catalog.module_of(engines, run.arm.engine)
    for number in range(1, PORT_TRIES + 1):
        port = _port.free()
        name = f"engine-{number}"
        argv = [*_command(run.target), *engine.argv(run.arm, host=HOST, port=port)]
        _supervised.launch(
            run.folder,
            name,
            argv,
            env=_declared(run),
            secrets={engine.KEY_ENV: _key.NAME},
            log=LOG,
            cwd=settings.root(),
        )
        if _follow(run, name, port, key, deadline):
            return _deployment(run, argv, port, _supervised.state(run.folder, name))
        print(f"deploy: port {port} was taken by another process; trying another", flush=True)
    raise StageFailed(f"{PORT_TRIES} ports in a row were taken by other processes while the engine started")


def down(deployment: dict[str, Any], run_dir: Path, *, reason: str) -> dict[str, Any]:  # noqa: ARG001
    """Stop everything of the run, by its marker, whether or not it was ever deployed. Idempotent.

    Returns `freed` and `processes_left`, in words, and `reason`.
    """
    return {**_supervised.stop(run_dir), "reason": reason}


def alive(deployment: dict[str, Any]) -> bool:
    """Does the engine's own first process still run?"""
    pid, pgid = deployment.get("engine_pid"), deployment.get("pgid")
    return any(p.pid == pid and p.pgid == pgid and p.run_dir for p in _processes.everything())


def leftovers() -> list[dict[str, Any]]:
    """Runs with processes on this machine whose lease was over a while ago: run_dir, why, processes.

    A run of another home folder counts too, if that folder is there: its lease says so as well. Where it is not there,
    another container may see it; then nothing is proven, and nothing is touched.
    """
    marked: dict[str, list[str]] = {}
    for process in _processes.everything():
        run_dir = process.run_dir or process.supervises
        if run_dir:
            marked.setdefault(run_dir, []).append(str(process))
    found = [(Path(run_dir), _outlived(Path(run_dir)), processes) for run_dir, processes in marked.items()]
    return [{"run_dir": str(run_dir), "why": why, "processes": words} for run_dir, why, words in found if why]


def _declared(run: Run) -> dict[str, str]:
    """Environment that slot, engine, target and arm declare; the arm's own word counts last."""
    engine = catalog.module_of(engines, run.arm.engine)
    return {
        **_devices(run.slot),
        **engine.environment(run.arm),
        **run.target.env,
        **run.arm.env,
        **engine.DEV_ENV,
    }


def _program(word: str) -> str:
    """The first word of a command: a relative path with a folder in it is looked up in the checkout."""
    return str(settings.root() / word) if "/" in word and not word.startswith("/") else word


def _devices(slot: str) -> dict[str, str]:
    """The engine sees the slot's GPUs and no others."""
    numbers = _gpu.of_slot(slot)
    if numbers is None:
        return {}
    return {"CUDA_VISIBLE_DEVICES": ",".join(map(str, numbers)), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def _command(target: Target) -> list[str]:
    """What starts the engine. It yields the CPU to the client on the same machine, whose stamps would wait for it."""
    niceness = ["nice", "-n", str(target.nice)] if target.nice else []
    return [*niceness, _program(target.command[0]), *target.command[1:]]


def _executable(word: str) -> bool:
    from shutil import which

    return which(_program(word)) is not None


def _looks_like_path(model: object) -> bool:
    return isinstance(model, str) and model.startswith(("deploy/", "./", "../", "/"))


def _follow(run: Run, name: str, port: int, key: str, deadline: float) -> bool:
    """Wait for the engine. True: ready; False: its port was taken by another process. Raises StageFailed."""
    engine = catalog.module_of(engines, run.arm.engine)
    began, said = time.monotonic(), time.monotonic()
    while True:
        state = _supervised.state(run.folder, name)
        elapsed = time.monotonic() - began
        if state["exit_code"] is not None:
            if _port.is_taken(run.folder, port):
                return False
            raise StageFailed(_exited(run, state, elapsed))
        if engine.ready(f"http://{HOST}:{port}", key) and _port.is_ours(run.folder, port):
            print(f"deploy: ready after {elapsed:.1f} s on port {port}", flush=True)
            return True
        if time.monotonic() > deadline:
            raise StageFailed(
                f"the engine was not ready within {run.plan.budget.start_s:g} s (plan {run.plan_name}: "
                f"budget.start_s); {_last_words(run.folder / LOG)}"
            )
        if time.monotonic() - said > SAY_EVERY_S:
            said = time.monotonic()
            _say_progress(run, elapsed)
        time.sleep(LOOK_EVERY_S)


def _say_progress(run: Run, elapsed: float) -> None:
    last = _tail(run.folder / LOG, 1)
    line = last[0][:160] if last else "nothing in its log yet"
    print(f"deploy: {elapsed:.0f} s of at most {run.plan.budget.start_s:g} s: {line}", flush=True)


def _exited(run: Run, state: dict[str, Any], elapsed: float) -> str:
    ended = run.folder / "supervisor.json"
    if ended.exists():
        return f"the supervisor stopped the engine after {elapsed:.1f} s of start-up: {artifact.read(ended)['why']}"
    if "error" in state:
        return f"the engine could not be started: {state['error']}"
    return f"the engine exited with code {state['exit_code']} during start-up; {_last_words(run.folder / LOG)}"


def _last_words(log: Path) -> str:
    lines = _tail(log, LAST_LINES)
    if not lines:
        return f"it wrote nothing to {log}"
    return "\n".join([f"the last lines of {log}:", *(f"    {line}" for line in lines)])


def _tail(path: Path, lines: int) -> list[str]:
    """The last non-empty lines of a text file; none if it is missing."""
    if not path.exists():
        return []
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 64_000))
        text = file.read().decode(errors="replace")
    return [line for line in text.splitlines() if line.strip()][-lines:]


def _outlived(run_dir: Path) -> str | None:
    """Why a run with processes should have none; None if its lease lives, lapsed just now, or proves nothing."""
    if not run_dir.parent.parent.is_dir():
        return None
    try:
        at, why = lease.lapsed_at(lease.read(run_dir))
    except (artifact.BrokenArtifact, KeyError, TypeError) as error:
        return f"it has no lease: {error}"
    return why if time.time() > at + STOPPING_S else None


def _deployment(run: Run, argv: list[str], port: int, state: dict[str, Any]) -> dict[str, Any]:
    ready_at = time.time()
    return {
        "format": 1,
        "driver": "process",
        "engine": run.arm.engine,
        "url": f"http://{HOST}:{port}",
        "model": run.arm.model.served_as,
        "technique": run.technique,
        "argv": argv,
        "env": _declared(run),
        "versions": {"armwise": version("armwise"), **_gpu.versions()},
        "image": None,
        "engine_pid": state["pid"],
        "pgid": state["pgid"],
        "supervisor_pid": state["sid"],
        "started_at": state["started_at"],
        "ready_at": ready_at,
        "start_s": ready_at - state["started_at"],
        "log": str(run.folder / LOG),
        "gpu_model": run.target.gpu_model or _gpu.model(),
        "price_key": run.arm.price,
        "dev_endpoints": bool(catalog.module_of(engines, run.arm.engine).DEV_ENV),
    }
