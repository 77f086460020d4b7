"""One bounded GET to a server on this machine or behind a URL, with the standard library alone."""

import http.client
import json
import urllib.error
import urllib.request
from typing import Any

FAULTS = (OSError, http.client.HTTPException, ValueError)  # no connection, no HTTP, no JSON (HTTPError is an OSError)


def get(url: str, key: str | None = None, *, timeout_s: float = 10) -> str:
    """Body of a 200 answer. Raises one of FAULTS; a status other than 2xx is urllib.error.HTTPError."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    request = urllib.request.Request(url, headers=headers)
    with urllib.request.urlopen(request, timeout=timeout_s) as answer:
        return str(answer.read().decode("utf-8", errors="replace"))


def get_json(url: str, key: str | None = None, *, timeout_s: float = 10) -> Any:
    """Parsed body of a 200 answer. Raises one of FAULTS."""
    return json.loads(get(url, key, timeout_s=timeout_s))


def answers(url: str, key: str | None = None, *, timeout_s: float = 5) -> bool:
    """Whether a GET is answered with 2xx."""
    try:
        get(url, key, timeout_s=timeout_s)
    except FAULTS:
        return False
    return True
