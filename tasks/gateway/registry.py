"""Which technique is served where. Kept in <state>/backends.json (0600, it holds keys), so a restart forgets nothing.

Several runs may serve one technique at a time, each at its own backend: X-Technique with X-Run names one of them,
X-Technique alone the only one there is. A run whose upstream is dead (no connection to it can be made: it was killed,
and nobody was left to deregister) makes room when another run registers its technique.

Workers share the file. Whoever changes it holds a lock, and raises a number in memory that all of them see before it
answers: a worker that finds the number raised reads the file again before it routes. So a request sent after an answer
to an admin call meets what that call did, whichever worker gets it.
"""

import contextlib
import fcntl
import mmap
import re
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from tasks import artifact, catalog
from tasks.document import Document, parse
from tasks.gateway import backends

FORMAT = 1


class Backend(Document):
    """One registration, as POST /admin/backends takes it."""

    technique: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")
    url: str = Field(max_length=2000)
    model: str = Field(min_length=1, max_length=500)
    run_id: str = Field(min_length=1, max_length=200)
    kind: str = "openai"
    key: str | None = Field(default=None, repr=False, max_length=4000)
    registered_at: float = 0.0

    @field_validator("url")
    @classmethod
    def _is_http(cls, url: str) -> str:
        if not re.fullmatch(r"https?://(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(:\d{1,5})?(/[\x21-\x7e]*)?", url):
            raise ValueError("must be http://HOST[:PORT][/PATH] or https://..., without credentials")
        urlsplit(url).port  # noqa: B018 (raises ValueError when out of range)
        return url.rstrip("/")

    @field_validator("kind")
    @classmethod
    def _is_known(cls, kind: str) -> str:
        known = catalog.module_names(backends)
        if kind not in known:
            raise ValueError(f"no '{kind}'; known: {', '.join(known)}")
        return kind

    @field_validator("key")
    @classmethod
    def _fits_header(cls, key: str | None) -> str | None:
        if key is not None and not re.fullmatch(r"[\x21-\x7e]*", key):
            raise ValueError("must be printable ASCII without spaces, as a header carries it")
        return key or None

    def shown(self) -> dict[str, Any]:
        """What may be told: everything but the key."""
        return self.model_dump(exclude={"key"}) | {"has_key": self.key is not None}


class Unrouted(ValueError):
    """A request that no single backend is meant by; the message lists those that could be."""

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind


def shared_number() -> memoryview:
    """A number that processes forked from this one share."""
    return memoryview(mmap.mmap(-1, 8)).cast("Q")


class Registry:
    """The registrations, in memory and on disk. The disk is written first: what it cannot hold is not registered."""

    def __init__(self, path: Path, changes: memoryview | None = None) -> None:
        """Read what an earlier gateway left. Raises BrokenArtifact, InvalidDocument.

        `changes` (of `shared_number`) counts the changes that any worker made.
        """
        self.path = path
        self._changes = shared_number() if changes is None else changes
        self._seen = self._changes[0]
        self._backends = _load(path)

    def all(self) -> list[Backend]:
        """In the order of their registration. Raises BrokenArtifact, InvalidDocument."""
        return [backend for runs in self._current().values() for backend in runs.values()]

    def of(self, technique: str) -> list[Backend]:
        """The runs of a technique. Raises BrokenArtifact, InvalidDocument."""
        return list(self._current().get(technique, {}).values())

    def route(self, technique: str | None, run: str | None = None) -> Backend:
        """The one backend of a technique, or the one of a run. Raises Unrouted, BrokenArtifact, InvalidDocument."""
        backends = self._current()
        runs = backends.get(technique or "")
        if not runs:
            said = f"no '{technique}'" if technique else "is missing"
            known = ", ".join(sorted(backends)) or "none is registered"
            raise Unrouted(400, "unknown_technique", f"X-Technique: {said}; known: {known}")
        if run is None and len(runs) == 1:
            return next(iter(runs.values()))
        if run is None:
            words = f"X-Technique: '{technique}' is served by {len(runs)} runs: name one in X-Run; known: "
            raise Unrouted(409, "ambiguous_technique", words + ", ".join(sorted(runs)))
        if run not in runs:
            words = f"X-Run: no '{run}' serves technique '{technique}'; known: "
            raise Unrouted(400, "unknown_run", words + ", ".join(sorted(runs)))
        return runs[run]

    def put(self, backend: Backend, *, instead_of: Collection[Backend] = ()) -> Backend:
        """Register or replace; forget `instead_of`. Raises OSError when the disk refuses."""
        stamped = backend.model_copy(update={"registered_at": time.time()})
        with self._changing() as backends:
            for dead in instead_of:
                if backends.get(dead.technique, {}).get(dead.run_id) == dead:  # not registered anew meanwhile
                    del backends[dead.technique][dead.run_id]
            backends.setdefault(backend.technique, {})[backend.run_id] = stamped
        return stamped

    def remove(self, technique: str, run_id: str | None) -> Literal["removed", "not registered", "held by another run"]:
        """Forget a registration of this run; without run_id, of all. Raises OSError when the disk refuses."""
        runs = self._current().get(technique)
        if not runs:
            return "not registered"
        if run_id is not None and run_id not in runs:
            return "held by another run"
        with self._changing() as backends:
            gone = [run_id] if run_id is not None else list(runs)
            for run in gone:
                backends.get(technique, {}).pop(run, None)
        return "removed"

    def _current(self) -> "Backends":
        if self._changes[0] != self._seen:
            seen = self._changes[0]
            self._backends = _load(self.path)
            self._seen = seen
        return self._backends

    @contextlib.contextmanager
    def _changing(self) -> "Iterator[Backends]":
        """A copy to change, stored when the block ends, while no other worker changes anything."""
        with self.path.with_suffix(".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            changed = {technique: dict(runs) for technique, runs in self._current().items()}
            yield changed
            changed = {technique: runs for technique, runs in changed.items() if runs}
            rows = [backend.model_dump(mode="json") for runs in changed.values() for backend in runs.values()]
            artifact.write(self.path, {"format": FORMAT, "backends": rows})
            self._backends = changed
            self._changes[0] += 1
            self._seen = self._changes[0]


Backends = dict[str, dict[str, Backend]]  # technique, run_id


def _load(path: Path) -> Backends:
    if not path.exists():
        return {}
    content = artifact.read(path)
    rows = content.get("backends")
    if content.get("format") != FORMAT or not isinstance(rows, list):
        raise artifact.BrokenArtifact(
            f"{path}: must be format {FORMAT} with a list `backends`; move it away to start empty"
        )
    found: Backends = {}
    for i, row in enumerate(rows):
        backend = parse(row, Backend, source=f"{path}: backends.{i}")
        found.setdefault(backend.technique, {})[backend.run_id] = backend
    return found
