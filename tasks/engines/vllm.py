"""vLLM: how an arm's flags become its command line, and what it says about the configuration in effect.

A request is not a setting. vLLM ignores some flags on some hardware, resolves others, and a typo in a JSON flag may
pass. So the configuration is read back from /server_info (development mode, on loopback only), which shows the objects
that the engine was built from. Where that is off, `vllm:cache_config_info` and the log's line of engine settings show a
part of it, and the rest is unverified, never assumed. Front-end flags (tool-call parser and the like) have no such
object: what the server's parser understood, logged as its non-default arguments, is all there is, and is taken.

The flags and the place of each in the configuration are vllm_flags.json, written from vLLM's own parser. METRICS are
the names of vLLM 0.25 to 0.32, held against samples of /metrics in tests/goldens.
"""

import ast
import json
import re
import urllib.error
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from tasks import settings
from tasks.arm import Arm
from tasks.engines._configuration import UNKNOWN, alike, checkpoint_bytes, flatten, leaves, lookup
from tasks.engines._http import answers, get, get_json

METRICS = {
    "requests_running": "vllm:num_requests_running",
    "requests_waiting": "vllm:num_requests_waiting",
    "kv_cache_usage": "vllm:kv_cache_usage_perc",
    "prompt_tokens_total": "vllm:prompt_tokens_total",
    "generation_tokens_total": "vllm:generation_tokens_total",
    "prefix_cache_queries_total": "vllm:prefix_cache_queries_total",  # tokens, not requests
    "prefix_cache_hits_total": "vllm:prefix_cache_hits_total",
    "preemptions_total": "vllm:num_preemptions_total",
    "requests_finished_total": "vllm:request_success_total",  # by finished_reason, aborted ones included
    "spec_drafts_total": "vllm:spec_decode_num_drafts_total",  # the spec_ names exist only with speculation on
    "spec_draft_tokens_total": "vllm:spec_decode_num_draft_tokens_total",
    "spec_accepted_tokens_total": "vllm:spec_decode_num_accepted_tokens_total",
    "process_start_time": "process_start_time_seconds",
}
KEY_ENV = "ENGINE_KEY"  # read by our middleware in the server, and by nothing of vLLM (_guard/armwise_key.py says why)
GUARD = Path(__file__).with_name("_guard")
DEV_ENV = {"VLLM_SERVER_DEV_MODE": "1"}
TAKES = frozenset({"cache_salt", "min_tokens", "ignore_eos"})  # fields of a request beyond OpenAI's that we send
IMAGE = "vllm/vllm-openai"  # the project's own images; their tags are v<version>
OWNED = {  # flags that an arm does not write, and what to do instead
    "model": "write model.path or model.repo",
    "revision": "write model.revision",
    "served-model-name": "write model.served_as",
    "enable-prompt-tokens-details": "it is always on",
    **dict.fromkeys(("host", "port", "uds", "api-key", "middleware", "config", "help"), "the driver sets it"),
}
ENGINE_LINE = {  # words of the log's "Initializing a V1 LLM engine" line -> place in the configuration
    "model": "model_config.model",
    "speculative_config": "speculative_config",
    "dtype": "model_config.dtype",
    "max_seq_len": "model_config.max_model_len",
    "revision": "model_config.revision",
    "quantization": "model_config.quantization",
    "enforce_eager": "model_config.enforce_eager",
    "seed": "model_config.seed",
    "served_model_name": "model_config.served_model_name",
    "load_format": "load_config.load_format",
    "tensor_parallel_size": "parallel_config.tensor_parallel_size",
    "kv_cache_dtype": "cache_config.cache_dtype",
    "enable_prefix_caching": "cache_config.enable_prefix_caching",
    "enable_chunked_prefill": "scheduler_config.enable_chunked_prefill",
}
SYSTEM = {  # our word -> field of /server_info's system_env
    "torch": "torch_version",
    "python": "python_version",
    "os": "os",
    "gpu": "nvidia_gpu_models",
    "gpu_driver": "nvidia_driver_version",
}
SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD")
LOG_BYTES = 2_000_000  # what is searched for lines of the start


def flag_names() -> frozenset[str]:
    """Flags that an arm may set, in their positive form: `enable-prefix-caching: false`, never its no- form."""
    return frozenset(_flags()) - OWNED.keys()


