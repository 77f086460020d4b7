"""One client process of a null calibration; tasks/traffic/calibrate.py starts it under Locust.

A Locust process like that of the load, with the same patched sockets and the same call (tasks/traffic/stream.py). It
says on descriptor --ready that it is, waits on descriptor --go for the moment of the machine's clock at which all
processes begin, carries out its rounds, and leaves what it measured in --out. If whoever started it is gone, --go ends,
and so does this.
"""

import gc
import os
import struct
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import gevent
from gevent.socket import wait_read
from locust import User, events, task

from tasks import artifact, run
from tasks.agent import golden
from tasks.traffic import calibration, stream, work

LAG_EVERY_S = 0.05
LATE_S = 0.1  # a call that has not ended so long after its round is cut, and counted
PAUSE_S = 0.35  # between rounds, for calls that end late: a cut takes up to wire.TICK_S
CALL_S = 10.0
Row = dict[str, Any]


class Idle(User):
    """Locust wants one; the streams are greenlets of their own."""

    @task
    def rest(self) -> None:
        gevent.sleep(3600)


@events.init_command_line_parser.add_listener  # type: ignore[untyped-decorator]
def _arguments(parser: Any) -> None:
    parser.add_argument("--calibration", type=Path, required=True, help="{run_dir, tier, paths, processes}")
    parser.add_argument("--share", type=int, required=True, help="which process this is, from 0")
    parser.add_argument("--ready", type=int, required=True)
    parser.add_argument("--go", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)


@events.init.add_listener  # type: ignore[untyped-decorator]
def _prepare(environment: Any, **_: Any) -> None:
    working = gevent.spawn(_carry_out, environment)
    working.link_exception(lambda _: os._exit(1))  # gevent has told why; Locust would go on for ever


def _carry_out(environment: Any) -> None:
    options = environment.parsed_options
    client = Client(artifact.read(options.calibration), options.share, environment)
    client.rehearse()
    gc.collect()
    gc.freeze()
    os.write(options.ready, b".")
    said = os.read(options.go, 8)  # blocks the whole process, which has nothing else to do
    if len(said) < 8:
        os._exit(1)
    gevent.spawn(_end_with, options.go)
    client.run(struct.unpack("q", said)[0])
    artifact.write(options.out, {path: found | {"pid": os.getpid()} for path, found in client.found.items()})
    environment.runner.quit()


def _end_with(descriptor: int) -> None:
    """End this process when the other end of the pipe is gone."""
    wait_read(descriptor)
    os._exit(1)


class Client:
    """This process' streams: number `share`, share + processes, ..."""

    def __init__(self, told: Row, share: int, environment: Any) -> None:
        this = run.read(Path(told["run_dir"]))
        self.offered = calibration.offered(getattr(this.plan.tiers, told["tier"]))
        self.paths: dict[str, Row] = told["paths"]
        self.streams = range(share, self.offered.streams, told["processes"])
        self.environment, self.name = environment, f"{this.run_id}/{this.attempt}/{told['tier']}/calibration"
        case = work.sendable(this.plan.gate.golden_set)[0]
        tools = golden.material(case.golden_set).tools
        self.body = work.body(this, told["tier"], golden.first_messages(case), tools)
        self.answers: dict[str, list[tuple[stream.Answer, int, bool]]] = {path: [] for path in self.paths}
        self.found: dict[str, Row] = {path: {"loop_lag_ms": [], "cpu_s": 0.0, "wall_s": 0.0} for path in self.paths}
        self.sent = 0

    def rehearse(self) -> None:
        """One call per path: what the first one loads must not be measured."""
        for path in self.paths:
            self._call(self._endpoint(path), 2, 0.001, t_intended_ns=time.monotonic_ns(), until_ns=2**62)

    def run(self, t_start_ns: int) -> None:
        """The paths in turn; every process has the same plan."""
        begin_ns = t_start_ns
        for _ in range(calibration.ROUNDS):
            for path in self.paths:
                _sleep_until(begin_ns)
                self._round(path, begin_ns)
                begin_ns += int((self.offered.round_s + PAUSE_S) * 1e9)
        for path, found in self.found.items():
            found["cpu_share"] = round(found.pop("cpu_s") / max(found.pop("wall_s"), 1e-9), 4)
            found["rows"] = [
                calibration.measured(answer.content, answer.row, answer.chunks_ns, asked=chunks, is_burst=is_burst)
                for answer, chunks, is_burst in self.answers[path]
            ]

    def _round(self, path: str, begin_ns: int) -> None:
        found = self.found[path]
        end_ns = begin_ns + int(self.offered.round_s * 1e9)
        with ExitStack() as stack:
            sampler = gevent.spawn(_sample_lag, found["loop_lag_ms"])
            stack.callback(sampler.kill)
            cpu_s, at_s = time.process_time(), time.monotonic()
            streams = [gevent.spawn(self._stream, path, number, begin_ns, end_ns) for number in self.streams]
            gevent.joinall(streams, timeout=self.offered.round_s + CALL_S)
            found["cpu_s"] += time.process_time() - cpu_s
            found["wall_s"] += time.monotonic() - at_s
            gevent.killall(streams)

    def _stream(self, path: str, number: int, begin_ns: int, end_ns: int) -> None:
        endpoint, answers = self._endpoint(path), self.answers[path]
        for call, (at_s, chunks, first_gap_s) in enumerate(self.offered.calls(number)):
            intended_ns = begin_ns + int(at_s * 1e9)
            _sleep_until(intended_ns)
            until_ns = end_ns + int(LATE_S * 1e9)
            answer = self._call(endpoint, chunks, first_gap_s, t_intended_ns=intended_ns, until_ns=until_ns)
            answers.append((answer, chunks, call == 0))
            self._tell(answer.row)

    def _call(
        self, endpoint: stream.Endpoint, chunks: int, first_gap_s: float, *, t_intended_ns: int, until_ns: int
    ) -> stream.Answer:
        self.sent += 1
        gaps_us = [int(gap_s * 1e6) for gap_s in (1 / calibration.CHUNKS_PER_S, first_gap_s)]
        return stream.call(
            endpoint,
            self.body | {"echo": [chunks, *gaps_us]},
            request_id=f"{self.name}/{os.getpid()}.{self.sent}",
            timeout_s=CALL_S,
            t_intended_ns=t_intended_ns,
            is_cut=lambda: time.monotonic_ns() > until_ns,
        )

    def _endpoint(self, path: str) -> stream.Endpoint:
        told = self.paths[path]
        return stream.Endpoint(told["url"], told["technique"], "echo", run=told.get("run"))

    def _tell(self, row: Row) -> None:
        """Locust's own count, as under load."""
        took_ms = (row["t_end_ns"] - row["t_send_ns"]) / 1e6
        self.environment.events.request.fire(
            request_type="calibration",
            name="call",
            response_time=took_ms,
            response_length=0,
            exception=None,
            context={},
        )


def _sample_lag(lags_ms: list[float]) -> None:
    while True:
        asked_ns = time.monotonic_ns() + int(LAG_EVERY_S * 1e9)
        gevent.sleep(LAG_EVERY_S)
        lags_ms.append(max(0.0, (time.monotonic_ns() - asked_ns) / 1e6))


def _sleep_until(at_ns: int) -> None:
    gevent.sleep(max(0.0, (at_ns - time.monotonic_ns()) / 1e9))
