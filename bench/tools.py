"""How each peer is asked for the same load, and where in its own export its figures stand.

Same for all: 8 users in a closed loop, prompts of 150 words that no other shares (from one file; vLLM's file reader
needs a package that its environment lacks, so it makes random ones), 30 output tokens whatever the model wants (30 is
what inference-perf's chat loader asks for and cannot be told otherwise), streamed chat completions, usage asked for
where there is a choice, and a tokenizer that counts exactly as the sim does, so no tool is wrong by its tokenizer. 16
requests of warm-up where the tool has a warm-up, as its documentation advises; inference-perf has none. One worker
process where that can be said: 8 streams need no more, and two cores are shared with the server.

A `Report` holds what the tool itself wrote: `figures` under our names (bench/truth.py), where the tool has it;
`counts` of what should be none; `answer_ms`, its median time to the first token of an answer that is not reasoning;
`lines`, those of its output that warn of anything; `first_id`, the first to
end of the answers that it counts, where it says which.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench import peers

USERS, WARMUP, MEASURED, OUTPUT, PROMPT = 8, 16, 64, 30, 150
WORDS = ("the", "server", "counts", "what", "it", "sent", "and", "when", "so", "that", "nobody", "has", "to", "guess")
WARNS = re.compile(r"warn|error|fail|invalid|degraded|incomplete|mismatch|discard|interrupt|⚠", re.IGNORECASE)
NOISE = re.compile(r"[0-9a-f]{8,}|/\S+|\d+(\.\d+)?|[^\w%⚠ ]+|\s+")
# Progress and table heads, and warnings that come and go with the load of the machine, whatever the server does.
ASIDE = re.compile(
    r"\bINFO\b|\bNOTICE\b|^[ ┃│|]*(Completed|Request Error Rate|Achiev)|schedule_delay|"
    r"Report validation finished|generation delay|Event loop for|Warnings \(|^\s*\"?[a-z_]+\"?:",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Report:
    figures: dict[str, float]
    counts: dict[str, float] = field(default_factory=dict)
    answer_ms: float | None = None
    lines: list[str] = field(default_factory=list)
    first_id: str | None = None


@dataclass(frozen=True)
class Tool:
    """`command` makes the command line for a server and an output folder, `read` the report from that folder."""

    name: str
    command: Callable[[str, Path], list[str]]
    read: Callable[[Path], Report]
    warmup: int = WARMUP
    env: dict[str, str] = field(default_factory=dict)


def prepare(folder: Path) -> None:
    """Prompts in each tool's format, and the tokenizer. Prompts share no first word, so none is cached by another."""
    made = [a + b + c for a in "bdfgklmnprstvz" for b in "aeiou" for c in ("tex", "nox", "lix", "kax", "rux", "mox")]
    count = WARMUP + MEASURED + 40  # some tools make a few more than they send
    texts = [" ".join(made[(i + j * (1 + i // len(made))) % len(made)] for j in range(PROMPT)) for i in range(count)]
    texts = [f"{i} {text}" for i, text in enumerate(texts)]
    _lines(folder / "guidellm.jsonl", [{"prompt": text, "output_tokens_count": OUTPUT} for text in texts])
    _lines(folder / "single_turn.jsonl", [{"text": text} for text in texts])
    talks = [[{"from": "system", "value": "Say so."}, {"from": "human", "value": text}] for text in texts]
    (folder / "sharegpt.json").write_text(json.dumps([{"conversations": talk} for talk in talks]))
    _tokenizer(folder / "tokenizer", [*WORDS, *made])


def _tokenizer(folder: Path, words: list[str]) -> None:
    """Words and marks, each with the blank before it: the sim's tokens (tasks/engines/sim/answers.py)."""
    folder.mkdir(exist_ok=True)
    vocabulary = {text: i for i, text in enumerate(["[UNK]", *words, *(f" {word}" for word in words)])}
    unknown = {"id": 0, "content": "[UNK]", "special": True}
    unknown |= dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    split = {"type": "Split", "pattern": {"Regex": r"\s?\w+|\s?[^\w\s]|\s"}, "behavior": "Isolated", "invert": False}
    model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"}
    rest = dict.fromkeys(("truncation", "padding", "normalizer", "post_processor"))
    told = {"version": "1.0", "added_tokens": [unknown], "pre_tokenizer": split, "decoder": {"type": "Fuse"}} | rest
    (folder / "tokenizer.json").write_text(json.dumps(told | {"model": model}))
    template = "{% for m in messages %}<{{m.role}}>{{m.content}}<end>{% endfor %}"
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "[UNK]", "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def _guidellm(url: str, folder: Path) -> list[str]:
    given = folder.parent
    words = ["run", "--backend", f"kind=openai_http,target={url},model=m"]
    words += ["--profile", f"kind=concurrent,streams={USERS},warmup={WARMUP}"]
    words += ["--constraint", f"kind=max_requests,count={WARMUP + MEASURED}"]
    words += ["--data", f"kind=json_file,path={given / 'guidellm.jsonl'}"]
    words += ["--tokenizer", f"kind=hf_auto,model={given / 'tokenizer'}", "--disable-console-interactive"]
    return [*words, "--output", f"kind=json,path={folder / 'export.json'}", "--output", "kind=console"]


def read_guidellm(folder: Path) -> Report:
    (bench,) = json.loads((folder / "export.json").read_text())["benchmarks"]
    metrics, totals = bench["metrics"], bench["metrics"]["request_totals"]
    good = {name: (metrics[name] or {}).get("successful") or {} for name in metrics if isinstance(metrics[name], dict)}
    figures = {
        "succeeded": totals["successful"],
        "failed": totals["errored"] + totals["incomplete"],
        "ttft_ms_p50": good["time_to_first_token_ms"].get("median"),
        "itl_ms_p50": good["inter_token_latency_ms"].get("median"),
        "output_tokens_per_s": good["output_tokens_per_second"].get("mean"),
    }  # no largest gap: its inter-token latency is a mean per request, so a stall is in none of its figures
    begins = bench["scheduler_metrics"]["measure_start_time"]
    rows = [row for row in bench["requests"]["successful"] if row["request_end_time"] >= begins]
    return Report(
        _numbers(figures),
        {"cached tokens": sum(row.get("cached_tokens") or 0 for row in rows)},
        answer_ms=good["time_to_first_output_token_ms"].get("median"),
        first_id=next((row["response_id"] for row in sorted(rows, key=lambda row: row["request_end_time"])), None),
    )


def _aiperf(url: str, folder: Path) -> list[str]:
    given = folder.parent
    words = ["profile", "-m", "m", "--url", url, "--endpoint-type", "chat", "--streaming", "--concurrency", str(USERS)]
    words += ["--request-count", str(MEASURED), "--warmup-request-count", str(WARMUP)]
    words += ["--input-file", str(given / "single_turn.jsonl"), "--custom-dataset-type", "single_turn"]
    words += ["--extra-inputs", f"max_completion_tokens:{OUTPUT}", "--extra-inputs", "ignore_eos:true"]
    words += ["--use-server-token-count", "--tokenizer", str(given / "tokenizer"), "--ui", "none"]
    words += [
        "--workers-max",
        "1",
        "--no-server-metrics",
        "--no-gpu-telemetry",
        "--artifact-dir",
        str(folder / "export"),
    ]
    return words


def read_aiperf(folder: Path) -> Report:
    told = json.loads((folder / "export" / "profile_export_aiperf.json").read_text())

    def of(name: str, which: str) -> Any:
        return (told.get(name) or {}).get(which)

    figures = {
        "succeeded": of("request_count", "avg") or 0,
        "failed": of("error_request_count", "avg") or 0,
        "ttft_ms_p50": of("time_to_first_token", "p50"),
        "itl_ms_p50": of("inter_token_latency", "p50"),
        "output_tokens_per_s": of("output_token_throughput", "avg"),
        "gap_ms_max": of("inter_chunk_latency", "max"),
    }
    counts = {
        "cached tokens": of("total_usage_prompt_cache_read_tokens", "avg"),
        "lengths not as asked": of("osl_mismatch_count", "avg"),
    }
    return Report(_numbers(figures), _numbers(counts), answer_ms=of("time_to_first_output_token", "p50"))


def _inference_perf(url: str, folder: Path) -> list[str]:
    given = folder.parent
    told = {
        "api": {"type": "chat", "streaming": True},
        "data": {"type": "shareGPT", "path": str(given / "sharegpt.json")},
        "load": {
            "type": "concurrent",
            "stages": [{"num_requests": MEASURED, "concurrency_level": USERS}],
            "num_workers": 1,
        },
        "server": {"type": "vllm", "model_name": "m", "base_url": url, "ignore_eos": True},
        "tokenizer": {"pretrained_model_name_or_path": str(given / "tokenizer")},
        "storage": {"local_storage": {"path": str(folder / "export")}},
        "report": {"request_lifecycle": {"summary": True, "per_stage": True, "per_request": True}},
    }
    (folder / "config.yaml").write_text(json.dumps(told))  # JSON is YAML
    return ["-c", str(folder / "config.yaml")]


def read_inference_perf(folder: Path) -> Report:
    told = json.loads((folder / "export" / "summary_lifecycle_metrics.json").read_text())
    good = told["successes"]
    latency = good.get("latency") or {}

    def ms(name: str, which: str) -> float | None:
        value = (latency.get(name) or {}).get(which)
        return None if value is None else 1e3 * value

    figures = {
        "succeeded": good["count"],
        "failed": told["failures"]["count"],
        "ttft_ms_p50": ms("time_to_first_token", "median"),
        "itl_ms_p50": ms("inter_token_latency", "median"),
        "output_tokens_per_s": (good.get("throughput") or {}).get("output_tokens_per_sec"),
        "gap_ms_max": ms("inter_token_latency", "max"),
    }
    counts = {
        "token counts unlike the server's": good.get("token_count_mismatches"),
        "answers without usage": (good.get("client_fallback_requests") or {}).get("output"),
    }
    return Report(_numbers(figures), _numbers(counts))


def _vllm(url: str, folder: Path) -> list[str]:
    given = folder.parent
    words = ["bench", "serve", "--backend", "openai-chat", "--endpoint", "/v1/chat/completions", "--base-url", url]
    words += ["--model", "m", "--tokenizer", str(given / "tokenizer"), "--dataset-name", "random", "--ignore-eos"]
    words += ["--random-input-len", str(PROMPT), "--random-output-len", str(OUTPUT)]
    words += ["--num-prompts", str(MEASURED), "--num-warmups", str(WARMUP), "--max-concurrency", str(USERS)]
    words += ["--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", "50,99,100", "--disable-tqdm"]
    words += ["--ready-check-timeout-sec", "0"]  # its probe would be one more request
    return [*words, "--save-result", "--result-dir", str(folder), "--result-filename", "export.json"]


def read_vllm(folder: Path) -> Report:
    told = json.loads((folder / "export.json").read_text())
    figures = {
        "succeeded": told["completed"],
        "failed": told["failed"],
        "ttft_ms_p50": told.get("median_ttft_ms"),
        "itl_ms_p50": told.get("median_itl_ms"),
        "output_tokens_per_s": told.get("output_throughput"),
        "gap_ms_max": told.get("p100_itl_ms"),
    }
    return Report(_numbers(figures))


def warnings(text: str) -> list[str]:
    """Lines of an output that warn, without what differs from run to run: numbers, paths, marks."""
    found = (NOISE.sub(" ", line) for line in text.splitlines() if not ASIDE.search(line))
    return sorted({" ".join(line.split()) for line in found if WARNS.search(line)})


def _numbers(figures: dict[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in figures.items() if value is not None}


def _lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
TOOLS = (
    Tool("guidellm", _guidellm, read_guidellm, env=OFFLINE | {"GUIDELLM__MAX_WORKER_PROCESSES": "1"}),
    Tool("aiperf", _aiperf, read_aiperf),
    Tool("inference-perf", _inference_perf, read_inference_perf, warmup=0, env=OFFLINE),
    Tool("vllm", _vllm, read_vllm, env=OFFLINE),
)


def whole_command(tool: Tool, url: str, folder: Path) -> list[str]:
    return [*peers.program(tool.name), *tool.command(url, folder)]
