"""How each tool is asked for N paced streams, and what it exports of each call: TTFT and the gaps between chunks.

Nobody warms up: the first wave is left out afterwards, by the server's record. One worker process where that can be
said, for the client has one core. Only what a tool writes out is compared: guidellm has no time per chunk in its
export, only means.
"""

import itertools
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench import peers, tools

ROOT = Path(__file__).resolve().parents[1]
LOCUSTFILE = ROOT / "bench" / "client_locustfile.py"
OURS = "armwise"


@dataclass(frozen=True)
class Load:
    """`rate` is None in the closed loop of `streams`; `count` calls in all."""

    streams: int
    count: int
    rate: float | None = None


@dataclass(frozen=True)
class Told:
    """One call as its tool has it. `id`: as the server knows it, None where the tool does not export it.

    `begun`: orders the calls of a tool that exports no id. `gaps_ms`: None where not exported.
    """

    ttft_ms: float | None
    gaps_ms: list[float] | None
    id: str | None = None
    begun: float = 0.0


@dataclass(frozen=True)
class Tool:
    name: str
    command: Callable[[str, Path, Load], list[str]]
    read: Callable[[Path], list[Told]]
    env: dict[str, str] = field(default_factory=dict)


def prepare(folder: Path, count: int) -> None:
    """A tokenizer and `count` short prompts, in each tool's format."""
    tools.prepare(folder)
    texts = [f"{number} Say so. the server counts what it sent" for number in range(count)]
    rows = [{"prompt": text, "output_tokens_count": 50} for text in texts]
    (folder / "guidellm.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "single_turn.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    talks = [[{"from": "system", "value": "Say so."}, {"from": "human", "value": text}] for text in texts]
    (folder / "sharegpt.json").write_text(json.dumps([{"conversations": talk} for talk in talks]))


def _ours(url: str, folder: Path, load: Load) -> list[str]:
    users = 1 if load.rate else load.streams
    words = [sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), "--headless", "--only-summary", "--host", url]
    words += ["--users", str(users), "--spawn-rate", str(users), "--count", str(load.count)]
    return [*words, "--rate", str(load.rate or 0.0), "--out", str(folder / "export.json")]


def _read_ours(folder: Path) -> list[Told]:
    rows = json.loads((folder / "export.json").read_text())
    return [Told(row["ttft_ms"], row["gaps_ms"], row["id"]) for row in rows]


def _guidellm(url: str, folder: Path, load: Load) -> list[str]:
    given = folder.parent
    profile = f"kind=constant,rate={load.rate:g}" if load.rate else f"kind=concurrent,streams={load.streams}"
    words = [*peers.program("guidellm"), "run", "--backend", f"kind=openai_http,target={url},model=m"]
    words += ["--profile", profile, "--constraint", f"kind=max_requests,count={load.count}"]
    words += ["--data", f"kind=json_file,path={given / 'guidellm.jsonl'}"]
    words += ["--tokenizer", f"kind=hf_auto,model={given / 'tokenizer'}", "--disable-console-interactive"]
    return [*words, "--output", f"kind=json,path={folder / 'export.json'}"]


def _read_guidellm(folder: Path) -> list[Told]:
    (bench,) = json.loads((folder / "export.json").read_text())["benchmarks"]
    rows = bench["requests"]["successful"]
    return [Told(row["time_to_first_token_ms"], None, row["response_id"].removeprefix("chatcmpl-")) for row in rows]


def _aiperf(url: str, folder: Path, load: Load) -> list[str]:
    given = folder.parent
    words = [*peers.program("aiperf"), "profile", "-m", "m", "--url", url, "--endpoint-type", "chat", "--streaming"]
    words += ["--request-rate", f"{load.rate:g}", "--arrival-pattern", "constant"] if load.rate else []
    words += [] if load.rate else ["--concurrency", str(load.streams)]
    words += ["--request-count", str(load.count), "--input-file", str(given / "single_turn.jsonl")]
    words += ["--custom-dataset-type", "single_turn", "--use-server-token-count", "--ui", "none"]
    words += ["--tokenizer", str(given / "tokenizer"), "--workers-max", "1", "--no-server-metrics"]
    return [*words, "--no-gpu-telemetry", "--artifact-dir", str(folder / "export")]


