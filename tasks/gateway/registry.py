"""Which technique is served where. Kept in <state>/backends.json (0600, it holds keys), so a restart forgets nothing.

A technique belongs to the run that registered it. Another run may take it only when the upstream of the first is dead,
that is, no connection to it can be made: its run was killed and nobody was left to deregister.
"""

import re
import time
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
    """A technique that is missing or that nobody registered; the message lists the known ones."""


class Registry:
    """The registrations, in memory and on disk. The disk is written first: what it cannot hold is not registered."""

    def __init__(self, path: Path) -> None:
        """Read what an earlier gateway left. Raises BrokenArtifact, InvalidDocument."""
        self.path = path
        self.backends = _load(path)

    def route(self, technique: str | None) -> Backend:
        """The backend of a technique. Raises Unrouted."""
        backend = self.backends.get(technique or "")
        if backend is None:
            said = f"no '{technique}'" if technique else "is missing"
            known = ", ".join(sorted(self.backends)) or "none is registered"
            raise Unrouted(f"X-Technique: {said}; known: {known}")
        return backend

    def put(self, backend: Backend) -> Backend:
        """Register or replace. Raises OSError when the disk refuses."""
        stamped = backend.model_copy(update={"registered_at": time.time()})
        self._save({**self.backends, backend.technique: stamped})
        return stamped

    def remove(self, technique: str, run_id: str | None) -> Literal["removed", "not registered", "held by another run"]:
        """Forget a registration of this run; without run_id, of any. Raises OSError when the disk refuses."""
        held = self.backends.get(technique)
        if held is None:
            return "not registered"
        if run_id is not None and held.run_id != run_id:
            return "held by another run"
        self._save({name: b for name, b in self.backends.items() if name != technique})
        return "removed"

    def _save(self, changed: dict[str, Backend]) -> None:
        rows = [b.model_dump(mode="json") for b in changed.values()]
        artifact.write(self.path, {"format": FORMAT, "backends": rows})
        self.backends = changed


def _load(path: Path) -> dict[str, Backend]:
    if not path.exists():
        return {}
    content = artifact.read(path)
    rows = content.get("backends")
    if content.get("format") != FORMAT or not isinstance(rows, list):
        raise artifact.BrokenArtifact(
            f"{path}: must be format {FORMAT} with a list `backends`; move it away to start empty"
        )
    found = [parse(row, Backend, source=f"{path}: backends.{i}") for i, row in enumerate(rows)]
    return {backend.technique: backend for backend in found}
