"""What an arm's model takes and what its GPU can do at most, before a run; and what a run measured of it.

The arm's flags say how the model is held (dtype, quantization, kv-cache-dtype, gpu-memory-utilization). What the arm
leaves to the engine is taken as vLLM takes it: the model's own type, here always 16 bit, and 0.9 of the memory.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tasks import settings
from tasks.arm import Arm
from tasks.document import InvalidDocument
from tasks.report.figures import Cell, Table, cell, number
from tasks.sizing import capacity
from tasks.sizing import machine as machines
from tasks.sizing.machine import Gpu, Machine, Model

BAND = 0.05  # ours: what counts and data sheets leave out; further apart is worth a look
UTILIZATION = 0.9
COLUMNS = ["what", "predicted", "measured", "measured / predicted"]


def table(arm: Arm, held: Machine, context: int, measured: Mapping[str, Any]) -> Table:
    """`context`: tokens of each user; `measured`: effective.json of a run of this arm, or nothing."""
    rows = [
        [Cell(words), Cell(shown, "number"), *_measured(value, measured.get(key))]
        for words, shown, value, key in _figures(arm, held, context)
    ]
    gpu = held.gpu
    note = (
        f"{gpu.name}: {gpu.source}, read on {gpu.read_on}. Speeds are ceilings and floors by data sheet, no forecast: "
        f"a server beyond one was measured wrongly. Measured is marked (!) where it is more than {BAND:.0%} off."
    )
    return Table("What fits, and how fast it can be at most", COLUMNS, rows, note)


def held(arm: Arm, gpu: Gpu, folder: Path) -> Machine:
    """The arm's model, as its flags hold it on a GPU. Raises InvalidDocument."""
    own = _width(arm, "dtype", machines.WIDTHS | {"auto": 2.0}, "auto")
    quantization = arm.flags.get("quantization")
    linear = own if quantization is None else _width(arm, "quantization", machines.QUANTIZED, str(quantization))
    kv = _width(arm, "kv-cache-dtype", machines.KV_WIDTHS | {"auto": own}, "auto")
    return Machine(gpu, machines.model(folder), own, linear, kv, _draft(arm))


def _draft(arm: Arm) -> Model | None:
    """The draft model, which is held beside the model. Raises InvalidDocument where it is not here to be counted."""
    told = arm.flags.get("speculative-config")
    name = told.get("model") if isinstance(told, dict) else None
    return machines.model(settings.root() / str(name)) if name else None


def gpu(arm: Arm, name: str | None) -> Gpu:
    """By name, or the one that the arm asks for. Raises InvalidDocument with the known ones."""
    known = machines.gpus()
    if name is not None:
        return machines.gpu(name, asked_by="--gpu")
    for one in known.values():
        if arm.resources.gpu_model == one.name:
            return one
    asked = f"asks for '{arm.resources.gpu_model}'" if arm.resources.gpu_model else "asks for no GPU"
    raise InvalidDocument(f"resources.gpu_model: the arm {asked}; known: {', '.join(known)}. Give one with --gpu")


def _width(arm: Arm, flag: str, known: Mapping[str, float], default: str) -> float:
    value = str(arm.flags.get(flag, default))
    if value not in known:
        raise InvalidDocument(f"flags.{flag}: no width is known of '{value}'; known: {', '.join(known)}")
    return known[value]


def _figures(arm: Arm, held: Machine, context: int) -> Iterator[tuple[str, str, float, str]]:
    """(what, in words, value, its name in effective.json)"""
    share = float(str(arm.flags.get("gpu-memory-utilization", UTILIZATION)))
    pool, weights = capacity.kv_pool_tokens(held, share), held.weight_bytes
    users = capacity.users(held, share, context)
    most = min(users, int(str(arm.flags.get("max-num-seqs", users))))
    yield "weights, bytes", f"{weights:,}", weights, "weight_bytes"
    if held.model.num_experts:
        active = held.model.active * held.linear_width + held.model.embedding * held.width
        yield "weights that one token passes through, bytes", f"{active:,.0f}", active, ""
    yield "KV cache of one token", f"{held.kv_bytes:,.0f} bytes", held.kv_bytes, ""
    yield f"KV pool at {share:g} of the memory", f"{pool:,} tokens", pool, "kv_pool_tokens"
    yield f"users of {context:,} tokens each that fit", f"{users:,}", users, ""
    for at_once in sorted({1, most} - {0}):
        speed = capacity.decode_tokens_per_s(held, at_once, context)
        yield (
            f"decode, {at_once:,} user{'s' * (at_once > 1)} of {context:,} tokens, at most",
            f"{number(speed)} tokens/s",
            speed,
            "",
        )
    floor = 1000 * capacity.prefill_s(held, context)
    yield f"prefill of {context:,} tokens, at least", f"{number(floor)} ms", floor, ""
    balance = capacity.balance_tokens(held)
    yield "tokens of a step from which arithmetic binds", f"{balance:,}", balance, ""


def _measured(predicted: float, found: float | None) -> list[Cell]:
    if found is None or predicted <= 0:
        return [cell(found), cell(None)]
    ratio = found / predicted
    is_off = abs(ratio - 1) > BAND
    return [Cell(f"{found:,.0f}", "number"), Cell(f"{ratio:.3f}{' !' * is_off}", "number")]
