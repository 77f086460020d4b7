"""How many streams the sim paces from one core, and how late it is: `python -m bench.sim [--quick]`.

Each of N streams gets a token every 20 ms. A reader in this process counts bytes and parses nothing. Printed per N:

    tokens/s     of one stream, median and least over the streams, by the sim's own record; 50 is asked
    lost         chunks that the reader did not get
    cpu          of the server, in percent of one core, over the steady part
    starved      time in which the server was ready to run and the machine did not let it, in percent of the steady part
    late ms      p50, p99 and most of: when an event was sent minus when its step was over in the model
    spread ms    median time from the first to the last write of one step: the last stream of a step is so much later

The last line is JSON. Late, spread and the rate depend on what else the machine does: a server that is
starved for more than a few percent was not measured, the machine was.
"""

import json
import os
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import defaultdict
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[1]
STEP_MS = 20.0
QUICK = ((300, 6.0, 0),)  # streams, seconds, slots of a step over which the streams are spread (0: all at its end)
FULL = ((64, 10.0, 0), (300, 10.0, 0), (450, 10.0, 0), (256, 10.0, 20))
SETTLE_S = 1.0


def main(words: list[str]) -> None:
    rows = [measure(*case) for case in (QUICK if "--quick" in words else FULL)]
    for row in rows:
        print(
            "{streams:4} streams in {slots} slots: {rate_p50:.2f} tokens/s each (least {rate_min:.2f}), lost {lost}, "
            "cpu {cpu_percent:.0f} %, starved {starved_percent:.0f} %, late ms p50 {late_ms_p50:.2f} "
            "p99 {late_ms_p99:.2f} max {late_ms_max:.1f}, spread ms {spread_ms_p50:.2f}".format(**row)
        )
    print(json.dumps({"rows": rows, "load_average": os.getloadavg()[0]}))


def measure(streams: int, seconds: float, slots: int) -> dict[str, Any]:
    """One server, N streams of so many seconds."""
    tokens = round(seconds * 1e3 / STEP_MS)
    with tempfile.TemporaryDirectory() as folder:
        record, port = Path(folder) / "sim.jsonl", _free_port()
        server = _start(port, record, streams, slots)
        try:
            chunks, cpu_percent, starved_percent = _read_all(port, server.pid, streams, tokens, seconds)
        finally:
            server.terminate()
            server.wait(timeout=20)
        lines = [json.loads(line) for line in record.read_text().splitlines()]
    requests = [line["sent"] for line in lines if line["what"] == "request"]
    sent = [[(at, due) for at, what, _, due in stamps if what == "tokens"] for stamps in requests]
    assert len(sent) == streams and all(len(stamps) == tokens for stamps in sent), "not all tokens were sent"
    told = {"streams": streams, "slots": slots, "lost": streams * tokens - chunks}
    return told | {"cpu_percent": cpu_percent, "starved_percent": starved_percent} | _timing(sent)


def _timing(sent: list[list[tuple[int, int]]]) -> dict[str, float]:
    """Of (sent, due) stamps per stream."""
    rates = sorted((len(s) - 1) / ((s[-1][0] - s[0][0]) / 1e9) for s in sent)
    late = sorted((at - due) / 1e6 for stamps in sent for at, due in stamps)
    steps: dict[int, list[int]] = defaultdict(list)
    for at, due in (pair for stamps in sent for pair in stamps):
        steps[due].append(at)
    return {
        "rate_p50": statistics.median(rates),
        "rate_min": rates[0],
        "late_ms_p50": late[len(late) // 2],
        "late_ms_p99": late[int(len(late) * 0.99)],
        "late_ms_max": late[-1],
        "spread_ms_p50": statistics.median((max(ats) - min(ats)) / 1e6 for ats in steps.values()),
    }


def _start(port: int, record: Path, streams: int, slots: int) -> subprocess.Popen[bytes]:
    model = ROOT / "deploy" / "models" / "sim" / "qwen2.5-3b"
    command = [sys.executable, "-m", "tasks.engines.sim", "--model", str(model), "--served-model-name", "m"]
    command += ["--port", str(port), "--max-num-seqs", str(streams)]
    own = {"SIM_STEP_MS": str(STEP_MS), "SIM_RECORD": str(record), "SIM_SPREAD": str(slots), "PYTHONPATH": str(ROOT)}
    server = subprocess.Popen(command, env=os.environ | own, cwd=ROOT, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and server.poll() is None:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2).close()
            return server
        except OSError:
            time.sleep(0.05)
    server.kill()
    raise RuntimeError("the sim did not answer /health within 30 s")


def _read_all(port: int, pid: int, streams: int, tokens: int, seconds: float) -> tuple[int, float, float]:
    """Chunks that arrived; the server's CPU, and its waiting for CPU, in percent of the part when all streams run."""
    body = {"model": "m", "stream": True, "max_tokens": tokens, "ignore_eos": True}
    selector, chunks, left = selectors.DefaultSelector(), 0, streams
    for number in range(streams):
        text = json.dumps(body | {"messages": [{"role": "user", "content": f"Say {number}."}]}).encode()
        sock = socket.create_connection(("127.0.0.1", port))
        sock.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: s\r\nContent-Length: %d\r\n\r\n%b" % (len(text), text)
        )
        selector.register(sock, selectors.EVENT_READ, bytearray())
    now = time.monotonic()
    marks, deadline = [], now + 4 * seconds + 30
    begin, until = now + SETTLE_S, now + seconds - SETTLE_S
    while left and time.monotonic() < deadline:
        for key, _ in selector.select(timeout=0.05):
            data = key.fileobj.recv(1 << 18)  # type: ignore[union-attr]
            tail = key.data
            tail += data
            chunks += tail.count(b'{"content":"')
            is_over = not data or b"data: [DONE]" in tail
            del tail[: max(0, len(tail) - 11)]  # what may be the beginning of a mark
            if is_over:
                left -= 1
                selector.unregister(key.fileobj)
                key.fileobj.close()  # type: ignore[union-attr]
        if begin <= time.monotonic() <= until:
            marks = [*marks[:1], _mark(pid)]
    (began, *before), (ended, *after) = marks[0], marks[-1]
    cpu, starved = (100 * (b - a) / (ended - began) for a, b in zip(before, after, strict=True))
    return chunks, cpu, starved


def _mark(pid: int) -> tuple[float, float, float]:
    """Time, CPU seconds, and seconds of waiting for a CPU (0 where the kernel does not tell) of a process."""
    schedstat, times = Path(f"/proc/{pid}/schedstat"), psutil.Process(pid).cpu_times()
    waited = int(schedstat.read_text().split()[1]) / 1e9 if schedstat.exists() else 0.0
    return time.monotonic(), times.user + times.system, waited


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


if __name__ == "__main__":
    main(sys.argv[1:])
