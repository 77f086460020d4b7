"""Start the sim as a process of its own for a test, and read what it says and what it recorded."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tasks.engines.sim import record

ROOT = Path(__file__).resolve().parents[1]
MODEL = ROOT / "deploy" / "models" / "sim" / "qwen2.5-3b"
FLAGS = ("--served-model-name", "m", "--enable-prompt-tokens-details", "--max-model-len", "8192")
TOOLS = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
CASE = "Let me know the newest version number of KrovozleyDB."


@dataclass
class Streamed:
    """One streamed answer as it came: its raw body, its events, when they arrived, and the error that ended it."""

    status: int
    raw: bytes
    at_ns: list[int]
    error: Exception | None

    @property
    def events(self) -> list[dict[str, Any]]:
        *whole, _ = self.raw.split(b"\n\n")
        return [json.loads(one.removeprefix(b"data: ")) for one in whole if one.startswith(b"data: {")]

    @property
    def deltas(self) -> list[dict[str, Any]]:
        return [choice["delta"] for event in self.events for choice in event.get("choices", ())]

    @property
    def content(self) -> str:
        return "".join(delta.get("content") or "" for delta in self.deltas)

    @property
    def finish_reason(self) -> str | None:
        reasons = [choice["finish_reason"] for event in self.events for choice in event.get("choices", ())]
        return next((reason for reason in reasons if reason), None)

    @property
    def usage(self) -> dict[str, Any] | None:
        return next((event["usage"] for event in self.events if event.get("usage")), None)

    @property
    def is_done(self) -> bool:
        return self.raw.endswith(b"data: [DONE]\n\n")


@dataclass
class Sim:
    process: subprocess.Popen[bytes]
    client: httpx.Client
    url: str
    log: Path
    record: Path

    def ask(self, content: str = "Say something.", *, status: int = 200, **more: Any) -> dict[str, Any]:
        """A whole answer."""
        answer = self.client.post("/v1/chat/completions", json=body(content, **more))
        assert answer.status_code == status, answer.text
        return dict(answer.json())

    def stream(self, content: str = "Say something.", **more: Any) -> Streamed:
        asked = body(content, stream=True, stream_options={"include_usage": True}, **more)
        raw, at_ns, error = b"", [], None
        with self.client.stream("POST", "/v1/chat/completions", json=asked) as answer:
            try:
                for piece in answer.iter_raw():
                    at_ns.append(time.monotonic_ns())
                    raw += piece
            except httpx.HTTPError as fault:
                error = fault
        return Streamed(answer.status_code, raw, at_ns, error)

    def plant(self, **faults: Any) -> None:
        """`name={}` or `name={"param": value}`; none at all takes every fault away."""
        answer = self.client.post("/sim/faults", json=faults)
        assert answer.status_code == 200, answer.text

    def metric(self, name: str) -> float:
        text = self.client.get("/metrics").text
        found = [s.value for f in text_string_to_metric_families(text) for s in f.samples if s.name == name]
        assert found, f"no metric {name}"
        return sum(found)

    def requests(self) -> list[dict[str, Any]]:
        """Lines of the record that tell of a request, in the order of their ends."""
        return [line for line in record.read(self.record) if line["what"] == "request"]


def body(content: str, **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": content}], **more}


@contextmanager
def serving(folder: Path, *flags: str, step_ms: float = 2, **env: str) -> Iterator[Sim]:
    """A sim that answers /health; its log and record lie in folder. Steps take step_ms; 0: what the roofline says."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url, log, told = f"http://127.0.0.1:{port}", folder / "sim.log", folder / "sim.jsonl"
    command = [sys.executable, "-m", "tasks.engines.sim", "--model", str(MODEL), "--port", str(port), *FLAGS, *flags]
    own = {
        "VLLM_SERVER_DEV_MODE": "1",
        "SIM_RECORD": str(told),
        "SIM_STEP_MS": str(step_ms or ""),
        "PYTHONPATH": str(ROOT),
    }
    with (
        log.open("wb") as out,
        httpx.Client(base_url=url, timeout=20) as client,
        subprocess.Popen(command, env=os.environ | own | env, stdout=out, stderr=out, cwd=ROOT) as process,
    ):
        try:
            _wait(process, client, log)
            yield Sim(process, client, url, log, told)
        finally:
            process.terminate()
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()


def _wait(process: subprocess.Popen[bytes], client: httpx.Client, log: Path) -> None:
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()
        try:
            if client.get("/health").status_code == 200:
                return
        except httpx.HTTPError:
            time.sleep(0.05)
    raise AssertionError(f"the sim did not answer within 90 s: {log.read_text()}")
