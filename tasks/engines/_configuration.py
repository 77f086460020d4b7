"""An engine's configuration as flat dotted keys, and whether a requested value is the one in effect.

Engines print one value in several ways: torch.float32 for float32, "True" in a metric label for true, 8 for "8". They
are alike. Everything else that differs is a difference.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

UNKNOWN = object()  # the engine does not say
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
WORDS = {"True": True, "False": False, "None": None}


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings to dotted keys; lists and empty mappings are values."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) and value else {f"{prefix}{key}": value}
    return flat


def lookup(config: Mapping[str, Any], path: str) -> Any:
    """Value at a dotted path. None below a section that is None or empty; UNKNOWN if the engine has no such key."""
    if path in config:
        return config[path]
    parts = path.split(".")
    above = (".".join(parts[:n]) for n in range(len(parts) - 1, 0, -1))
    return next((None for key in above if key in config and not config[key]), UNKNOWN)


def alike(requested: Any, found: Any) -> bool:
    """Whether two values say the same, however they are written."""
    return bool(_plain(requested) == _plain(found))


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if not isinstance(value, str):
        return value
    if value in WORDS:
        return WORDS[value]
    try:
        return float(value)
    except ValueError:
        return value.removeprefix("torch.")


def leaves(key: str, requested: Any) -> Iterator[tuple[str, Any]]:
    """A flag whose value is a mapping asks for each of its leaves."""
    if isinstance(requested, dict) and requested:
        yield from flatten(requested, f"{key}.").items()
    else:
        yield key, requested


def checkpoint_bytes(folder: Path, dtype: str | None) -> tuple[int, str] | None:
    """Bytes of the weights in a model folder when held as dtype (None: as stored), and how they were counted."""
    tensors = [tensor for path in sorted(folder.glob("*.safetensors")) for tensor in _tensors(path)]
    if not tensors:
        return None
    width = BYTES.get(dtype or "")
    if width is None:
        return sum(t["data_offsets"][1] - t["data_offsets"][0] for t in tensors), "bytes of the model folder's tensors"
    return sum(_elements(t["shape"]) for t in tensors) * width, f"parameters of the model folder x {width} ({dtype})"


def _tensors(path: Path) -> list[dict[str, Any]]:
    """Header of a safetensors file: 8 bytes of length, then JSON."""
    with path.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return [tensor for name, tensor in header.items() if name != "__metadata__"]


def _elements(shape: list[int]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count
