"""The sim's command line: vLLM's own flags in, what the scheduler runs by and what /server_info shows out.

Every flag of vLLM is understood, and shown at the place where vLLM shows it (vllm_flags.json), so that an arm is read
back as on a real engine. MODELLED are the flags that change what the sim does; any other is shown, logged as having no
effect, and reported by `compare` as unverified, since taking it proves nothing.

What contradicts itself ends the start with vLLM's words, as it does there.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tasks.document import InvalidDocument
from tasks.engines.sim.faults import Faults
from tasks.engines.sim.scheduler import Limits
from tasks.sizing import capacity
from tasks.sizing import machine as machines
from tasks.sizing.machine import Machine

ENV = ("SIM_GPU", "SIM_STEP_MS", "SIM_SPREAD", "SIM_TIME_SCALE", "SIM_ACCEPTANCE", "SIM_FAULTS", "SIM_RECORD")
SHOWN_ENV = (*ENV, "VLLM_SERVER_DEV_MODE", "VLLM_NO_USAGE_STATS")
ACCEPTANCE = (
    0.6  # ours, about what n-gram speculation gets on this project's own workload (42 percent) and a draft more
)
LARGE_GIB = 70  # of memory; from there on vLLM's defaults are larger (vllm/engine/arg_utils.py, get_batch_defaults)
DEFAULTS: dict[str, Any] = {
    "model": "",
    "revision": None,
    "served-model-name": None,
    "dtype": "bfloat16",
    "quantization": None,
    "max-model-len": None,
    "seed": 0,
    "enforce-eager": False,
    "block-size": 16,
    "gpu-memory-utilization": 0.92,
    "kv-cache-dtype": "auto",
    "num-gpu-blocks-override": None,
    "enable-prefix-caching": True,
    "enable-chunked-prefill": True,
    "max-num-seqs": None,
    "max-num-batched-tokens": None,
    "tensor-parallel-size": 1,
    "speculative-config": None,
    "enable-auto-tool-choice": False,
    "tool-call-parser": None,
    "enable-prompt-tokens-details": False,
}
MODELLED = frozenset(DEFAULTS) - {"revision", "enforce-eager", "tensor-parallel-size"}
FRONT_END = ("host", "port", "api-key", "middleware")


@dataclass(frozen=True)
class Setup:
    """All that a server of the sim is started with."""

    flags: dict[str, Any]  # in effect, defaults filled in
    asked: dict[str, Any]  # as the command line said
    limits: Limits
    machine: Machine
    served_as: str
    host: str
    port: int
    key: str | None
    is_dev: bool
    step_s: float | None  # a fixed time of every step instead of the roofline's
    spread: int  # slots of a step over which its sends are spread; 0: all at its end
    time_scale: float  # real seconds per second of the model
    record: str | None
    faults: Faults
    env: dict[str, str]

    @property
    def without_effect(self) -> list[str]:
        """Flags that were taken and that nothing is modelled by."""
        return sorted(set(self.asked) - MODELLED - set(FRONT_END))


def setup(argv: Sequence[str], env: Mapping[str, str]) -> Setup:
    """Raises InvalidDocument for an unknown flag or GPU, a bad value, or settings that contradict each other."""
    asked = parse(argv)
    faults = Faults.parsed(env.get("SIM_FAULTS", ""))
    told = {**DEFAULTS, **faults.without_ignored(asked)}
    held = machines.model(Path(str(told["model"])))
    gpu = machines.gpu(env.get("SIM_GPU") or "h200", asked_by="SIM_GPU")
    shown = _resolved(told, gpu, held)
    real = _resolved(faults.without_unused(told, DEFAULTS), gpu, held)
    machine = _machine(real, gpu, held, faults)
    return Setup(
        flags=shown,
        asked=asked,
        limits=_limits(real, machine, env),
        machine=machine,
        served_as=_served_as(shown),
        host=str(asked.get("host", "127.0.0.1")),
        port=int(asked.get("port", 8000)),
        key=asked.get("api-key") or env.get("ENGINE_KEY") or env.get("VLLM_API_KEY") or None,
        is_dev=env.get("VLLM_SERVER_DEV_MODE") == "1",
        step_s=_number(env, "SIM_STEP_MS", None, 1e-3),
        spread=_spread(env),
        time_scale=_number(env, "SIM_TIME_SCALE", 1.0) or 1.0,
        record=env.get("SIM_RECORD") or None,
        faults=faults,
        env={name: env[name] for name in SHOWN_ENV if name in env},
    )


def parse(argv: Sequence[str]) -> dict[str, Any]:
    """`--a 1 --b --no-c` -> {a: 1, b: True, c: False}; values are JSON where they can be. Raises InvalidDocument."""
    asked: dict[str, Any] = {}
    known = table()
    negative = {entry["negative"]: name for name, entry in known.items() if "negative" in entry}
    words = [part for word in argv for part in (word.split("=", 1) if word.startswith("--") else [word])]
    while words:
        word = words.pop(0)
        name = word.removeprefix("--")
        if word == name or name not in known.keys() | negative.keys():
            raise InvalidDocument(f"unrecognized arguments: {word}")
        values = []
        while words and not words[0].startswith("--"):
            values.append(_value(words.pop(0)))
        if name in negative:
            asked[negative[name]] = False
        else:
            asked[name] = values if len(values) > 1 else values[0] if values else True
    return asked


@cache
def table() -> dict[str, dict[str, Any]]:
    """vLLM's flags and the place of each in its configuration."""
    path = Path(__file__).parents[1] / "vllm_flags.json"
    return dict(json.loads(path.read_text(encoding="utf-8"))["flags"])


