"""Capacity and ceilings, against a real server's own words and against numbers worked out by hand."""

import json
from pathlib import Path
from typing import Any

import pytest

from tasks import settings
from tasks.document import InvalidDocument
from tasks.sizing import capacity, machine
from tasks.sizing.machine import Machine

QWEN = machine.model(settings.root() / "deploy" / "models" / "qwen2.5-3b")
H200 = machine.gpu("h200", asked_by="test")
DENSE = {
    "vocab_size": 100,
    "hidden_size": 10,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 5,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
}
EXPERTS = DENSE | {"num_local_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 20}


def of(folder: Path, config: dict[str, Any]) -> machine.Model:
    (folder / "config.json").write_text(json.dumps(config))
    return machine.model(folder)


@pytest.mark.parametrize(
    ("linear_width", "weights", "pool"), [(2.0, 6_216_965_161, 3_462_192), (1.0, 3_500_398_346, 3_536_064)]
)
def test_weights_and_pool_are_those_of_a_real_server(linear_width: float, weights: int, pool: int) -> None:
    """vLLM 0.25.1 on one H200 at 0.9, bfloat16 and FP8 (docs/results/2026-12-01-h200)."""
    held = Machine(H200, QWEN, linear_width=linear_width)
    assert held.weight_bytes == pytest.approx(weights, rel=0.03)
    assert held.kv_bytes == 36_864
    assert capacity.kv_pool_tokens(held, 0.9) == pytest.approx(pool, rel=0.05)
    assert capacity.kv_pool_tokens(held, 0.9) < pool, "what fits here fits there"


def test_no_measured_speed_is_beyond_its_ceiling() -> None:
    """2.97 ms per token at one user; first tokens of 20.2 ms for prompts of at most 965 tokens; same results."""
    held = Machine(H200, QWEN)
    assert capacity.decode_tokens_per_s(held, 1, 1_000) > 1000 / 2.97
    assert capacity.prefill_s(held, 965) < 20.2e-3


def test_users_share_the_pool_and_none_fits_where_not_even_the_weights_do() -> None:
    held = Machine(H200, QWEN)
    assert capacity.users(held, 0.9, 16_384) == capacity.kv_pool_tokens(held, 0.9) // 16_384
    assert capacity.users(held, 0.05, 16_384) == 0


def test_a_dense_model_by_hand(tmp_path: Path) -> None:
    """Head 2: q 10, kv 2. A layer: 10 x (20 + 4 + 120) = 1440; embedding 1000, tied; KV 2 x 2 layers x 2 x 2 bytes."""
    held = Machine(H200, of(tmp_path, DENSE))
    assert (held.model.linear, held.model.active, held.model.embedding) == (2_880, 2_880, 1_000)
    assert (held.weight_bytes, held.kv_bytes) == (7_760, 16)
    assert capacity.step_bytes(held, 3, 100) == 7_760 + 1_600
    # 2 x 3880 flops per token, and attention: 4 x 2 x 5 x 2 per pair, 6 pairs of 3 tokens
    assert capacity.prefill_s(held, 3) == pytest.approx((7_760 * 3 + 80 * 6) / 989e12)
    assert capacity.balance_tokens(held) == round(7_760 / 4.8e12 * 989e12 / 7_760)


def test_of_experts_all_are_held_and_few_are_read_and_computed(tmp_path: Path) -> None:
    """A layer: 10 x (24 + router 8); an expert in both layers: 3 x 2 x 10 x 20 = 1200."""
    held = Machine(H200, of(tmp_path, EXPERTS))
    assert held.model.linear == 2 * 10 * 32 + 8 * 1_200
    assert held.model.active == 2 * 10 * 32 + 2 * 1_200
    one, many = (capacity.step_bytes(held, tokens, 0) for tokens in (1, 1_000))
    assert held.weight_bytes - one == pytest.approx(6 * 1_200 * 2)
    assert many == pytest.approx(held.weight_bytes)


@pytest.mark.parametrize(
    "field",
    [
        {"kv_lora_rank": 512},
        {"n_shared_experts": 1},
        {"mlp_only_layers": [0]},
        {"first_k_dense_replace": 1},
        {"decoder_sparse_step": 2},
    ],
)
def test_what_would_be_counted_wrongly_is_refused(field: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(InvalidDocument, match=rf"config.json: a model with {next(iter(field))} is not counted here"):
        of(tmp_path, DENSE | field)


def test_experts_of_which_nobody_says_how_many_a_token_takes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidDocument, match="num_experts_per_tok: must be given for a model of 8 experts"):
        of(tmp_path, DENSE | {"num_local_experts": 8})


def test_batched_decode_is_bound_by_arithmetic_at_last() -> None:
    held = Machine(H200, QWEN)
    peak = 989e12 / (2 * (QWEN.active + QWEN.embedding))
    assert capacity.decode_tokens_per_s(held, 100_000, 1) == pytest.approx(peak)
    assert capacity.decode_tokens_per_s(held, 64, 1_000) < 64 * capacity.decode_tokens_per_s(held, 1, 1_000)
