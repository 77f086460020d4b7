"""vLLM: what its command line is, and what is read from what real servers said (tests/goldens)."""

import json
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from stand_in.launch import running

from tasks import arm as arms
from tasks import settings
from tasks.arm import Arm, Model
from tasks.engines import vllm
from tasks.engines._configuration import flatten

GOLDENS = Path(__file__).resolve().parents[2] / "goldens"
CPU = GOLDENS / "vllm-0.32.0-cpu"
METRIC_FILES = sorted(GOLDENS.glob("*/metrics_*.txt"))
ON_CPU = sorted(path.stem.removeprefix("server_info_") for path in CPU.glob("server_info_*.json"))
ARGUMENTS = {"enable_auto_tool_choice": True, "tool_call_parser": "hermes", "served_model_name": ["tiny"]}
LOG = """\
(APIServer pid=1) INFO 11-30 18:46:26 [api_utils.py:286] non-default args: {'enable_auto_tool_choice': True, \
'tool_call_parser': 'hermes', 'port': 8100, 'model': 'model', 'served_model_name': ['tiny'], 'max_num_seqs': 8}
(EngineCore pid=2) INFO 11-30 18:46:46 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: \
model='model', speculative_config=None, tokenizer='model', skip_tokenizer_init=False, dtype=torch.float32, \
max_seq_len=4096, tensor_parallel_size=1, quantization=None, enforce_eager=True, kv_cache_dtype=auto, seed=0, \
served_model_name=tiny, enable_prefix_caching=True, enable_chunked_prefill=True, pooler_config=None
(EngineCore pid=2) INFO 11-30 18:46:58 [kv_cache_utils.py:2327] CPU KV cache size: 131,072 tokens, Maximum
"""


def an_arm(env: dict[str, str] | None = None, **flags: Any) -> Arm:
    flags = {name.replace("_", "-"): value for name, value in flags.items()}
    model = Model(path="deploy/models/demo/model", served_as="tiny")
    return Arm(engine="vllm", question="is this a test?", model=model, price="p", flags=flags, env=env or {})


def seen(config: dict[str, Any], **more: Any) -> dict[str, Any]:
    """What effective() returns, of a configuration."""
    known = {"model_config.model": vllm._model(an_arm()), "model_config.served_model_name": "tiny"}
    return {"source": "server_info", "config": known | config, "env": {}, "arguments": None, **more}


def test_there_are_goldens() -> None:
    assert len(METRIC_FILES) >= 6, f"no samples of /metrics below {GOLDENS}; collect.py there makes them"
    assert len(ON_CPU) == 5