def _read_aiperf(folder: Path) -> list[Told]:
    found = []
    for line in (folder / "export" / "profile_export.jsonl").read_text().splitlines():
        row = json.loads(line)
        metrics = row["metrics"]
        ttft, gaps = metrics.get("time_to_first_token") or {}, metrics.get("inter_chunk_latency") or {}
        found.append(Told(ttft.get("value"), gaps.get("value"), row["metadata"].get("x_request_id")))
    return found


def _inference_perf(url: str, folder: Path, load: Load) -> list[str]:
    given = folder.parent
    closed = {"type": "concurrent", "stages": [{"num_requests": load.count, "concurrency_level": load.streams}]}
    seconds = int(load.count / load.rate) if load.rate else 0
    opened = {"type": "constant", "stages": [{"rate": load.rate, "duration": seconds}]}
    told = {
        "api": {"type": "chat", "streaming": True},
        "data": {"type": "shareGPT", "path": str(given / "sharegpt.json")},
        "load": (opened if load.rate else closed)
        | {"num_workers": 1, "worker_max_concurrency": 1024, "worker_max_tcp_connections": 2048},
        "server": {"type": "vllm", "model_name": "m", "base_url": url, "ignore_eos": True},
        "tokenizer": {"pretrained_model_name_or_path": str(given / "tokenizer")},
        "storage": {"local_storage": {"path": str(folder / "export")}},
        "report": {"request_lifecycle": {"summary": True, "per_stage": False, "per_request": True}},
    }
    (folder / "config.yaml").write_text(json.dumps(told))  # JSON is YAML
    return [*peers.program("inference-perf"), "-c", str(folder / "config.yaml")]


def _read_inference_perf(folder: Path) -> list[Told]:
    rows = json.loads((folder / "export" / "per_request_lifecycle_metrics.json").read_text())
    return [_told_by_inference_perf(row) for row in rows]


def _told_by_inference_perf(row: dict[str, Any]) -> Told:
    times = row["info"]["response_metrics"]["output_token_times"]
    gaps = [1e3 * (b - a) for a, b in itertools.pairwise(times)]
    return Told(1e3 * (times[0] - row["start_time"]) if times else None, gaps, begun=row["start_time"])


def _vllm(url: str, folder: Path, load: Load) -> list[str]:
    given = folder.parent
    words = [*peers.program("vllm"), "bench", "serve", "--backend", "openai-chat", "--base-url", url]
    words += ["--endpoint", "/v1/chat/completions", "--model", "m", "--tokenizer", str(given / "tokenizer")]
    words += ["--dataset-name", "random", "--random-input-len", "12", "--random-output-len", "50", "--ignore-eos"]
    words += ["--num-prompts", str(load.count), "--request-id-prefix", "v-", "--disable-tqdm"]
    pace = ["--request-rate", f"{load.rate:g}", "--burstiness", "1e6"] if load.rate else []
    words += pace or ["--max-concurrency", str(load.streams)]
    words += ["--ready-check-timeout-sec", "0", "--save-result", "--save-detailed"]
    return [*words, "--result-dir", str(folder), "--result-filename", "export.json"]


def _read_vllm(folder: Path) -> list[Told]:
    """It takes the role and the end for chunks: the first and the last of its gaps are none between contents."""
    told = json.loads((folder / "export.json").read_text())
    pairs = zip(told["ttfts"], told["itls"], strict=True)
    return [Told(1e3 * ttft, [1e3 * gap for gap in gaps[1:-1]], f"v-{i}") for i, (ttft, gaps) in enumerate(pairs)]


OFFLINE = tools.OFFLINE
TOOLS = (
    Tool(OURS, _ours, _read_ours, {"PYTHONPATH": str(ROOT)}),
    Tool("vllm", _vllm, _read_vllm, OFFLINE),
    Tool("inference-perf", _inference_perf, _read_inference_perf, OFFLINE),
    Tool("aiperf", _aiperf, _read_aiperf),
    Tool("guidellm", _guidellm, _read_guidellm, OFFLINE | {"GUIDELLM__MAX_WORKER_PROCESSES": "1"}),
)
