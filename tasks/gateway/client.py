"""Finding the gateway and telling it about arms: short admin calls, errors in words. Traffic is tasks/traffic's.

ARMWISE_GATEWAY_URL (with ARMWISE_GATEWAY_TOKEN) names a gateway; else the one of this home is looked for, by the
address and token files in <home>/gateway. Proxies of the environment are not used: a gateway is near.
"""

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from tasks import artifact, settings
from tasks.gateway import SERVICE
from tasks.stage import StageFailed

TIMEOUT_S = 5.0  # a registration may have to try another run's upstream for 3 s first


class GatewayFailed(StageFailed):
    """The gateway cannot be reached or refuses; the message says why."""


@dataclass(frozen=True)
class Gateway:
    url: str
    token: str = field(repr=False)


def find() -> Gateway | None:
    """The gateway to use, if one answers /healthz. Raises GatewayFailed if the one that the user named does not."""
    url = os.environ.get("ARMWISE_GATEWAY_URL")
    if not url:
        return at(settings.home() / "gateway")
    named = Gateway(url.rstrip("/"), os.environ.get("ARMWISE_GATEWAY_TOKEN", ""))
    if not answers(named):
        raise GatewayFailed(f"ARMWISE_GATEWAY_URL={url}: no armwise gateway answers {named.url}/healthz")
    return named


def at(state: Path) -> Gateway | None:
    """The gateway over a state folder, if it answers /healthz."""
    try:
        found = Gateway(str(artifact.read(state / "address.json")["url"]), (state / "token").read_text().strip())
    except (artifact.BrokenArtifact, KeyError, OSError):
        return None
    return found if answers(found) else None


def wait(state: Path, *, deadline_s: float = 15.0) -> Gateway:
    """The gateway over a state folder, once it answers. Raises GatewayFailed after deadline_s."""
    until = time.monotonic() + deadline_s
    while time.monotonic() < until:
        found = at(state)
        if found:
            return found
        time.sleep(0.05)
    raise GatewayFailed(f"{state}: no gateway answered within {deadline_s:g} s")


def answers(gateway: Gateway) -> bool:
    """Whether an armwise gateway, and not something else on its port, answers /healthz."""
    try:
        with _client() as client:
            answer = client.get(f"{gateway.url}/healthz")
        return answer.status_code == 200 and answer.json().get("service") == SERVICE
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, AttributeError):
        return False


def register(gateway: Gateway, technique: str, url: str, model: str, key: str | None, run_id: str) -> dict[str, Any]:
    """Route a technique to an engine's base URL. Raises GatewayFailed, also if a living arm of another run holds it."""
    body = {"technique": technique, "url": url, "model": model, "key": key, "run_id": run_id}
    return _admin(gateway, "POST", "/admin/backends", json=body)


def deregister(gateway: Gateway, technique: str, run_id: str) -> bool:
    """Forget this run's registration. True if there was one; gone already is fine. Raises GatewayFailed."""
    path = f"/admin/backends/{quote(technique, safe='')}"
    return bool(_admin(gateway, "DELETE", path, params={"run_id": run_id})["result"] == "removed")


def registered(gateway: Gateway) -> list[dict[str, Any]]:
    """All registrations, without their keys. Raises GatewayFailed."""
    return list(_admin(gateway, "GET", "/admin/backends")["backends"])


def _client() -> httpx.Client:
    return httpx.Client(timeout=TIMEOUT_S, trust_env=False)


def _admin(gateway: Gateway, method: str, path: str, **content: Any) -> dict[str, Any]:
    authorization = {"Authorization": f"Bearer {gateway.token}"}
    try:
        with _client() as client:
            answer = client.request(method, gateway.url + path, headers=authorization, **content)
        document = answer.json()
    except httpx.HTTPError as error:
        raise GatewayFailed(f"gateway {gateway.url}: {method} {path}: {error or type(error).__name__}") from error
    except ValueError as error:
        raise GatewayFailed(
            f"gateway {gateway.url}: {method} {path}: answered {answer.status_code}, not JSON"
        ) from error
    if answer.status_code != 200:
        raise GatewayFailed(f"gateway {gateway.url}: {document.get('error', {}).get('message', document)}")
    return dict(document)
