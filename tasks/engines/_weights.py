"""What a model must weigh when it is held as the arm says: weights of its configuration x bytes of the precision.

    bytes = linear layers x width of the quantization (else of the dtype) + embedding and output layer x width of dtype

Counted from config.json (or the sim's model.yaml): attention, gated MLP, embedding. Norms, biases and the scales of a
quantization are left out, below 1 percent of any model that we know. A draft model is held beside it in the dtype. What
cannot be counted (a hub model whose configuration is not here, a quantization whose width is not known) is None.
"""

from pathlib import Path
from typing import Any

from tasks import settings
from tasks.arm import Arm
from tasks.document import InvalidDocument
from tasks.sizing import machine


def expected_bytes(arm: Arm, config: dict[str, Any]) -> int | None:
    """Bytes of the arm's weights. `config`: what the engine shows, for a dtype that the arm leaves to it."""
    width = _width(arm, config)
    model, draft = _model(arm.model.path), _draft(arm)
    if width is None or model is None or draft is None:
        return None
    quantization = arm.flags.get("quantization")
    linear = width if quantization is None else machine.QUANTIZED.get(str(quantization))
    if linear is None:
        return None
    return round(model.linear * linear + (model.embedding + draft) * width)


def _width(arm: Arm, config: dict[str, Any]) -> float | None:
    asked = str(arm.flags.get("dtype", "auto"))
    shown = str(config.get("model_config.dtype", "")).removeprefix("torch.")
    return machine.WIDTHS.get(shown if asked == "auto" else asked)


def _draft(arm: Arm) -> int | None:
    """Weights of the draft model; 0 without one, None if it cannot be counted."""
    told = arm.flags.get("speculative-config")
    name = told.get("model") if isinstance(told, dict) else None
    if name is None:
        return 0
    draft = _model(str(name))
    return None if draft is None else draft.linear + draft.embedding


def _model(path: str | None) -> machine.Model | None:
    folder = settings.root() / path if path else None
    if folder is None or not Path(folder).is_dir():
        return None
    try:
        return machine.model(folder)
    except InvalidDocument:
        return None