def argv(arm: Arm, *, host: str, port: int) -> list[str]:
    """Arguments after the target's command."""
    words = ["--model", _model(arm), "--served-model-name", arm.model.served_as, "--host", host, "--port", str(port)]
    if arm.model.repo and arm.model.revision:
        words += ["--revision", arm.model.revision]
    words += ["--enable-prompt-tokens-details", "--middleware", "armwise_key.Key"]
    for flag, value in _resolved(arm).items():
        words += _words(flag, value)
    return words


def environment(arm: Arm) -> dict[str, str]:
    """Environment of the server."""
    offline = {"HF_HUB_OFFLINE": "1"} if arm.model.path else {}
    return {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "PYTHONPATH": str(GUARD), **offline, **arm.env}


def ready(url: str, key: str | None) -> bool:
    """Whether the server answers /health. It does so only when the model is loaded."""
    return answers(f"{url}/health", key)


def effective(url: str, key: str | None, log: Path | str | None) -> dict[str, Any]:
    """The configuration in effect. Raises OSError, ValueError if the engine does not answer.

    source, config (dotted keys), env, arguments (as the front end parsed them, or None), weight_bytes and how they were
    counted, kv_pool_tokens, versions, process_start_time (seconds since the epoch).
    """
    text, metrics = _log(log), get(f"{url}/metrics", key)
    info = _server_info(url, key)
    config = _without_copies(flatten(info["vllm_config"])) if info else _partial(metrics, text)
    weights = _weights(config, text)
    return {
        "source": "server_info" if info else "metrics+log" if config else "none",
        "config": config,
        "env": {k: v for k, v in (info or {}).get("vllm_env", {}).items() if not SECRET.search(k)} if info else None,
        "arguments": _arguments(text),
        "weight_bytes": weights[0] if weights else None,
        "weight_bytes_from": weights[1] if weights else None,
        "kv_pool_tokens": _kv_pool_tokens(config, text),
        "versions": _versions(url, key, info),
        "process_start_time": _sample(metrics, METRICS["process_start_time"]),
    }


