"""Ours for bench/client: users of Locust that call the paced server with the project's own client.

Closed loop: each user asks again as soon as its answer is over, until --count calls have begun. Open loop (--rate): one
dispatcher starts a greenlet per call at its time. Each has an endpoint of its own, as in tasks/traffic. What the client
told is written when all calls are over: id, TTFT and the gaps between chunks in ms, stalls, failure.
"""

import gc
import itertools
import json
import time
from pathlib import Path
from typing import Any

import gevent
from locust import User, events, task

from tasks.traffic import stream

BODY = {"messages": [{"role": "user", "content": "Say so. " * 20}], "max_tokens": 50}
TOLD: list[stream.Answer] = []
NUMBERS = itertools.count()
CALL_S = 60.0


@events.init_command_line_parser.add_listener  # type: ignore[untyped-decorator]
def _arguments(parser: Any) -> None:
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--rate", type=float, default=0.0)
    parser.add_argument("--out", type=Path, required=True)


@events.init.add_listener  # type: ignore[untyped-decorator]
def _prepare(**_: Any) -> None:
    gc.collect()
    gc.freeze()  # what is loaded already is looked at no more, as in tasks/traffic/locustfile.py


class Member(User):
    """A user of the closed loop, or the dispatcher of the open one."""

    @task
    def all_calls(self) -> None:
        options = self.environment.parsed_options
        if options.rate:
            gevent.joinall(list(self._dispatched(options)))
        else:
            endpoint = self._endpoint()
            while (number := next(NUMBERS)) < options.count:
                self._call(endpoint, number)
        if len(TOLD) >= options.count:
            _write(options.out)
            gevent.spawn(self.environment.runner.quit)  # not from a user that it would stop
        gevent.sleep(3600)

    def _dispatched(self, options: Any) -> Any:
        began_s = time.monotonic()
        for number in range(options.count):
            gevent.sleep(max(0.0, began_s + number / options.rate - time.monotonic()))
            yield gevent.spawn(self._call, self._endpoint(), number)

    def _endpoint(self) -> stream.Endpoint:
        return stream.Endpoint(str(self.environment.host), "paced", "m")

    def _call(self, endpoint: stream.Endpoint, number: int) -> None:
        answer = stream.call(endpoint, BODY, request_id=f"ours-{number}", timeout_s=CALL_S)
        TOLD.append(answer)
        self.environment.events.request.fire(
            request_type="client",
            name="call",
            response_time=(answer.row["t_end_ns"] - answer.row["t_send_ns"]) / 1e6,
            response_length=0,
            exception=None,
            context={},
        )


def _write(path: Path) -> None:
    rows = []
    for answer in TOLD:
        row, stamps = answer.row, answer.chunks_ns
        gaps = [(b - a) / 1e6 for a, b in itertools.pairwise(stamps)]
        ttft_ms = (stamps[0] - row["t_send_ns"]) / 1e6 if stamps else None
        rows.append({"id": row["request_id"], "ttft_ms": ttft_ms, "gaps_ms": gaps, "failure": row["failure"]})
    path.write_text(json.dumps(rows), encoding="utf-8")
