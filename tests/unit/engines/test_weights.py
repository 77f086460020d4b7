"""Bytes of weights, counted by hand from a configuration."""

import json
from pathlib import Path

import pytest

from tasks import arm as arms
from tasks.engines import _weights
from tasks.engines._configuration import checkpoint_bytes

CONFIG = {
    "vocab_size": 100,
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}
LINEAR = 2 * (8 * 8 + 2 * 8 * 4 + 8 * 8 + 3 * 8 * 16)  # per layer: q, k and v of two heads of 2, o, gated MLP
EMBEDDING = 2 * 100 * 8


def arm(folder: Path, **flags) -> arms.Arm:
    (folder / "config.json").write_text(json.dumps(CONFIG))
    told = {"engine": "vllm", "question": "How heavy is it?", "price": "h200", "flags": flags}
    return arms.Arm.model_validate(told | {"model": arms.Model(path=str(folder))})


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"dtype": "float32"}, 4 * (LINEAR + EMBEDDING)),
        ({"dtype": "bfloat16"}, 2 * (LINEAR + EMBEDDING)),
        ({"dtype": "bfloat16", "quantization": "fp8"}, LINEAR + 2 * EMBEDDING),
        ({}, 2 * (LINEAR + EMBEDDING)),  # as the engine shows it
        ({"dtype": "bfloat16", "quantization": "nobody-knows"}, None),
    ],
)
def test_by_precision(tmp_path: Path, flags: dict, expected: int | None) -> None:
    shown = {"model_config.dtype": "torch.bfloat16"}
    assert _weights.expected_bytes(arm(tmp_path, **flags), shown) == expected


def test_a_draft_model_is_held_beside_it(tmp_path: Path) -> None:
    draft = {"method": "draft_model", "model": str(tmp_path), "num_speculative_tokens": 2}
    found = _weights.expected_bytes(arm(tmp_path, dtype="float32", **{"speculative-config": draft}), {})
    assert found == 2 * 4 * (LINEAR + EMBEDDING)
    elsewhere = draft | {"model": "some/hub-model"}
    assert _weights.expected_bytes(arm(tmp_path, dtype="float32", **{"speculative-config": elsewhere}), {}) is None


def test_what_is_not_here_cannot_be_counted(tmp_path: Path) -> None:
    there = arm(tmp_path, dtype="float32")
    assert _weights.expected_bytes(there.model_copy(update={"model": arms.Model(repo="some/model")}), {}) is None
    (tmp_path / "config.json").write_text("{}")
    assert _weights.expected_bytes(there, {}) is None


@pytest.mark.parametrize("name", ["cpu-baseline", "cpu-draft"])
def test_agrees_with_the_checkpoint_itself(name: str) -> None:
    """The demo model's tensors, counted from their headers; what is left out (norms) is far below the rule's bound."""
    one, root = arms.load(name), Path(arms.folder()).parents[1]
    folders = [one.model.path, (one.flags.get("speculative-config") or {}).get("model")]
    held = sum(checkpoint_bytes(root / folder, "float32")[0] for folder in folders if folder)
    assert _weights.expected_bytes(one, {}) == pytest.approx(held, rel=0.01)
