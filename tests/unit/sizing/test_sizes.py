"""`armwise size`: what is said of an arm, and what is refused."""

import sys
from pathlib import Path

import pytest

from tasks import artifact, cli
from tasks.report import sizes

ARMS = ("cpu-baseline", "cpu-draft")


def said(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str) -> dict[str, list[str]]:
    """First word of each row -> the row."""
    monkeypatch.setattr(sys, "argv", ["armwise", "size", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert not ended.value.code
    out = capsys.readouterr().out.splitlines()
    return {line.split()[0]: line.split() for line in out if line.startswith("    ")}


def test_what_a_run_measured_stands_beside_and_is_marked_where_it_is_off(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact.write(tmp_path / "effective.json", {"weight_bytes": 6_216_965_161, "kv_pool_tokens": 2_000_000})
    found = said(capsys, monkeypatch, "qwen2.5-3b-dummy-default", "--run", str(tmp_path))
    assert found["weights,"] == ["weights,", "bytes", "6,171,394,048", "6,216,965,161", "1.007"]
    assert found["KV"][-3:] == ["2,000,000", "0.597", "!"]


def test_an_arm_of_a_hub_is_sized_by_a_configuration_that_is_given(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = said(
        capsys, monkeypatch, "qwen3-4b-fp8", "--model", "deploy/models/qwen2.5-3b", "--gpu", "l4", "--context", "2048"
    )
    assert found["weights,"][2] == "3,396,861,952", "FP8: linear layers of one byte"
    assert found["users"][2] == "2,048"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["qwen3-4b-fp8"], "model.repo: the model's config.json is not here; give its folder with --model"),
        (["cpu-baseline"], "resources.gpu_model: the arm asks for no GPU; known: h200"),
        (["cpu-baseline", "--gpu", "b9"], "--gpu: no 'b9'; known: h200"),
        (["no-such-arm"], "no 'no-such-arm'; known: "),
    ],
)
def test_what_cannot_be_sized_says_why(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["armwise", "size", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert told in capsys.readouterr().err


def test_a_width_that_is_not_known_is_refused() -> None:
    from tasks import arm as arms
    from tasks.document import InvalidDocument

    loaded = arms.load("qwen2.5-3b-dummy-default").model_copy(update={"flags": {"quantization": "q9"}})
    with pytest.raises(InvalidDocument, match=r"flags.quantization: no width is known of 'q9'; known: fp8"):
        sizes.held(loaded, sizes.gpu(loaded, "h200"), Path("deploy/models/qwen2.5-3b"))


def test_a_draft_model_takes_its_share_and_one_that_is_not_here_is_refused() -> None:
    from tasks import arm as arms
    from tasks import settings
    from tasks.document import InvalidDocument

    folder = settings.root() / "deploy" / "models" / "demo"
    alone, drafted = (sizes.held(arms.load(name), sizes.gpu(arms.load(name), "l4"), folder / "model") for name in ARMS)
    assert drafted.draft is not None
    draft = drafted.draft.linear + drafted.draft.embedding
    assert drafted.weight_bytes == alone.weight_bytes + round(draft * drafted.width)
    told = {"speculative-config": {"model": "no/such/folder"}}
    loaded = arms.load(ARMS[0]).model_copy(update={"flags": told})
    with pytest.raises(InvalidDocument, match=r"no/such/folder: has neither a model\.yaml nor a readable config\.json"):
        sizes.held(loaded, sizes.gpu(loaded, "l4"), folder / "model")
