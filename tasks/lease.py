"""A slot and its lease: which run may use a GPU, and until when.

The lease is the guard that works with everything else dead. It lives in two places:

- `lease.json` in the run folder: slot, limits, and the time of the holder's last sign of life. The engine's supervisor
  reads it several times a second and kills the engine when it expired, fell silent past its grace, or was given back.
- the slot: `slots/<target>.<slot>.json` under the home folder, replaced under an exclusive file lock (tasks/slot.py),
  and, where there is a Postgres, the row of the table `slot_lease`, which serialises runs of several machines
  (tasks/slot_lease.py).

A running stage renews every two seconds. Nothing renews beyond `expires_at`: that is the sum of the plan's budgets, or
sooner when the spend cap is reached, and `because` says which. A lease that lapsed stays lapsed: renewal and ending
read and write under one lock of the run folder, so a holder that wakes up late finds the end and renews nothing.

A slot whose lease lapsed is taken over only when no process of the old run is left (tasks/leftovers.py stops them).

All times are seconds since the epoch: processes and machines must agree on them, and a monotonic clock cannot.

Format 1 (2026-11): the first.
"""

import contextlib
import fcntl
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks import artifact, slot, slot_lease

if TYPE_CHECKING:  # the supervisor imports this module, and pydantic would cost it half a second
    from tasks.run import Run

FORMAT = 1
RENEW_EVERY_S = 2.0
Lease = dict[str, Any]


class SlotBusy(RuntimeError):
    """Another run holds the slot; the message says who, until when, and the place in the queue."""


class LeaseLost(RuntimeError):
    """A stage without a live lease of its attempt; the message says why and what to do."""


def acquire(run: "Run", *, waiting_as: str | None = None) -> Lease:
    """Take run.slot and make run.folder with its lease.json. Raises SlotBusy.

    `waiting_as` names a caller that will ask again: it keeps its place in the queue as long as it asks within a minute.
    """
    try:
        with slot.locked(run.target_name, run.slot, busy=SlotBusy) as state:
            slot.note_waiting(state, waiting_as, now=time.time())
            _refuse_if_held(state, waiting_as)
            _refuse_if_others_wait(state, waiting_as)
            lease = _new(run, asked_at=slot.asked_at(state, waiting_as))
            row = slot_lease.take(lease)
            if row is not None:
                raise SlotBusy(f"{_held(state, row)}; {_place(state, waiting_as)}")
            _make_folder(run.folder, lease)
            state["held_by"] = {"run_id": run.run_id, "attempt": run.attempt, "run_dir": str(run.folder)}
            slot.forget_waiting(state, waiting_as)
    except SlotBusy:
        if waiting_as:
            slot_lease.wait(_new(run, asked_at=None))
        raise
    return lease


def worth_asking(target: str, slots: Iterable[str], waiting_as: str) -> bool:
    """Keep a waiting caller's places on this machine; may a claim succeed now? Reads two small files per slot."""
    may = False
    for name in slots:
        with slot.locked(target, name, busy=SlotBusy) as state:
            slot.note_waiting(state, waiting_as, now=time.time())
            held = state["held_by"]
            is_free = held is None or lapse(Path(held["run_dir"])) is not None
            may = may or (is_free and slot.place(state, waiting_as) == 1)
    return may


def limit(run: "Run") -> tuple[float, str]:
    """(seconds after the claim at which the lease ends, why then): the sum of budgets, or the spend cap if sooner."""
    budget, price, cap = run.plan.budget, run.price.usd_per_hour, run.plan.spend_cap_usd
    parts = {"start": budget.start_s, "gate": budget.gate_s, "drive": budget.drive_s, "release": budget.release_s}
    total = sum(parts.values())
    if cap is not None and isinstance(price, float) and price > 0 and cap / price * 3600 < total:
        seconds = cap / price * 3600
        return seconds, f"the spend cap of {cap:g} USD is reached after {seconds:.0f} s at {price:g} USD per hour"
    return total, f"budgets: {' + '.join(f'{name} {s:g}' for name, s in parts.items())} = {total:g} s"


def read(run_dir: Path) -> Lease:
    """The lease as it stands. Raises BrokenArtifact."""
    return artifact.read(run_dir / "lease.json")


def lapsed_at(lease: Lease) -> tuple[float, str]:
    """(when this lease ends or ended if nobody renews it, and why)."""
    if lease["given_back_at"] is not None:
        return lease["given_back_at"], f"it ended at {clock(lease['given_back_at'])}: {lease['ended_because']}"
    silent = lease["renewed_at"] + lease["grace_s"]
    if lease["expires_at"] <= silent:
        return lease["expires_at"], f"it expired at {clock(lease['expires_at'])} ({lease['because']})"
    return silent, (
        f"its holder ({lease['holder']}) was last heard of at {clock(lease['renewed_at'])}, "
        f"longer ago than its grace of {lease['grace_s']:g} s"
    )


def lapse(run_dir: Path) -> str | None:
    """Why this run has no live lease, or None if it has one."""
    try:
        at, why = lapsed_at(read(run_dir))
    except artifact.BrokenArtifact as error:
        return str(error)
    except (KeyError, TypeError) as error:
        return f"{run_dir / 'lease.json'}: lacks {error}"
    return why if time.time() >= at else None


def lost(run_dir: Path) -> LeaseLost | None:
    """The fault to raise when this attempt has no live lease, else None."""
    why = lapse(run_dir)
    if why is None:
        return None
    attempts = [int(p.name) for p in run_dir.parent.glob("*") if p.name.isdigit()] if run_dir.name.isdigit() else []
    newest = max(attempts, default=0)
    also = f"; attempt {newest} has followed it" if attempts and newest > int(run_dir.name) else ""
    return LeaseLost(
        f"{run_dir}: no live lease of attempt {run_dir.name}: {why}{also}. "
        "In Airflow, clear from deploy (that claims a new attempt); on the command line, start `armwise run` again"
    )