def compare(arm: Arm, effective: dict[str, Any]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(differences, unverified): what was requested and is not in effect, and what nothing could be read of."""
    differences, unverified = [], []
    for key, requested, found, where in _readings(arm, effective):
        row = {"flag": key, "requested": requested}
        if found is UNKNOWN:
            unverified.append(row | {"why": where})
        elif alike(requested, found):
            continue
        elif requested == "auto":
            unverified.append(row | {"why": f"auto leaves it to the engine, which took {found} ({where})"})
        else:
            differences.append(row | {"effective": found, "where": where})
    return differences, unverified


@cache
def _flags() -> dict[str, dict[str, Any]]:
    return dict(json.loads(Path(__file__).with_name("vllm_flags.json").read_text(encoding="utf-8"))["flags"])


def _model(arm: Arm) -> str:
    return str(arm.model.repo) if arm.model.path is None else _absolute(arm.model.path)


def _absolute(path: str) -> str:
    return str((settings.root() / path).absolute())


def _resolved(arm: Arm) -> dict[str, Any]:
    """The flags with the draft model's folder, which is relative to the checkout, made absolute."""
    flags = dict(arm.flags)
    draft = flags.get("speculative-config")
    if isinstance(draft, dict) and isinstance(draft.get("model"), str):
        is_ours = draft["model"].startswith("deploy/") or Path(_absolute(draft["model"])).is_dir()
        flags["speculative-config"] = draft | ({"model": _absolute(draft["model"])} if is_ours else {})
    return flags


def _words(flag: str, value: Any) -> list[str]:
    if value is True:
        return [f"--{flag}"]
    if value is False:
        negative = _flags()[flag].get("negative")
        return [f"--{negative}"] if negative else []
    if isinstance(value, dict):
        return [f"--{flag}", json.dumps(value)]
    return [f"--{flag}", *map(str, value)] if isinstance(value, list) else [f"--{flag}", str(value)]


def _readings(arm: Arm, effective: dict[str, Any]) -> Iterator[tuple[str, Any, Any, str]]:
    """(key in the arm, requested, found or UNKNOWN, where it was read or why it could not be)."""
    config = effective["config"]
    paths = {"model.path" if arm.model.path else "model.repo": ("model_config.model", _model(arm))}
    paths["model.served_as"] = ("model_config.served_model_name", arm.model.served_as)
    if arm.model.repo and arm.model.revision:
        paths["model.revision"] = ("model_config.revision", arm.model.revision)
    for key, (path, requested) in paths.items():
        yield key, requested, _first(lookup(config, path)), path
    for flag, value in _resolved(arm).items():
        for key, requested in leaves(flag, value):
            yield f"flags.{key}", requested, *_found(flag, key.removeprefix(flag), effective)
    for name, requested in arm.env.items():
        found = (effective["env"] or {}).get(name, UNKNOWN)
        yield f"env.{name}", requested, found, "vllm_env" if found is not UNKNOWN else "the engine does not report it"


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def _found(flag: str, leaf: str, effective: dict[str, Any]) -> tuple[Any, str]:
    entry = _flags()[flag]
    if "path" in entry:
        path = entry["path"] + leaf
        found = lookup(effective["config"], path)
        return found, path if found is not UNKNOWN else f"{path} is not in what {effective['source']} shows"
    if "default" in entry and effective["arguments"] is not None:
        return effective["arguments"].get(entry["dest"], entry["default"]), "arguments that the front end parsed"
    return UNKNOWN, "the engine shows no effective value of this flag"


def _log(log: Path | str | None) -> str:
    if log is None or not Path(log).exists():
        return ""
    with Path(log).open(encoding="utf-8", errors="replace") as file:
        return file.read(LOG_BYTES)


def _server_info(url: str, key: str | None) -> dict[str, Any] | None:
    """None where development mode is off. It collects facts about the machine at the first call: seconds."""
    try:
        return dict(get_json(f"{url}/server_info?config_format=json", key, timeout_s=60))
    except urllib.error.HTTPError as error:
        error.close()
        return None


def _without_copies(config: dict[str, Any]) -> dict[str, Any]:
    """The speculative configuration repeats the whole target model's: dropped."""
    return {key: value for key, value in config.items() if not key.startswith("speculative_config.target_")}


def _partial(metrics: str, text: str) -> dict[str, Any]:
    """What the metric vllm:cache_config_info and the log's line of engine settings show of the configuration."""
    line = re.search(r"Initializing a V1 LLM engine .*? with config: (.*)", text)
    words: dict[str, str | None] = {}
    for word, value in re.findall(r"(\w+)=('[^']*'|[^,\s]+)", line[1]) if line else ():
        words.setdefault(word, None if value == "None" else value.strip("'"))  # nested words come later
    config: dict[str, Any] = {path: words[word] for word, path in ENGINE_LINE.items() if word in words}
    labels = next((labels for name, labels, _ in _samples(metrics) if name == "vllm:cache_config_info"), {})
    return config | {f"cache_config.{name}": value for name, value in labels.items() if name != "engine"}


def _samples(text: str) -> Iterator[tuple[str, dict[str, str], float]]:
    from prometheus_client.parser import text_string_to_metric_families

    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            yield sample.name, dict(sample.labels), sample.value


def _sample(metrics: str, name: str) -> float | None:
    return next((value for found, _, value in _samples(metrics) if found == name), None)


def _arguments(text: str) -> dict[str, Any] | None:
    line = re.search(r"non-default args: (\{.*\})", text)
    try:
        return dict(ast.literal_eval(line[1])) if line else None
    except (ValueError, SyntaxError):
        return None  # an argument that has no literal form


def _weights(config: dict[str, Any], text: str) -> tuple[int, str] | None:
    """Weights held, drafts included. The log says it on a GPU, per worker; on a CPU the model folders are counted."""
    loaded = re.findall(r"Model loading took ([\d.]+) GiB", text)
    if loaded:
        return round(sum(map(float, loaded)) * 2**30), "log: Model loading took"
    dtype = str(config.get("model_config.dtype", "")).removeprefix("torch.")
    is_quantized = str(config.get("model_config.quantization")) != "None"
    folders = [Path(str(config.get(key, ""))) for key in ("model_config.model", "speculative_config.model")]
    counted = [
        checkpoint_bytes(folder, None if is_quantized else dtype)
        for folder in folders
        if folder.is_dir() and folder != Path()
    ]
    found = [count for count in counted if count is not None]
    return (sum(size for size, _ in found), found[0][1]) if found else None


def _kv_pool_tokens(config: dict[str, Any], text: str) -> int | None:
    size = config.get("cache_config.kv_cache_size_tokens")
    line = re.search(r"KV cache size: ([\d,]+) tokens", text)
    if size not in (None, "None"):
        return int(size)
    return int(line[1].replace(",", "")) if line else None


def _versions(url: str, key: str | None, info: dict[str, Any] | None) -> dict[str, str]:
    system = (info or {}).get("system_env") or {}
    found = {name: str(system[field]) for name, field in SYSTEM.items() if system.get(field)}
    try:
        return {"vllm": str(get_json(f"{url}/version", key)["version"]), **found}
    except urllib.error.HTTPError as error:
        error.close()
        return found