def shown(setup: Setup) -> dict[str, Any]:
    """The tree that /server_info shows as vllm_config."""
    tree: dict[str, Any] = {"speculative_config": None}
    limits, machine = setup.limits, setup.machine
    for name, value in setup.flags.items():
        path = table()[name].get("path")
        if path:
            _place(tree, path, f"torch.{value}" if name == "dtype" else value)
    tree["model_config"]["served_model_name"] = setup.served_as
    tree["cache_config"] |= {"num_gpu_blocks": limits.blocks, "kv_cache_size_tokens": limits.blocks * limits.block_size}
    tree["device_config"] = {"device": "sim"}
    tree["additional_config"] = {"sim": {"gpu": machine.gpu.name, "without_effect": setup.without_effect}}
    return tree


def _place(tree: dict[str, Any], path: str, value: Any) -> None:
    *sections, leaf = path.split(".")
    for section in sections:
        inner = tree.get(section)
        tree[section] = inner if isinstance(inner, dict) else {}
        tree = tree[section]
    tree[leaf] = value


def _resolved(flags: dict[str, Any], gpu: machines.Gpu, held: machines.Model) -> dict[str, Any]:
    """Defaults that depend on GPU and model filled in."""
    is_large = gpu.memory_gb >= LARGE_GIB
    least = {
        "max-num-seqs": 1024 if is_large else 256,
        "max-num-batched-tokens": 8192 if is_large else 2048,
        "max-model-len": held.max_position_embeddings,
    }
    return flags | {flag: value for flag, value in least.items() if flags[flag] is None}


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _served_as(flags: Mapping[str, Any]) -> str:
    name = flags["served-model-name"] or flags["model"]
    return str(name[0] if isinstance(name, list) else name)


def _machine(flags: Mapping[str, Any], gpu: machines.Gpu, held: machines.Model, faults: Faults) -> Machine:
    width = _width("dtype", str(flags["dtype"]), machines.WIDTHS | {"auto": 2.0})
    linear = width
    if flags["quantization"]:
        linear = _width("quantization", str(flags["quantization"]), machines.QUANTIZED)
    kv = width
    if flags["kv-cache-dtype"] != "auto":
        kv = _width("kv-cache-dtype", str(flags["kv-cache-dtype"]), machines.KV_WIDTHS)
    draft = (flags["speculative-config"] or {}).get("model")
    has_folder = draft is not None and Path(str(draft)).is_dir()
    return Machine(
        gpu=gpu,
        model=held,
        width=width,
        linear_width=faults.precision(linear),
        kv_width=kv,
        draft=machines.model(Path(str(draft))) if has_folder else None,
    )


def _width(flag: str, value: str, widths: Mapping[str, float]) -> float:
    if value not in widths:
        raise InvalidDocument(f"--{flag}: the sim does not model '{value}'; it models: {', '.join(widths)}")
    return widths[value]


def _limits(flags: Mapping[str, Any], machine: Machine, env: Mapping[str, str]) -> Limits:
    size = int(flags["block-size"])
    tokens = capacity.kv_pool_tokens(machine, float(flags["gpu-memory-utilization"]))
    limits = Limits(
        max_num_seqs=int(flags["max-num-seqs"]),
        max_num_batched_tokens=int(flags["max-num-batched-tokens"]),
        block_size=size,
        blocks=int(flags["num-gpu-blocks-override"] or tokens // size),
        prefix_caching=bool(flags["enable-prefix-caching"]),
        chunked_prefill=bool(flags["enable-chunked-prefill"]),
        draft_tokens=int((flags["speculative-config"] or {}).get("num_speculative_tokens", 0)),
        acceptance=_number(env, "SIM_ACCEPTANCE", ACCEPTANCE) or 0.0,
        seed=int(flags["seed"]),
    )
    _check(limits, int(flags["max-model-len"]))
    return limits


def _check(limits: Limits, max_model_len: int) -> None:
    batched, pool = limits.max_num_batched_tokens, limits.blocks * limits.block_size
    if batched < max_model_len and not limits.chunked_prefill:
        raise InvalidDocument(
            f"max_num_batched_tokens ({batched}) is smaller than max_model_len ({max_model_len}), and chunked prefill "
            "is off: longer prompts could never be computed; raise max_num_batched_tokens"
        )
    if batched < limits.max_num_seqs:
        raise InvalidDocument(
            f"max_num_batched_tokens ({batched}) must be greater than or equal to max_num_seqs ({limits.max_num_seqs})"
        )
    if pool < max_model_len:
        raise InvalidDocument(
            f"the KV cache holds {pool} tokens, fewer than max_model_len ({max_model_len}); "
            "lower max_model_len or raise gpu_memory_utilization"
        )


def _spread(env: Mapping[str, str]) -> int:
    slots = int(_number(env, "SIM_SPREAD", 0.0) or 0)
    if slots and not env.get("SIM_STEP_MS"):
        raise InvalidDocument("SIM_SPREAD: needs SIM_STEP_MS, since only steps of one length have phases")
    return slots


def _number(env: Mapping[str, str], name: str, default: float | None, factor: float = 1.0) -> float | None:
    text = env.get(name)
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if value < 0:
        raise InvalidDocument(f"{name}: must be a number, 0 or more, found '{text}'")
    return value * factor
