"""The roofline's parts against numbers that were read elsewhere: published sizes, and one measured server."""

from pathlib import Path

import pytest

from tasks import settings
from tasks.document import InvalidDocument
from tasks.engines._configuration import checkpoint_bytes
from tasks.engines.sim import roofline
from tasks.sizing import capacity, machine
from tasks.sizing.machine import Machine

MODELS = settings.root() / "deploy" / "models"
QWEN = machine.model(MODELS / "sim" / "qwen2.5-3b")
H200 = Machine(machine.gpu("h200", asked_by="test"), QWEN)


def test_weights_of_a_published_model() -> None:
    """3,085,938,688 is what the checkpoint of Qwen2.5-3B holds; norms and biases are not counted here."""
    assert QWEN.linear + QWEN.embedding == pytest.approx(3_085_938_688, rel=1e-3)


@pytest.mark.parametrize("name", ["model", "draft"])
def test_weights_of_the_demo_model_are_those_in_its_file(name: str) -> None:
    found = machine.model(MODELS / "demo" / name)
    counted = checkpoint_bytes(MODELS / "demo" / name, "bfloat16")
    assert counted is not None
    assert 2 * (found.linear + found.embedding) == pytest.approx(counted[0], rel=3e-3)


def test_kv_pool_is_that_of_a_real_server() -> None:
    """vLLM 0.25.1 said 3,348,368 tokens for this model on an H200 at 0.9 (tests/goldens)."""
    assert capacity.kv_pool_tokens(H200, 0.9) == pytest.approx(3_348_368, rel=0.01)


def test_one_stream_is_as_fast_as_was_measured() -> None:
    assert 1 / roofline.seconds(H200, tokens=1, context=1_000, pairs=1_000) == pytest.approx(301, rel=0.02)


def test_half_the_bytes_are_read_faster_and_a_slower_memory_slower() -> None:
    def decode_s(machine: Machine) -> float:
        return roofline.seconds(machine, tokens=1, context=1_000, pairs=1_000) - roofline.OVERHEAD_S

    narrow = Machine(machine.gpu("h200", asked_by="test"), QWEN, linear_width=1)
    assert decode_s(narrow) / decode_s(H200) == pytest.approx(narrow.weight_bytes / H200.weight_bytes, rel=0.02)
    assert decode_s(Machine(machine.gpu("l4", asked_by="test"), QWEN)) / decode_s(H200) == pytest.approx(
        4800 / 300, rel=1e-6
    )


def test_long_prompts_are_bound_by_arithmetic_and_short_ones_by_memory() -> None:
    long, longer = (roofline.seconds(H200, n, n, n * n // 2) - roofline.OVERHEAD_S for n in (4_000, 8_000))
    assert longer / long == pytest.approx(2, rel=0.15)
    short, shorter = (roofline.seconds(H200, n, n, n * n // 2) for n in (16, 8))
    assert short == pytest.approx(shorter, rel=0.01)


def test_a_draft_model_costs_its_passes_and_its_memory() -> None:
    drafted = Machine(machine.gpu("h200", asked_by="test"), QWEN, draft=machine.model(MODELS / "demo" / "draft"))
    assert drafted.weight_bytes > H200.weight_bytes
    one, four = (roofline.seconds(drafted, 5, 100, 100, drafts=n) for n in (1, 4))
    assert four - one == pytest.approx(3 * (one - roofline.seconds(drafted, 5, 100, 100)))


@pytest.mark.parametrize("name", machine.gpus())
def test_every_gpu_says_where_its_numbers_are_from(name: str) -> None:
    assert machine.gpu(name, asked_by="test").source.startswith("https://")


def test_a_folder_without_a_configuration_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidDocument, match=f"{tmp_path}: has neither a model.yaml nor a readable config.json"):
        machine.model(tmp_path)
    (tmp_path / "config.json").write_text('{"vocab_size": 10}')
    with pytest.raises(InvalidDocument, match="hidden_size: is missing"):
        machine.model(tmp_path)
