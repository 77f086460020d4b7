"""The stack of one home folder: `up`, `down` and where it answers.

`up` starts what is not running and waits until all of it is healthy; called on a running stack it changes nothing.
What a killed part left behind (workers, an engine) is stopped first. If it fails half way, what it started is stopped.
`down` stops everything that carries the stack's marker and returns what it could not stop: nothing, normally.
"""

import fcntl
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from tasks import artifact, database, leftovers, settings
from tasks.stack import StackFailed, airflow, process
from tasks.stack.api import Airflow, ApiFault

GATEWAY = "gateway"
PARTS = (GATEWAY, *airflow.PARTS)
HEALTHY_WITHIN_S = 180
DAGS = ("run_arm",)

Say = Callable[[str], None]


@dataclass(frozen=True)
class Address:
    """Where a stack answers. Ports are kept while any part is up, and Airflow's beyond that where it is still free."""

    home: Path
    airflow_port: int
    gateway_port: int

    @property
    def airflow(self) -> str:
        return f"http://127.0.0.1:{self.airflow_port}"

    @property
    def gateway(self) -> str:
        return f"http://127.0.0.1:{self.gateway_port}"

    def client(self) -> Airflow:
        """Airflow's API with the stack's own login."""
        return Airflow(self.airflow, airflow.USER, airflow.password(self.home))


def running() -> Address | None:
    """The stack of this home folder, if any of its parts lives."""
    home = settings.home()
    path = _path(home)
    if not path.exists() or not any(process.leader(home, part) for part in PARTS):
        return None
    content = artifact.read(path)
    return Address(home, content["airflow_port"], content["gateway_port"])


def up(say: Say = print, *, port: int | None = None) -> Address:
    """Start the stack. port: of Airflow (default: 8080 or, if taken, any free one). Raises StackFailed, OSError."""
    home = settings.home()
    with _one_at_a_time(home):
        database.up()
        before = {part for part in PARTS if process.leader(home, part)}
        _stop_strays(home, say)
        for row in leftovers.reap():
            say(f"freed what run {row['run_dir']} had left: {row['why']}")
        address = running() or _choose(home, port)
        environment = airflow.environment(
            home, port=address.airflow_port, metadata_url=database.url("airflow"), rows_url=database.connection_uri()
        )
        airflow.password(home)
        try:
            _migrate(home, environment, say)
            _start(address, environment, say)
            _wait(address, say)
        except BaseException:
            process.stop([p for part in PARTS if part not in before for p in process.members(home, part)], within_s=10)
            if not before:
                database.down()
            raise
    return address


def down(say: Say = print) -> list[str]:
    """Stop the stack, database included. Returns words for every process that would not go: empty is the proof."""
    home = settings.home()
    with _one_at_a_time(home):
        for part in reversed(PARTS):
            if process.members(home, part):
                say(f"stopping {part}")
                process.stop_part(home, part, within_s=20)
        process.stop(process.members(home), within_s=10)
        database.down()
        return [process.words(p) for p in process.members(home)]


def _start(address: Address, environment: dict[str, str], say: Say) -> None:
    home = address.home
    for part in PARTS:
        if process.leader(home, part):
            continue
        say(f"starting {part}")
        argv = airflow.PARTS.get(part) or _gateway(address)
        process.start(argv, home=home, part=part, environment=environment, log=_log(home, part))


def _gateway(address: Address) -> tuple[str, ...]:
    state = str(address.home / "gateway")
    return (airflow.RUN[0], "-m", "tasks.gateway", "--port", str(address.gateway_port), "--state", state)


def _wait(address: Address, say: Say) -> None:
    """Until every part is healthy and the DAGs are known."""
    began, waiting = time.monotonic(), "nothing yet"
    while time.monotonic() - began < HEALTHY_WITHIN_S:
        for part in PARTS:
            if process.leader(address.home, part) is None:
                raise StackFailed(f"{part} ended while starting; its last lines:\n{_tail(_log(address.home, part))}")
        if not (waiting := _unhealthy(address)):
            say(f"healthy after {time.monotonic() - began:.0f} s")
            return
        time.sleep(0.5)
    raise StackFailed(f"not healthy after {HEALTHY_WITHIN_S} s: {waiting}; logs are in {address.home / 'logs'}")


def _unhealthy(address: Address) -> str:
    """What is still missing, in words; empty when nothing is."""
    try:
        httpx.get(f"{address.gateway}/healthz", timeout=5).raise_for_status()
        health = httpx.get(f"{address.airflow}/api/v2/monitor/health", timeout=5).raise_for_status().json()
        sick = [name for name, state in health.items() if state["status"] != "healthy"]
        if sick:
            return f"not healthy: {', '.join(sick)}"
        client = address.client()
        known = {dag["dag_id"] for dag in client.call("GET", "/dags?limit=100")["dags"]}
        errors = client.call("GET", "/importErrors")["import_errors"]
    except (httpx.HTTPError, ApiFault) as error:
        return str(error)
    if errors:
        raise StackFailed(f"{errors[0]['filename']} cannot be imported:\n{errors[0]['stack_trace']}")
    missing = set(DAGS) - known
    return f"DAGs not parsed yet: {', '.join(sorted(missing))}" if missing else ""


def _migrate(home: Path, environment: dict[str, str], say: Say) -> None:
    """Bring Airflow's own database to its version; skipped when that was done before in this very database."""
    from importlib.metadata import version

    stamp = home / "airflow" / "migrated.json"
    done = {"airflow": version("apache-airflow"), "database": environment["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"]}
    if stamp.exists() and artifact.read(stamp) == done and _has_tables():
        return
    say("preparing Airflow's database")
    log = _log(home, "db-migrate")
    with log.open("ab") as output:
        ended = subprocess.run(
            [*airflow.RUN, "db", "migrate"],
            env={**os.environ, **environment},
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=HEALTHY_WITHIN_S,
        )
    if ended.returncode:
        raise StackFailed(f"airflow db migrate: exit {ended.returncode}; its last lines:\n{_tail(log)}")
    artifact.write(stamp, done)


def _has_tables() -> bool:
    import sqlalchemy

    return sqlalchemy.inspect(database.engine("airflow")).has_table("alembic_version")


def _stop_strays(home: Path, say: Say) -> None:
    for part in PARTS:
        strays = [] if process.leader(home, part) else process.members(home, part)
        if strays:
            say(f"stopping what a dead {part} left behind: {', '.join(process.words(p) for p in strays)}")
            process.stop(strays, within_s=10)


def _choose(home: Path, port: int | None) -> Address:
    kept = artifact.read(_path(home))["airflow_port"] if _path(home).exists() else 8080
    address = Address(home, port or (kept if _is_free(kept) else free_port()), free_port())
    artifact.write(
        _path(home), {"format": 1, "airflow_port": address.airflow_port, "gateway_port": address.gateway_port}
    )
    return address


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return not _fails(lambda: probe.bind(("127.0.0.1", port)))


def _fails(attempt: Callable[[], object]) -> bool:
    try:
        attempt()
    except OSError:
        return True
    return False


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def _one_at_a_time(home: Path) -> Iterator[None]:
    """Two people (or a test and a person) that start or stop one stack at once would fight."""
    with (home / "stack.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StackFailed(f"another `armwise up` or `armwise down` is at work on {home}") from None
        yield


def _path(home: Path) -> Path:
    return home / "stack.json"


def _log(home: Path, part: str) -> Path:
    folder = home / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{part}.log"


def _tail(log: Path, lines: int = 20) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
