"""Who reports a wrong number, and who notices? `python -m bench.honesty [--quick] [--markdown FILE] [--only
TOOL,...]`.

Each tool, and armwise, is shown the planted faults of the sim that it can meet (docs/sim.md), one at a time, each on
a fresh server, and none first. What it reports is read from its own export; what was true is the sim's own record of
the same run. bench/verdict.py has the criteria, bench/truth.py what is true, bench/tools.py each tool's command line,
and bench/own_run.py ours: a whole `armwise run` with drive, validate and judge.

The server: steps of 20 ms, at most 64 tokens per step, so a prompt of 150 needs several and a busy server makes
prompts wait: TTFT is large beside what a client on shared cores is late. Faults have their default strength.

Everything stays in --out FOLDER (var/honesty): per tool and fault the export, the output and the sim's record. The
table can be made again from it without running anything: --judge-only. The last line is JSON: verdicts per tool.
"""

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from bench import honesty_page, own_run, peers, tools, truth
from bench.verdict import Seen, Verdict, judge

ROOT = Path(__file__).resolve().parents[1]
NONE = "none"
FAULTS = (
    "several_tokens",
    "http_503",
    "truncated",
    "error_event",
    "warm_cache",
    "slow_first_wave",
    "refuses_load",
    "reasoning",
    "stalls",
    "clean_end",
    "early_role",
)
QUICK = ("http_503", "clean_end")
WAVE = 8  # requests of the planted first wave
STEADY = ("ttft_ms_p50", "itl_ms_p50", "output_tokens_per_s")  # of what comes after the wave
RUN_S = 150.0  # a tool that has not ended by then is stopped: its run is stored as not ended
SERVER = ["--served-model-name", "m", "--enable-prompt-tokens-details", "--max-model-len", "8192"]
SERVER += ["--max-num-seqs", "16", "--max-num-batched-tokens", "64"]
STEP_MS = 20


@dataclass(frozen=True)
class Row:
    tool: str
    fault: str
    seen: Seen
    verdict: Verdict
    load_average: float  # of the minute before the run ended


def main() -> None:
    asked = _asked()
    out = Path(asked.out).resolve()
    out.mkdir(parents=True, exist_ok=True)
    names = asked.only.split(",") if asked.only else [*(tool.name for tool in tools.TOOLS), own_run.NAME]
    chosen = tuple(asked.faults.split(",")) if asked.faults else QUICK if asked.quick else FAULTS
    faults = (NONE, *(fault for fault in chosen if fault != NONE))
    if not asked.judge_only:
        tools.prepare(out)
        for fault in faults:
            for name in names:
                _run(name, fault, out)
    rows = [row for name in names for row in _judged(name, faults, out)]
    versions = {name: own_run.version() if name == own_run.NAME else peers.version(name) for name in names}
    print(honesty_page.table(rows, names, faults))
    if asked.markdown:
        Path(asked.markdown).write_text(honesty_page.page(rows, names, faults, versions))
    print(json.dumps({"verdicts": counted(rows), "versions": versions}))


def _asked() -> argparse.Namespace:
    asks = argparse.ArgumentParser(prog="python -m bench.honesty", description=(__doc__ or "").splitlines()[0])
    asks.add_argument("--quick", action="store_true", help=f"only {', '.join(QUICK)}")
    asks.add_argument("--only", default="", help="these tools, by comma")
    asks.add_argument("--faults", default="", help="these faults, by comma; one run without any comes first")
    asks.add_argument("--out", default=str(ROOT / "var" / "honesty"), help="folder of all raw outputs")
    asks.add_argument("--markdown", default="", help="write the page docs/honesty-peers.md to this file")
    asks.add_argument("--judge-only", action="store_true", help="judge what is in --out")
    return asks.parse_args()


def counted(rows: list[Row]) -> dict[str, dict[str, int]]:
    """Tool -> verdict -> how many faults."""
    found: dict[str, Counter[str]] = {}
    for row in rows:
        if row.fault != NONE:
            found.setdefault(row.tool, Counter())[row.verdict.word] += 1
    return {tool: dict(words) for tool, words in found.items()}


