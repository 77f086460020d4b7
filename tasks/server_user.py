"""The user that the embedded Postgres runs as. Postgres refuses root.

Anybody else runs it as himself. Root runs it as the system user `pgserver`, made if it is missing; that user must reach
its data and the programs, so every folder above them gets the right to be passed through (x, not r).
"""

import os
import pwd
import stat
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any


class DatabaseAway(RuntimeError):
    """No Postgres to work with; the message says what was tried and what to do."""


def account() -> pwd.struct_passwd | None:
    """None: ourselves. Postgres refuses root."""
    if os.geteuid() != 0:
        return None
    with suppress(KeyError):
        return pwd.getpwnam("pgserver")
    try:
        subprocess.run(["useradd", "-r", "-M", "-s", "/usr/sbin/nologin", "pgserver"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise DatabaseAway(
            f"Postgres does not run as root, and user pgserver could not be made ({error}): make it, run as another "
            "user, or set ARMWISE_DB_URL"
        ) from error
    return pwd.getpwnam("pgserver")


def run(program: Path, *arguments: str, log: Path, within_s: float) -> bool:
    """Run a program as that user, its output in log. Did it end well, and in time?"""
    open_the_way(program)
    readable(program.parent.parent)
    user = account()
    identity: dict[str, Any] = {} if user is None else {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    with log.open("w+") as output:  # not a pipe: a server that it starts would inherit it, and we would wait for that
        try:
            subprocess.run(
                [str(program), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=clean,
                cwd="/",
                timeout=within_s,
                check=True,
                **identity,
            )
        except subprocess.CalledProcessError:
            return False
        except subprocess.TimeoutExpired:
            output.write(f"no end within {within_s:g} s\n")
            return False
    return True


def give(path: Path) -> None:
    user = account()
    if user is not None:
        os.chown(path, user.pw_uid, user.pw_gid)


def private(place: Path) -> None:
    """Make the socket's folder, or check that nobody else made it first."""
    if not place.exists():
        place.mkdir(mode=0o700)
        give(place)
    found, user = place.lstat(), account()
    owner = os.geteuid() if user is None else user.pw_uid
    if found.st_uid != owner or not stat.S_ISDIR(found.st_mode) or found.st_mode & 0o077:
        raise DatabaseAway(f"{place}: must be a folder of user {owner} with mode 0700; remove it and try again")


def open_the_way(path: Path) -> None:
    """As root: let the server's user pass through the folders above path."""
    if os.geteuid() != 0:
        return
    for parent in path.parents:
        mode = parent.stat().st_mode
        if not mode & stat.S_IXOTH:
            parent.chmod(stat.S_IMODE(mode) | stat.S_IXOTH)


def readable(tree: Path) -> None:
    """As root, with a narrow umask: let the server's user read what was installed."""
    if os.geteuid() != 0 or tree.stat().st_mode & stat.S_IROTH:
        return
    for path in (tree, *tree.rglob("*")):
        mode = path.stat().st_mode
        path.chmod(stat.S_IMODE(mode) | stat.S_IROTH | (stat.S_IXOTH if mode & stat.S_IXUSR else 0))