@pytest.mark.parametrize("path", METRIC_FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_metric_name_is_in_the_sample(path: Path) -> None:
    families = text_string_to_metric_families(path.read_text())
    names = {sample.name for family in families for sample in family.samples}
    is_speculative = "ngram" in path.stem or "draft" in path.stem
    expected = {name for ours, name in vllm.METRICS.items() if is_speculative or not ours.startswith("spec_")}
    assert expected <= names
    assert is_speculative == (vllm.METRICS["spec_drafts_total"] in names)


@pytest.mark.parametrize("name", ON_CPU)
def test_every_setting_of_a_cpu_arm_was_in_effect_on_the_real_server(name: str) -> None:
    info = json.loads((CPU / f"server_info_{name}.json").read_text())
    text = json.dumps(info).replace('"/models/', f'"{settings.root()}/deploy/models/demo/')
    config = flatten(json.loads(text)["vllm_config"])
    found = seen(config, arguments=ARGUMENTS, env=info["vllm_env"]) | {"config": config}
    assert vllm.compare(arms.load(name), found) == ([], [])


@pytest.mark.parametrize("name", ON_CPU)
def test_a_cpu_arm_is_told_from_the_server_of_another(name: str) -> None:
    other = "cpu-baseline" if name != "cpu-baseline" else "cpu-no-prefix-caching"
    config = flatten(json.loads((CPU / f"server_info_{other}.json").read_text())["vllm_config"])
    differences, _ = vllm.compare(arms.load(name), seen(config))
    differing = {row["flag"].removeprefix("flags.").split(".")[0] for row in differences} - {"model"}
    assert differing & set(_varied(name) or _varied(other))


def _varied(name: str) -> list[str]:
    return [key.removeprefix("flags.") for key in arms.load(name).varies]


@pytest.mark.parametrize("name", [name for name in arms.names() if name.startswith("qwen")])
def test_every_setting_of_a_gpu_arm_has_its_place_in_what_a_gpu_server_shows(name: str) -> None:
    """Values differ (another model), but no flag may be unverified for want of a place to look."""
    sample = GOLDENS / "vllm-0.25.1-h200" / "server_info_ngram4.json"
    config = flatten(json.loads(sample.read_text())["vllm_config"])
    _, unverified = vllm.compare(arms.load(name), seen(config, arguments={}) | {"config": config})
    assert [row for row in unverified if not row["flag"].startswith("env.")] == []


def test_argv_in_full(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ARMWISE_ROOT", str(tmp_path))
    speculative = {"method": "draft_model", "model": "deploy/models/demo/draft", "num_speculative_tokens": 4}
    arm = an_arm(
        max_num_seqs=8,
        enforce_eager=True,
        enable_prefix_caching=False,
        speculative_config=speculative,
        allowed_origins=["a", "b"],
    )
    words = vllm.argv(arm, host="127.0.0.1", port=8100)
    assert words[:2] == ["--model", f"{tmp_path}/deploy/models/demo/model"]
    assert words[2:11] == [
        *("--served-model-name", "tiny", "--host", "127.0.0.1", "--port", "8100"),
        *("--enable-prompt-tokens-details", "--middleware", "armwise_key.Key"),
    ]
    assert words[11:15] == ["--max-num-seqs", "8", "--enforce-eager", "--no-enable-prefix-caching"]
    assert json.loads(words[16]) == speculative | {"model": f"{tmp_path}/deploy/models/demo/draft"}
    assert words[17:] == ["--allowed-origins", "a", "b"]


def test_argv_of_a_hub_model_names_its_revision_and_leaves_a_hub_draft_alone() -> None:
    model = Model(repo="Qwen/Qwen3-4B", revision="abc", served_as="q")
    flags: dict[str, Any] = {"speculative-config": {"model": "Qwen/Qwen3-0.6B"}}
    words = vllm.argv(an_arm().model_copy(update={"model": model, "flags": flags}), host="h", port=1)
    assert words[:2] == ["--model", "Qwen/Qwen3-4B"]
    assert words[words.index("--revision") + 1] == "abc"
    assert json.loads(words[-1]) == {"model": "Qwen/Qwen3-0.6B"}


@pytest.mark.parametrize("flag", ["no-enable-prefix-caching", "port", "model", "max-num-seq"])
def test_flags_that_an_arm_may_not_write(flag: str) -> None:
    assert flag not in vllm.flag_names()


def test_an_ignored_flag_is_a_difference_with_both_values() -> None:
    differences, _ = vllm.compare(an_arm(max_num_seqs=8), seen({"scheduler_config.max_num_seqs": 128}))
    where = "scheduler_config.max_num_seqs"
    assert differences == [{"flag": "flags.max-num-seqs", "requested": 8, "effective": 128, "where": where}]


def test_speculation_that_is_off_differs_leaf_by_leaf() -> None:
    arm = an_arm(speculative_config={"method": "ngram", "num_speculative_tokens": 4})
    differences, _ = vllm.compare(arm, seen({"speculative_config": None}))
    assert [(row["flag"], row["effective"]) for row in differences] == [
        ("flags.speculative-config.method", None),
        ("flags.speculative-config.num_speculative_tokens", None),
    ]


def test_another_model_is_a_difference() -> None:
    differences, _ = vllm.compare(an_arm(), seen({"model_config.model": "/elsewhere"}))
    assert [row["flag"] for row in differences] == ["model.path"]


@pytest.mark.parametrize(("requested", "found"), [("float32", "torch.float32"), (8, "8"), (True, "True"), (0.9, 0.9)])
def test_two_ways_of_writing_one_value_are_alike(requested: Any, found: Any) -> None:
    flags = {"float32": "dtype", "8": "max_num_seqs", "True": "enforce_eager", "0.9": "gpu_memory_utilization"}
    flag = flags[str(requested)]
    path = vllm._flags()[flag.replace("_", "-")]["path"]
    assert vllm.compare(an_arm(**{flag: requested}), seen({path: found})) == ([], [])


def test_what_nothing_is_shown_of_is_unverified() -> None:
    arm = an_arm({"OMP_NUM_THREADS": "2"}, max_num_seqs=8, tool_call_parser="hermes", cpu_offload_params=["a"])
    differences, unverified = vllm.compare(arm, seen({}))
    assert differences == []
    assert [row["flag"] for row in unverified] == [
        "flags.max-num-seqs",
        "flags.tool-call-parser",
        "flags.cpu-offload-params",
        "env.OMP_NUM_THREADS",
    ]


def test_auto_is_unverified_and_says_what_was_taken() -> None:
    _, unverified = vllm.compare(an_arm(dtype="auto"), seen({"model_config.dtype": "torch.bfloat16"}))
    assert "torch.bfloat16" in unverified[0]["why"]


def test_without_development_mode_metrics_and_log_show_a_part(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with running("--model", "m", log=tmp_path / "out", VLLM_SERVER_DEV_MODE="0") as engine:
        log.write_text(LOG)
        found = vllm.effective(engine.url, None, log)
    assert found["source"] == "metrics+log"
    assert found["config"]["model_config.dtype"] == "torch.float32"
    assert found["config"]["cache_config.enable_prefix_caching"] == "True"
    assert found["kv_pool_tokens"] == 65_536  # of the metric; the log's line is used where there is none
    arm = an_arm(dtype="float32", max_model_len=4096, enforce_eager=True, enable_prefix_caching=False, max_num_seqs=8)
    differences, unverified = vllm.compare(arm, found)
    assert ("flags.enable-prefix-caching", False) in [(row["flag"], row["requested"]) for row in differences]
    assert [row["flag"] for row in unverified] == ["flags.max-num-seqs"]


def test_effective_of_a_live_server(tmp_path: Path) -> None:
    with running("--model", "m", "--max-num-seqs", "8", log=tmp_path / "log") as engine:
        assert vllm.ready(engine.url, None)
        found = vllm.effective(engine.url, None, engine.log)
    assert not vllm.ready(engine.url, None)
    assert found["source"] == "server_info"
    assert found["config"]["scheduler_config.max_num_seqs"] == 8
    assert found["arguments"]["max_num_seqs"] == 8
    assert (found["weight_bytes"], found["weight_bytes_from"]) == (round(0.0264 * 2**30), "log: Model loading took")
    assert found["process_start_time"] > 1.7e9
    assert found["versions"] == {"vllm": "0.0.0-stand-in"}


def test_a_silent_engine_raises(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="refused"):
        vllm.effective("http://127.0.0.1:9", None, tmp_path / "none")


def test_weights_are_counted_in_the_folder_where_the_log_has_no_line(tmp_path: Path) -> None:
    tensors = {"a": {"dtype": "BF16", "shape": [3, 4], "data_offsets": [0, 24]}, "__metadata__": {"format": "pt"}}
    header = json.dumps(tensors).encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(24))
    config = {"model_config.model": str(tmp_path), "model_config.dtype": "torch.float32"}
    assert vllm._weights(config, "") == (48, "parameters of the model folder x 4 (float32)")
    drafted = config | {"speculative_config.model": str(tmp_path)}
    assert vllm._weights(drafted, "") == (96, "parameters of the model folder x 4 (float32)")
    assert vllm._weights(config | {"speculative_config.model": "ngram"}, "") == vllm._weights(config, "")
    quantized = config | {"model_config.quantization": "fp8"}
    assert vllm._weights(quantized, "") == (24, "bytes of the model folder's tensors")
    assert vllm._weights({"model_config.model": str(tmp_path / "none")}, "") is None


def test_the_log_tells_speculation_off_from_speculation_not_shown(tmp_path: Path) -> None:
    arm = an_arm(speculative_config={"method": "ngram"})
    shown = "speculative_config=SpeculativeConfig(method='ngram', model=None, num_spec_tokens=4)"
    for text, model, counts in (
        (LOG, "model", (1, 0)),
        (LOG.replace("speculative_config=None", shown), "model", (0, 1)),
    ):
        config = vllm._partial("", text)
        assert config["model_config.model"] == model
        found = seen(config) | {"source": "metrics+log"}
        differences, unverified = vllm.compare(arm, found)
        flags = [[row["flag"] for row in rows] for rows in (differences, unverified)]
        assert tuple(rows.count("flags.speculative-config.method") for rows in flags) == counts
