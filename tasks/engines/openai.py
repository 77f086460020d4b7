"""Any server that speaks the OpenAI protocol: nothing is known of it but its answers.

It takes no flags from us and shows no configuration, so everything an arm says of it is unverified. Its metrics, where
it has any, have names we do not know: rules that need engine counters say so instead of passing.
"""

from pathlib import Path
from typing import Any

from tasks.arm import Arm, flatten
from tasks.engines._http import FAULTS, answers, get_json

METRICS: dict[str, str] = {}
KEY_ENV = "OPENAI_API_KEY"
DEV_ENV: dict[str, str] = {}
TAKES: frozenset[str] = frozenset()
UNVERIFIED = ("flags", "env", "model")


def flag_names() -> frozenset[str]:
    """None: whoever runs the server chose its flags."""
    return frozenset()


def argv(_arm: Arm, *, host: str, port: int) -> list[str]:
    """Nothing starts such a server here. Raises ValueError."""
    raise ValueError(f"engine openai runs elsewhere and cannot be started on {host}:{port}; use the endpoint driver")


def environment(arm: Arm) -> dict[str, str]:
    """What the arm says; no process of ours reads it."""
    return dict(arm.env)


def ready(url: str, key: str | None) -> bool:
    """Whether the server lists its models."""
    return answers(f"{url}/v1/models", key)


def effective(url: str, key: str | None, _log: Path | str | None) -> dict[str, Any]:
    """The names of the served models, and nothing else. Raises OSError, ValueError if the server does not answer."""
    return {
        "source": "none",
        "config": {"models": [str(model["id"]) for model in get_json(f"{url}/v1/models", key)["data"]]},
        "env": None,
        "arguments": None,
        "weight_bytes": None,
        "weight_bytes_from": None,
        "kv_pool_tokens": None,
        "versions": _version(url, key),
        "process_start_time": None,
    }


def compare(arm: Arm, effective: dict[str, Any]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The served name is a difference if the server lists models without it; all else is unverified."""
    asked = flatten({part: arm.model_dump()[part] for part in UNVERIFIED})
    name = asked.pop("model.served_as")
    why = "the server shows no configuration"
    unverified = [{"flag": k, "requested": v, "why": why} for k, v in asked.items() if v is not None]
    listed = effective["config"]["models"]
    if name in listed:
        return [], unverified
    row = {"flag": "model.served_as", "requested": name, "effective": ", ".join(listed), "where": "/v1/models"}
    return [row], unverified


def _version(url: str, key: str | None) -> dict[str, str]:
    """vLLM and some others tell their version; most do not."""
    try:
        return {"server": str(get_json(f"{url}/version", key)["version"])}
    except (*FAULTS, KeyError, TypeError):
        return {}
