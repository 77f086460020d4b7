"""A stand-in for vLLM in tests: the same flags, endpoints and metric names, up in a fraction of a second, no model.

Usage: `python tests/stand_in/engine.py --model M --port P [any vLLM flag]`. Its configuration table and its counters
are its own, not the project's: what tests compare is two independent readings.

VLLM_API_KEY          requests to /v1 without it are answered 401; so with ENGINE_KEY and --middleware armwise_key.Key
VLLM_SERVER_DEV_MODE  /server_info and /reset_prefix_cache exist only with "1"
STAND_IN_TTFT_MS, STAND_IN_TPOT_MS   time to the first token (5) and per further token (1)
STAND_IN_FAULT        comma list: exit_at_start, never_ready, slow_start:<s>, ignore_flag:<flag>, rubbish_json,
                      wrong_answers, truncated, hang, die_after:<n requests>, http_503:<ratio>
"""

import hashlib
import json
import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

sys.path.insert(0, os.path.dirname(__file__))  # noqa: PTH120 (before any other import of ours)
from answers import Reply, read_cases, reply, tokens

BLOCK = 16  # tokens per block of the prefix cache
KV_TOKENS = 65_536
STARTED = time.time()
# flag -> (section of vllm_config, field, default)
CONFIG: dict[str, tuple[str, str, Any]] = {
    "model": ("model_config", "model", ""),
    "revision": ("model_config", "revision", None),
    "served-model-name": ("model_config", "served_model_name", None),
    "dtype": ("model_config", "dtype", "bfloat16"),
    "quantization": ("model_config", "quantization", None),
    "max-model-len": ("model_config", "max_model_len", 4096),
    "enforce-eager": ("model_config", "enforce_eager", False),
    "seed": ("model_config", "seed", 0),
    "block-size": ("cache_config", "block_size", BLOCK),
    "enable-prefix-caching": ("cache_config", "enable_prefix_caching", True),
    "gpu-memory-utilization": ("cache_config", "gpu_memory_utilization", 0.92),
    "kv-cache-dtype": ("cache_config", "cache_dtype", "auto"),
    "tensor-parallel-size": ("parallel_config", "tensor_parallel_size", 1),
    "max-num-seqs": ("scheduler_config", "max_num_seqs", 128),
    "max-num-batched-tokens": ("scheduler_config", "max_num_batched_tokens", 2048),
    "enable-chunked-prefill": ("scheduler_config", "enable_chunked_prefill", True),
}
FRONTEND = ("host", "port", "enable-auto-tool-choice", "tool-call-parser", "enable-prompt-tokens-details", "middleware")


def parse_flags(argv: list[str]) -> dict[str, Any]:
    """`--a 1 --b --no-c` -> {a: 1, b: True, c: False}; values are read as JSON where they are JSON."""
    flags: dict[str, Any] = {}
    for i, word in enumerate(argv):
        if not word.startswith("--"):
            continue
        name, _, value = word[2:].partition("=")
        if not value and i + 1 < len(argv) and not argv[i + 1].startswith("--"):
            value = argv[i + 1]
        if value:
            flags[name] = _value(value)
        else:
            flags[name.removeprefix("no-")] = not name.startswith("no-")
    return flags


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def parse_faults(text: str) -> dict[str, str]:
    """`a,b:1` -> {a: "", b: "1"}."""
    return dict(part.partition(":")[::2] for part in text.split(",") if part)


