"""The arm is a server that already runs somewhere: nothing is started and nothing is released.

Its address is the arm's `url`, or `env:NAME` for the environment variable that holds it; its key is in the variable
that `key_env` names. What cannot be verified from outside is stored as unverified.
"""

import json
import os
import time
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from tasks.arm import Arm
from tasks.drivers import _key
from tasks.run import Run
from tasks.stage import StageFailed
from tasks.target import Target

ANSWER_S = 10.0


def faults(arm: Arm, target: Target) -> list[str]:  # noqa: ARG001
    """What makes this arm impossible here, in words; looked at before the slot is taken."""
    if not arm.url:
        return ["arm: url: is missing; the endpoint driver deploys nothing, so say where the server is, or env:NAME"]
    found = []
    if arm.url.startswith("env:") and not os.environ.get(arm.url.removeprefix("env:")):
        found.append(f"arm: url: environment variable {arm.url.removeprefix('env:')} is not set")
    elif urlsplit(_address(arm)).scheme not in ("http", "https"):
        found.append(f"arm: url: must begin with http:// or https://, found {_address(arm)!r}")
    if arm.key_env and not os.environ.get(arm.key_env):
        found.append(f"arm: key_env: environment variable {arm.key_env} is not set")
    return found


def up(run: Run) -> dict[str, Any]:
    """Check that the server answers and knows the model. Raises StageFailed."""
    began = time.time()
    url = _address(run.arm)
    key = os.environ.get(run.arm.key_env or "", "")
    served = _models(url, key)
    if run.arm.model.served_as not in served:
        raise StageFailed(f"{url}: serves no '{run.arm.model.served_as}'; it serves: {', '.join(served) or 'nothing'}")
    _key.write(run.folder, key)
    ready_at = time.time()
    return {
        "format": 1,
        "driver": "endpoint",
        "engine": run.arm.engine,
        "url": url,
        "model": run.arm.model.served_as,
        "technique": run.technique,
        "argv": [],
        "env": {},
        "versions": {},
        "image": None,
        "engine_pid": None,
        "pgid": None,
        "supervisor_pid": None,
        "started_at": began,
        "ready_at": ready_at,
        "start_s": ready_at - began,
        "log": None,
        "gpu_model": run.target.gpu_model,
        "price_key": run.arm.price,
        "dev_endpoints": False,
        "key_env": run.arm.key_env,
    }


def down(deployment: dict[str, Any], run_dir: Path, *, reason: str) -> dict[str, Any]:  # noqa: ARG001
    """Nothing was deployed, so nothing is released, and that is what it says."""
    return {"freed": [], "processes_left": [], "reason": reason, "says": "the server is not ours: nothing released"}


def alive(deployment: dict[str, Any]) -> bool:
    """Does the server still answer?"""
    try:
        _models(deployment["url"], os.environ.get(deployment.get("key_env") or "", ""))
    except StageFailed:
        return False
    return True


def leftovers() -> list[dict[str, Any]]:
    """Nothing of ours runs there."""
    return []


def _address(arm: Arm) -> str:
    """The server's base URL, without /v1. An environment variable that is not set gives an empty one."""
    url = arm.url or ""
    if url.startswith("env:"):
        url = os.environ.get(url.removeprefix("env:"), "")
    return url.rstrip("/").removesuffix("/v1")


def _models(url: str, key: str) -> list[str]:
    """Names that the server serves. Raises StageFailed in words."""
    request = Request(f"{url}/v1/models", headers={"Authorization": f"Bearer {key}"} if key else {})
    try:
        with urlopen(request, timeout=ANSWER_S) as answer:
            return [str(model["id"]) for model in json.loads(answer.read())["data"]]
    except HTTPError as error:
        hint = "; check the key" if error.code in (401, 403) else ""
        raise StageFailed(f"{url}/v1/models: answered {error.code} {error.reason}{hint}") from error
    except (URLError, OSError, HTTPException) as error:
        raise StageFailed(f"{url}/v1/models: does not answer: {getattr(error, 'reason', error)}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise StageFailed(f"{url}/v1/models: is not an OpenAI-compatible list of models: {error!r}") from error
