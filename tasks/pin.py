"""Looking up what a declaration leaves `unresolved`, and writing it into the file. Nothing else of the file changes.

A model's revision is the commit that its hub's main branch points to now; an image's digest is what its registry
answers for the tag. An arm and its control must be alike in all but what varies, so a family is pinned together: the
control and every arm compared with it get the same values, and what one of them has already is kept, never looked up
anew. A price is not looked up: a person reads it on a page and says which.

Files are written only when everything was found and every new text is a valid document.
"""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

import yaml

from tasks import arm, artifact, catalog, engines, price
from tasks.document import UNRESOLVED, parse, read, read_yaml

TIMEOUT_S = 20.0
MANIFESTS = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)


class NotPinned(ValueError):
    """A value that could not be looked up; the message says what was asked where."""


@dataclass(frozen=True)
class Sources:
    """Where to look: a Hugging Face hub and a container registry (API version 2)."""

    hub: str = "https://huggingface.co"
    registry: str = "https://registry-1.docker.io"


def pin(name: str, *, image: str | None = None, sources: Sources | None = None) -> dict[str, dict[str, str]]:
    """Resolve an arm and its family. Returns file name -> {dotted key: value written}. Raises NotPinned, UnknownName.

    image: the reference to resolve, REPOSITORY:TAG; without it, the engine's own image with the arm's version as tag.
    """
    paths = {member: arm.folder() / f"{member}.yaml" for member in family(name)}
    arms = {member: read(path, arm.Arm) for member, path in paths.items()}
    known = _known(arms)
    written: dict[str, dict[str, str]] = {}
    texts: dict[Path, str] = {}
    for member, content in arms.items():
        values = _values(content, known, image=image, sources=sources or Sources())
        if values:
            texts[paths[member]] = replaced(paths[member].read_text(encoding="utf-8"), values)
            written[paths[member].name] = {".".join(key): value for key, value in values.items()}
    for path, text in texts.items():
        parse(yaml.safe_load(text), arm.Arm, source=str(path))
    for path, text in texts.items():
        _write(path, text)
    return written


def pin_price(name: str, usd_per_hour: float, *, source: str, today: date) -> Path:
    """Set a price with the page it was read from. Raises NotPinned, UnknownName, InvalidDocument."""
    if not re.match(r"https?://\S+\.\S+", source):
        raise NotPinned(f"--source: must be the address of the page the price was read from, found {source!r}")
    if not 0 < usd_per_hour < float("inf"):
        raise NotPinned(f"--price: must be greater than 0, got {usd_per_hour:g}")
    path = catalog.path_of(price.folder(), name, ".yaml")
    values = {"usd_per_hour": f"{usd_per_hour:g}", "source": source, "read_on": today.isoformat()}
    present = read_yaml(path)
    if present.get("is_nominal"):
        values["is_nominal"] = "false"
    text = replaced(
        path.read_text(encoding="utf-8"), {(key,): value for key, value in values.items() if key in present}
    )
    text = (
        text.rstrip("\n") + "".join(f"\n{key}: {value}" for key, value in values.items() if key not in present) + "\n"
    )
    parse(yaml.safe_load(text), price.Price, source=str(path))
    _write(path, text)
    return path


def family(name: str) -> list[str]:
    """The arm's control (or the arm, if it is one) and all arms compared with it; the control first."""
    catalog.path_of(arm.folder(), name, ".yaml")
    controls = {other: read_yaml(arm.folder() / f"{other}.yaml").get("control") for other in arm.names()}
    head = controls[name] or name
    return [head, *(other for other, control in controls.items() if control == head)]


def replaced(text: str, values: Mapping[tuple[str, ...], str]) -> str:
    """YAML text with the scalars at these key paths replaced; every other character is kept."""
    spans = sorted(((_span(text, path), value) for path, value in values.items()), reverse=True)
    for (start, end), value in spans:
        text = text[:start] + value + text[end:]
    return text


def revision(repo: str, hub: str) -> str:
    """Commit that the main branch of a hub repository points to. HF_TOKEN is sent if it is set."""
    url = f"{hub.rstrip('/')}/api/models/{quote(repo)}/revision/main"
    token = os.environ.get("HF_TOKEN")
    body, _ = _ask(Request(url, headers={"Authorization": f"Bearer {token}"} if token else {}))
    sha = _field(body, "sha", url)
    if not re.fullmatch(r"[0-9a-f]{40}", sha):
        raise NotPinned(f"{url}: sha: must be 40 hex digits, found {sha[:60]!r}")
    return sha