def check(run_dir: Path) -> None:
    """Raises LeaseLost unless this attempt has a live lease."""
    fault = lost(run_dir)
    if fault:
        raise fault


@contextlib.contextmanager
def kept_alive(run_dir: Path) -> Iterator[None]:
    """Renew the lease in the background while the block runs.

    The file and the row have a thread each: a database that hangs must not silence the file.
    """
    every_s = min(RENEW_EVERY_S, read(run_dir)["grace_s"] / 4)
    ended = threading.Event()
    threads = [
        threading.Thread(target=_keep, args=(renewal, run_dir, every_s, ended), name=f"lease {name}", daemon=True)
        for name, renewal in (("file", renew), ("row", _renew_row))
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        threads[0].join(timeout=10)  # of the file; a row's statement may hang, and nothing waits for it


def renew(run_dir: Path) -> bool:
    """One sign of life. False, and nothing is written, if the lease has ended."""
    with _locked(run_dir):
        if lapse(run_dir) is not None:
            return False
        artifact.write(run_dir / "lease.json", read(run_dir) | {"renewed_at": time.time(), "holder": holder()})
        return True


def end(run_dir: Path, because: str) -> None:
    """Mark the lease as ended, for good. The slot stays marked until `give_back` or a take-over. Idempotent."""
    with contextlib.suppress(artifact.BrokenArtifact, FileNotFoundError), _locked(run_dir):
        lease = read(run_dir)
        if lease["given_back_at"] is None:
            artifact.write(run_dir / "lease.json", lease | {"given_back_at": time.time(), "ended_because": because})


def give_back(run_dir: Path, because: str = "released") -> None:
    """End the lease and free its slot; only after the run's processes are proven gone. Idempotent."""
    end(run_dir, because)
    try:
        lease = read(run_dir)
    except artifact.BrokenArtifact:
        return
    with slot.locked(lease["target"], lease["slot"], busy=SlotBusy) as state:
        if (state["held_by"] or {}).get("run_dir") == str(run_dir.resolve()):
            state["held_by"] = None
    slot_lease.drop(lease)


def holder() -> str:
    """This process, in words."""
    return f"{socket.gethostname()} pid {os.getpid()}"


def clock(at: float) -> str:
    """An epoch time for people: local time with its offset, to the second."""
    return datetime.fromtimestamp(at).astimezone().isoformat(sep=" ", timespec="seconds")


def _new(run: "Run", *, asked_at: float | None) -> Lease:
    seconds, because = limit(run)
    now = time.time()
    return {
        "format": FORMAT,
        "slot": run.slot,
        "target": run.target_name,
        "run_id": run.run_id,
        "attempt": run.attempt,
        "holder": holder(),
        "asked_at": asked_at or now,
        "acquired_at": now,
        "renewed_at": now,
        "expires_at": now + seconds,
        "grace_s": run.plan.budget.grace_s,
        "because": because,
        "given_back_at": None,
        "ended_because": None,
    }


def _make_folder(run_dir: Path, lease: Lease) -> None:
    """The folder of an attempt, which only one process can make, and its lease."""
    try:
        run_dir.mkdir(parents=True)
        artifact.write(run_dir / "lease.json", lease)
    except BaseException as error:
        slot_lease.drop(lease)
        if isinstance(error, FileExistsError):
            raise SlotBusy(f"{run_dir}: was claimed by another process just now") from error
        with contextlib.suppress(OSError):
            run_dir.rmdir()
        raise


def _refuse_if_held(state: slot.State, waiting_as: str | None) -> None:
    """Raise SlotBusy while the slot's run lives, or while a process of a dead one cannot be stopped."""
    held = state["held_by"]
    if held is None:
        return
    run_dir = Path(held["run_dir"])
    why = lapse(run_dir)
    if why is None:
        raise SlotBusy(f"{_held(state, read(run_dir))}; {_place(state, waiting_as)}")
    from tasks import leftovers

    left = leftovers.free(run_dir, f"its slot is wanted, and {why}")["processes_left"]
    if left:
        raise SlotBusy(
            f"slot {slot.name(state)}: run {held['run_id']} has lost its lease ({why}), but these processes of it "
            f"cannot be stopped: {'; '.join(left)}. {_place(state, waiting_as)}"
        )
    state["held_by"] = None


def _refuse_if_others_wait(state: slot.State, waiting_as: str | None) -> None:
    ahead = slot.place(state, waiting_as) - 1
    if ahead:
        raise SlotBusy(f"slot {slot.name(state)} is free, but others wait for it; {_place(state, waiting_as)}")


def _held(state: slot.State, by: Lease) -> str:
    return (
        f"slot {slot.name(state)} is held by run {by['run_id']} attempt {by['attempt']} ({by['holder']}) "
        f"until {clock(by['expires_at'])} at the latest"
    )


def _place(state: slot.State, waiting_as: str | None) -> str:
    return f"place {slot.place(state, waiting_as)} in the queue"


def _keep(renewal: Callable[[Path], bool], run_dir: Path, every_s: float, ended: threading.Event) -> None:
    while not ended.wait(every_s):
        with contextlib.suppress(OSError, artifact.BrokenArtifact):  # a full disk: silence ends the lease, not this
            if not renewal(run_dir):
                return


def _renew_row(run_dir: Path) -> bool:
    if lapse(run_dir) is not None:
        return False
    slot_lease.renew(read(run_dir))
    return True


@contextlib.contextmanager
def _locked(run_dir: Path) -> Iterator[None]:
    """The run folder's lock; held for a few milliseconds at a time."""
    with (run_dir / ".lease.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
