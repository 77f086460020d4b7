"""A slot's file: who holds it and who waits for it. `slots/<target>.<slot>.json`, changed under an exclusive lock.

Whether its holder is alive is not written here: the holder's own lease.json says so. The queue is first come, first
served among those who asked within the last minute; one who stopped asking (a killed process) loses the place.
"""

import contextlib
import fcntl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from tasks import artifact, settings

FORMAT = 1
FORGET_AFTER_S = 60.0  # silence after which a waiting caller loses its place
LOCK_WITHIN_S = 30.0  # a take-over holds the lock while it stops the old run's processes
State = dict[str, Any]


def folder() -> Path:
    return settings.home() / "slots"


def name(state: State) -> str:
    return f"{state['target']}.{state['slot']}"


@contextlib.contextmanager
def locked(target: str, slot: str, *, busy: type[Exception]) -> Iterator[State]:
    """The slot's state, to be changed in the block and stored after it, whether or not the block raises.

    Raises `busy` if others hold the lock for too long.
    """
    path = folder() / f"{target}.{slot}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("w") as file:
        if not _lock(file):
            raise busy(f"slot {target}.{slot}: its file is locked for {LOCK_WITHIN_S:g} s now by another claim")
        before = read(path, target, slot)
        state = {**before, "waiting": [dict(w) for w in before["waiting"]]}
        try:
            yield state
        finally:
            if state != before:
                artifact.write(path, state)


def read(path: Path, target: str, slot: str) -> State:
    """The state as stored; a slot never used, or a broken file, is free: the leases of its runs still guard it."""
    try:
        content = artifact.read(path)
        if content.get("format") == FORMAT:
            return content
    except artifact.BrokenArtifact:
        pass
    return {"format": FORMAT, "target": target, "slot": slot, "held_by": None, "waiting": []}


def note_waiting(state: State, who: str | None, *, now: float) -> None:
    """Note that `who` asked, at the end of the queue if new there; drop those who have not asked for a minute."""
    state["waiting"] = [w for w in state["waiting"] if w["name"] == who or w["seen_at"] > now - FORGET_AFTER_S]
    mine = [w for w in state["waiting"] if w["name"] == who]
    if mine:
        mine[0]["seen_at"] = now
    elif who is not None:
        state["waiting"].append({"name": who, "since": now, "seen_at": now})


def forget_waiting(state: State, who: str | None) -> None:
    state["waiting"] = [w for w in state["waiting"] if w["name"] != who]


def leave(target: str, slot: str, who: str, *, busy: type[Exception]) -> None:
    """Leave the queue of a slot: another one of the target was free."""
    with locked(target, slot, busy=busy) as state:
        forget_waiting(state, who)


def place(state: State, who: str | None) -> int:
    """Place in the queue from 1; one who does not queue is behind all who do."""
    names = [w["name"] for w in state["waiting"]]
    return names.index(who) + 1 if who in names else len(names) + 1


def asked_at(state: State, who: str | None) -> float | None:
    """When a waiting caller first asked."""
    return next((w["since"] for w in state["waiting"] if w["name"] == who), None)


def _lock(file: IO[str]) -> bool:
    deadline = time.monotonic() + LOCK_WITHIN_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