def digest(image: str, registry: str) -> str:
    """REPOSITORY:TAG -> REPOSITORY:TAG@sha256:..., as the registry has it now. Gets a pull token if it is asked to."""
    repository, _, tag = image.partition(":")
    if not tag:
        raise NotPinned(f"image {image!r}: must be REPOSITORY:TAG")
    url = f"{registry.rstrip('/')}/v2/{repository}/manifests/{tag}"
    headers = {"Accept": ", ".join(MANIFESTS)}
    try:
        _, answer = _ask(Request(url, headers=headers, method="HEAD"), pass_on=401)
    except HTTPError as error:
        headers["Authorization"] = f"Bearer {_pull_token(error.headers.get('WWW-Authenticate', ''), url)}"
        error.close()
        _, answer = _ask(Request(url, headers=headers, method="HEAD"))
    found = answer.get("docker-content-digest", "")
    if not re.fullmatch(r"sha256:[0-9a-f]{64}", found):
        raise NotPinned(f"{url}: Docker-Content-Digest: must be sha256:<64 hex digits>, found {found!r}")
    return f"{image}@{found}"


def _known(arms: Mapping[str, arm.Arm]) -> dict[str, str]:
    """What the family has resolved already: `image` or a hub repository -> value."""
    known: dict[str, str] = {}
    for content in arms.values():
        pairs = [("image", content.image), *((repo, value) for _, repo, value in _revisions(content))]
        for what, value in pairs:
            if value is not None and value != UNRESOLVED:
                known.setdefault(what, value)
    return known


def _values(content: arm.Arm, known: dict[str, str], *, image: str | None, sources: Sources) -> dict[Any, str]:
    """Key path -> value for everything unresolved in one arm; what is looked up is added to known."""
    values: dict[tuple[str, ...], str] = {}
    for path, repo, value in _revisions(content):
        if value == UNRESOLVED:
            values[path] = known[repo] = known.get(repo) or revision(repo, sources.hub)
    if content.image == UNRESOLVED:
        known["image"] = known.get("image") or digest(image or _own_image(content), sources.registry)
        values["image",] = known["image"]
    return values


def _revisions(content: arm.Arm) -> list[tuple[tuple[str, ...], str, str]]:
    """(key path, hub repository, revision) of the model, and of a draft model among the flags."""
    found: list[tuple[tuple[str, ...], str, str]] = []
    if content.model.repo and content.model.revision:
        found.append((("model", "revision"), content.model.repo, content.model.revision))
    for flag, value in content.flags.items():
        if isinstance(value, dict) and value.get("revision") and value.get("model"):
            found.append((("flags", flag, "revision"), str(value["model"]), str(value["revision"])))
    return found


def _own_image(content: arm.Arm) -> str:
    repository = getattr(catalog.module_of(engines, content.engine), "IMAGE", None)
    if repository is None or content.version is None:
        raise NotPinned(f"engine {content.engine}, version {content.version}: say which image: --image REPOSITORY:TAG")
    return f"{repository}:v{content.version}"


def _span(text: str, path: tuple[str, ...]) -> tuple[int, int]:
    node: Any = yaml.compose(text, Loader=yaml.SafeLoader)
    for key in path:
        node = next(value for name, value in node.value if name.value == key)
    return node.start_mark.index, node.end_mark.index


def _pull_token(challenge: str, url: str) -> str:
    """Follow `Bearer realm="...",service="...",scope="..."` to an anonymous token."""
    parts = dict(re.findall(r'(\w+)="([^"]*)"', challenge))
    if not challenge.startswith("Bearer ") or "realm" not in parts:
        raise NotPinned(f"{url}: asks for a login we do not know: {challenge[:100]!r}")
    query = "&".join(f"{name}={quote(parts[name])}" for name in ("service", "scope") if name in parts)
    address = f"{parts['realm']}?{query}"
    return _field(_ask(Request(address))[0], "token", address)


def _ask(request: Request, *, pass_on: int | None = None) -> tuple[bytes, dict[str, str]]:
    """Body and headers (names in lower case) of one answer. Raises NotPinned; HTTPError only of the status pass_on."""
    url = request.full_url
    try:
        with urlopen(request, timeout=TIMEOUT_S) as answer:
            return answer.read(), {name.lower(): value for name, value in answer.headers.items()}
    except HTTPError as error:
        if error.code == pass_on:
            raise
        error.close()
        raise NotPinned(f"{url}: answered {error.code} {error.reason}; no file was changed") from error
    except OSError as error:
        reason = getattr(error, "reason", error)
        raise NotPinned(f"{url}: cannot be reached ({reason}); no file was changed") from error


def _field(body: bytes, name: str, url: str) -> str:
    try:
        return str(json.loads(body)[name])
    except (ValueError, KeyError, TypeError) as error:
        raise NotPinned(f"{url}: its answer has no '{name}'; no file was changed") from error


def _write(path: Path, text: str) -> None:
    """Atomically, with the file's mode kept."""
    mode = path.stat().st_mode
    artifact.write_bytes(path, text.encode())
    path.chmod(mode)