class Engine:
    """State shared by the request threads: configuration, counters, prefix cache."""

    def __init__(self, flags: dict[str, Any], faults: dict[str, str], env: dict[str, str]):
        self.asked, self.faults, self.env = flags, faults, env
        self.flags = {k: v for k, v in flags.items() if k != faults.get("ignore_flag")}
        self.model = str(self.flags.get("served-model-name") or self.flags.get("model", "model"))
        self.cases = read_cases()
        self.ttft_s = float(env.get("STAND_IN_TTFT_MS", "5")) / 1e3
        self.tpot_s = float(env.get("STAND_IN_TPOT_MS", "1")) / 1e3
        self.seats = threading.Semaphore(int(self.setting("max-num-seqs")))
        self.lock = threading.Lock()
        self.blocks: set[str] = set()
        self.count = dict.fromkeys(
            ("requests", "running", "waiting", "prompt", "generation", "queries", "hits", "drafts"), 0
        )
        self.finished = dict.fromkeys(("stop", "length", "abort", "error"), 0)

    def setting(self, flag: str) -> Any:
        return self.flags.get(flag, CONFIG[flag][2])

    def add(self, **amounts: int) -> None:
        with self.lock:
            for name, amount in amounts.items():
                self.count[name] += amount

    def vllm_config(self) -> dict[str, Any]:
        config: dict[str, Any] = {"speculative_config": self.flags.get("speculative-config")}
        for flag, (section, field, _) in CONFIG.items():
            config.setdefault(section, {})[field] = self.setting(flag)
        config["model_config"]["dtype"] = f"torch.{self.setting('dtype')}"
        config["model_config"]["served_model_name"] = self.model
        config["cache_config"] |= {"kv_cache_size_tokens": KV_TOKENS, "num_gpu_blocks": KV_TOKENS // BLOCK}
        return config

    def cached(self, prompt: list[str], salt: str) -> int:
        """Tokens of the prompt that are in the prefix cache; the prompt's own blocks are added to it."""
        if not self.setting("enable-prefix-caching"):
            return 0
        digest, found, is_hit = hashlib.sha256(salt.encode()), 0, True
        for i in range(0, (len(prompt) - 1) // BLOCK * BLOCK, BLOCK):
            digest.update("\x00".join(prompt[i : i + BLOCK]).encode())
            with self.lock:
                is_hit = is_hit and digest.hexdigest() in self.blocks
                self.blocks.add(digest.hexdigest())
            found += BLOCK * is_hit
        self.add(queries=len(prompt), hits=found)
        return found

    def metrics(self) -> str:
        """The lines of /metrics that the project reads, in vLLM's own words."""
        label, c = f'engine="0",model_name="{self.model}"', self.count
        info = ",".join(f'{k}="{v}"' for k, v in sorted(self.vllm_config()["cache_config"].items()))
        values = {
            "num_requests_running": ("gauge", c["running"]),
            "num_requests_waiting": ("gauge", c["waiting"]),
            "kv_cache_usage_perc": ("gauge", min(1.0, len(self.blocks) * BLOCK / KV_TOKENS) if c["running"] else 0.0),
            "prefix_cache_queries_total": ("counter", c["queries"]),
            "prefix_cache_hits_total": ("counter", c["hits"]),
            "num_preemptions_total": ("counter", 0),
            "prompt_tokens_total": ("counter", c["prompt"]),
            "generation_tokens_total": ("counter", c["generation"]),
        }
        if self.flags.get("speculative-config"):
            names = ("spec_decode_num_drafts_total", "spec_decode_num_draft_tokens_total")
            values |= dict.fromkeys((*names, "spec_decode_num_accepted_tokens_total"), ("counter", c["drafts"]))
        lines = [
            "# TYPE process_start_time_seconds gauge",
            f"process_start_time_seconds {STARTED}",
            "# TYPE process_cpu_seconds_total counter",
            f"process_cpu_seconds_total {time.process_time()}",
        ]
        for name, (kind, value) in values.items():
            lines += [f"# TYPE vllm:{name} {kind}", f"vllm:{name}{{{label}}} {float(value)}"]
        lines += ["# TYPE vllm:request_success_total counter"]
        lines += [
            f'vllm:request_success_total{{{label},finished_reason="{k}"}} {float(v)}' for k, v in self.finished.items()
        ]
        return "\n".join([*lines, "# TYPE vllm:cache_config_info gauge", f"vllm:cache_config_info{{{info}}} 1.0", ""])


class Handler(BaseHTTPRequestHandler):
    """One connection. `engine` is set on the class before the server starts."""

    engine: Engine
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: Any) -> None:
        print("INFO:    ", format % args, flush=True)

    def send(self, status: int, body: Any, kind: str = "application/json") -> None:
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def error(self, status: int, words: str) -> None:
        self.send(status, {"error": {"message": words, "type": "BadRequestError", "code": status}})

    def allowed(self) -> bool:
        ours = "ENGINE_KEY" if self.engine.flags.get("middleware") == "armwise_key.Key" else "VLLM_API_KEY"
        key = self.engine.env.get(ours)
        return not key or not self.path.startswith("/v1") or self.headers.get("Authorization") == f"Bearer {key}"

    def do_GET(self) -> None:
        path, engine = self.path.partition("?")[0], self.engine
        if not self.allowed():
            self.send(401, {"error": "Unauthorized"})
        elif path == "/health":
            self.send(200, "")
        elif path == "/version":
            self.send(200, {"version": "0.0.0-stand-in"})
        elif path == "/metrics":
            self.send(200, engine.metrics(), "text/plain; version=0.0.4")
        elif path == "/v1/models":
            self.send(200, {"object": "list", "data": [{"id": engine.model, "object": "model"}]})
        elif path == "/server_info" and engine.env.get("VLLM_SERVER_DEV_MODE") == "1":
            shown = {k: v for k, v in engine.env.items() if k.startswith("VLLM_") and "KEY" not in k}
            self.send(200, {"vllm_config": engine.vllm_config(), "vllm_env": shown, "system_env": {}})
        else:
            self.send(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = self.path.partition("?")[0]
        if not self.allowed():
            self.send(401, {"error": "Unauthorized"})
        elif path == "/reset_prefix_cache" and self.engine.env.get("VLLM_SERVER_DEV_MODE") == "1":
            self.engine.blocks.clear()
            self.send(200, "")
        elif path == "/v1/chat/completions":
            self.chat(body)
        else:
            self.send(404, {"detail": "Not Found"})

    def chat(self, body: bytes) -> None:
        engine, faults = self.engine, self.engine.faults
        with engine.lock:
            engine.count["requests"] += 1
            number = engine.count["requests"]
        if "die_after" in faults and number > int(faults["die_after"]):
            os._exit(137)
        ratio = float(faults.get("http_503", 0))
        if int(number * ratio) > int((number - 1) * ratio):
            return self.error(503, "planted: the engine is overloaded")
        try:
            request = json.loads(body)
            messages = request["messages"]
        except (ValueError, KeyError, TypeError) as fault:
            return self.error(400, f"bad request: {fault!r}")
        if request.get("model") != engine.model:
            return self.error(404, f"The model `{request.get('model')}` does not exist.")
        if "hang" in faults:
            threading.Event().wait()
        engine.add(waiting=1)
        with engine.seats:
            engine.add(waiting=-1, running=1)
            try:
                self.answer(request, reply(messages, engine.cases, faults))
            except OSError:
                engine.finished["abort"] += 1
                self.close_connection = True
            finally:
                engine.add(running=-1)

    def answer(self, request: dict[str, Any], said: Reply) -> None:
        engine = self.engine
        prompt = tokens(json.dumps(request["messages"]) + json.dumps(request.get("tools")))
        cached = engine.cached(prompt, request.get("cache_salt") or "")
        events, reason = deltas(said, request)
        usage: dict[str, Any] = {
            "prompt_tokens": len(prompt),
            "completion_tokens": len(events),
            "total_tokens": len(prompt) + len(events),
        }
        if engine.flags.get("enable-prompt-tokens-details"):
            usage["prompt_tokens_details"] = {"cached_tokens": cached}
        engine.add(prompt=len(prompt))
        if request.get("stream"):
            self.stream(request, events, reason, usage)
        else:
            self.whole(said, events, reason, usage)
        engine.finished["length" if reason == "length" else "stop"] += 1

    def wait(self, number: int) -> None:
        """Spend the time of one token and count it."""
        time.sleep(self.engine.tpot_s if number else self.engine.ttft_s)
        self.engine.add(generation=1, drafts=1)

    def whole(self, said: Reply, events: list[Any], reason: str, usage: dict[str, Any]) -> None:
        for number in range(len(events)):
            self.wait(number)
        content = "".join(event.get("content", "") for event in events)
        arguments = "".join(c["function"].get("arguments", "") for e in events for c in e.get("tool_calls", []))
        message: dict[str, Any] = {"role": "assistant", "content": content, "tool_calls": []}
        if said.tool and reason == "tool_calls":
            function = {"name": said.tool, "arguments": arguments}
            message["tool_calls"] = [{"id": call_id(), "type": "function", "function": function}]
        choice = {"index": 0, "message": message, "finish_reason": reason}
        head = {"id": "chatcmpl-0", "object": "chat.completion", "created": int(time.time())}
        self.send(200, head | {"model": self.engine.model, "choices": [choice], "usage": usage})

    def stream(self, request: dict[str, Any], events: list[Any], reason: str, usage: dict[str, Any]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.event([{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}])
        for number, delta in enumerate(events):
            self.wait(number)
            if "truncated" in self.engine.faults and number >= len(events) // 2:
                self.close_connection = True
                return
            self.event([{"index": 0, "delta": delta, "finish_reason": None}])
        self.event([{"index": 0, "delta": {}, "finish_reason": reason}])
        if (request.get("stream_options") or {}).get("include_usage"):
            self.event([], usage=usage)
        self.chunk("data: [DONE]\n\n")
        self.chunk("")

    def event(self, choices: list[Any], **more: Any) -> None:
        head = {"id": "chatcmpl-0", "object": "chat.completion.chunk", "created": int(time.time())}
        self.chunk(f"data: {json.dumps(head | {'model': self.engine.model, 'choices': choices} | more)}\n\n")

    def chunk(self, text: str) -> None:
        data = text.encode()
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


def call_id() -> str:
    return f"call_{os.urandom(8).hex()}"


def deltas(said: Reply, request: dict[str, Any]) -> tuple[list[dict[str, Any]], str]:
    """One delta per token, as vLLM's hermes parser cuts them, and the finish reason."""
    events: list[dict[str, Any]] = [{"content": piece} for piece in tokens(said.content)]
    if said.tool:
        name = {"index": 0, "id": call_id(), "type": "function", "function": {"name": said.tool, "arguments": ""}}
        events.append({"tool_calls": [name]})
        events += [{"tool_calls": [{"index": 0, "function": {"arguments": piece}}]} for piece in tokens(said.arguments)]
    limit = request.get("max_completion_tokens") or request.get("max_tokens") or len(events)
    if request.get("ignore_eos"):
        events += [{"content": " so"}] * (limit - len(events))
        return events[:limit], "length"
    if len(events) > limit:
        return events[:limit], "length"
    return events, "tool_calls" if said.tool else "stop"


def log_start(engine: Engine) -> None:
    """The lines of vLLM's log that a reader of logs looks for. Planted: an ignored flag is missing here too."""
    said = {flag.replace("-", "_"): value for flag, value in engine.flags.items()}
    print(f"(APIServer pid={os.getpid()}) INFO [api_utils.py:286] non-default args: {said}", flush=True)
    gib = 0.0528 if engine.setting("dtype") == "float32" else 0.0264  # the demo model's
    print(f"(Worker) INFO [gpu_model_runner.py:1] Model loading took {gib} GiB memory and 0.01 seconds", flush=True)
    print(f"(EngineCore) INFO [kv_cache_utils.py:1] KV cache size: {KV_TOKENS:,} tokens", flush=True)


def main() -> None:
    flags, faults = parse_flags(sys.argv[1:]), parse_faults(os.environ.get("STAND_IN_FAULT", ""))
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    if "exit_at_start" in faults:
        print("INFO starting\nERROR planted: no such device\nValueError: the stand-in was told to exit", flush=True)
        sys.exit(1)
    engine = Engine(flags, faults, dict(os.environ))
    log_start(engine)
    if "never_ready" in faults:
        threading.Event().wait()
    time.sleep(float(faults.get("slow_start", 0)))
    Handler.engine = engine
    ThreadingHTTPServer.request_queue_size = 128
    server = ThreadingHTTPServer((str(flags.get("host", "127.0.0.1")), int(flags.get("port", 8000))), Handler)
    server.daemon_threads = True
    print(f"INFO Starting vLLM server on http://{server.server_address[0]}:{server.server_port}", flush=True)
    server.serve_forever(poll_interval=0.1)


if __name__ == "__main__":
    main()