def _run(name: str, fault: str, out: Path) -> None:
    """One tool, one fault, one server. A run that is already in the folder is kept."""
    folder = out / f"{name}.{fault}"
    if (folder / "ended.json").exists():
        return
    folder.mkdir(exist_ok=True)
    began = time.monotonic()
    if name == own_run.NAME:
        code = own_run.run(folder, "" if fault == NONE else fault, SERVER, STEP_MS)
    else:
        code = _run_peer(next(tool for tool in tools.TOOLS if tool.name == name), fault, folder)
    told = {"exit_code": code, "took_s": round(time.monotonic() - began, 1), "at": datetime.now(UTC).isoformat()}
    (folder / "ended.json").write_text(json.dumps(told | {"load_average": os.getloadavg()[0]}))
    print(f"{name:15} {fault:16} exit {code}, {told['took_s']} s", file=sys.stderr, flush=True)


def _run_peer(tool: tools.Tool, fault: str, folder: Path) -> int | None:
    with _serving(folder, "" if fault == NONE else fault) as url:
        return ended(tools.whole_command(tool, url, folder), folder, tool.env)


def ended(command: list[str], folder: Path, env: dict[str, str], limit_s: float = RUN_S) -> int | None:
    """Exit code; None if it had to be stopped. Its output is in output.txt."""
    with (folder / "output.txt").open("wb") as out:
        process = subprocess.Popen(
            command, cwd=folder, env=os.environ | env, stdout=out, stderr=out, start_new_session=True
        )
        try:
            return process.wait(timeout=limit_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            _stop_group(process)


def _stop_group(process: "subprocess.Popen[bytes]") -> None:
    """With all that it started: some leave workers behind."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait(timeout=20)


@contextmanager
def _serving(folder: Path, faults: str) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    model = ROOT / "deploy" / "models" / "sim" / "qwen2.5-3b"
    command = [sys.executable, "-m", "tasks.engines.sim", "--model", str(model), "--port", str(port), *SERVER]
    own = {"SIM_STEP_MS": str(STEP_MS), "SIM_RECORD": str(folder / "sim.jsonl"), "SIM_FAULTS": faults}
    env = os.environ | own | {"PYTHONPATH": str(ROOT), "VLLM_SERVER_DEV_MODE": "1"}
    (folder / "sim.jsonl").unlink(missing_ok=True)
    url = f"http://127.0.0.1:{port}"
    with (folder / "sim.log").open("wb") as log:
        server = subprocess.Popen(command, env=env, cwd=ROOT, stdout=log, stderr=log)
        try:
            _wait(url, server)
            yield url
        finally:
            server.terminate()
            server.wait(timeout=20)


def _wait(url: str, server: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and server.poll() is None:
        try:
            urllib.request.urlopen(f"{url}/health", timeout=2).close()
            return
        except OSError:
            time.sleep(0.05)
    raise RuntimeError("the sim did not answer /health within 60 s")


def _judged(name: str, faults: tuple[str, ...], out: Path) -> Iterator[Row]:
    control = _seen(name, NONE, out)
    for fault in faults:
        seen = control if fault == NONE else _seen(name, fault, out)
        if fault == "warm_cache":  # what TTFT would be if prompts were computed
            seen = Seen(seen.report, seen.truth | {"ttft_ms_p50": control.truth["ttft_ms_p50"]})
        verdict = judge(None if fault == NONE else fault, seen, control)
        load = json.loads((out / f"{name}.{fault}" / "ended.json").read_text())["load_average"]
        yield Row(name, fault, seen, verdict, load)


def _seen(name: str, fault: str, out: Path) -> Seen:
    folder = out / f"{name}.{fault}"
    if name == own_run.NAME:
        return own_run.seen(folder)
    tool = next(tool for tool in tools.TOOLS if tool.name == name)
    report = _report(tool, folder)
    lines, refused = truth.read(folder / "sim.jsonl", skip=tool.warmup, first_id=report.first_id)
    true = truth.ranges(lines, refused)
    if fault == "slow_first_wave" and tool.warmup < WAVE:
        later = truth.ranges(truth.without(lines, WAVE), refused)
        true |= {name: later[name] for name in STEADY}
    return Seen(report, true, truth.answer_ms(lines))


def _report(tool: tools.Tool, folder: Path) -> tools.Report:
    """What the tool wrote. A run that failed or did not end says so; it may have left no report at all."""
    code = json.loads((folder / "ended.json").read_text())["exit_code"]
    end = [] if code == 0 else [f"did not end within {RUN_S:.0f} s" if code is None else f"exit code {code}"]
    try:
        report = tool.read(folder)
    except FileNotFoundError:
        report, end = tools.Report({}), [*end, "no report"]
    said = tools.warnings((folder / "output.txt").read_text(errors="replace"))
    return replace(report, lines=[*end, *report.lines, *said])


if __name__ == "__main__":
    main()
