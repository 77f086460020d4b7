"""The traffic of one tier under Locust: python -m locust -f locustfile.py --headless --run-dir D --tier T --parent PID

Locust gives the process, its users and its own summary; tasks/traffic/conduct.py says what happens when. Everything
slow is imported and played through once before the first level opens. The process dies with the stage that started it
(the kernel sees to that). SIGTERM and Ctrl-C end the level as if its drain were over: rows in flight are written as
aborted.

Exit codes: 0 all levels ran; 1 a fault, in words in client.json; 143 stopped by a signal.
"""

import ctypes
import gc
import os
import signal
import time
from pathlib import Path
from typing import Any

import gevent
from locust import User, events, task

from tasks import run
from tasks.traffic import work
from tasks.traffic.conduct import CUT_WITHIN_S, Tier, conduct, take_part

PR_SET_PDEATHSIG = 1
TIER: Tier | None = None  # made when Locust is ready, one per process


class Member(User):
    """A user of the closed loop."""

    @task
    def one_level(self) -> None:
        assert TIER is not None
        take_part(TIER, self.tell)

    def tell(self, kind: str, row: work.Row) -> None:
        """Locust's own count of a row, for its summary."""
        if row["is_aborted"]:
            return
        began_ns = row["t_start_ns"] if kind == "task" else row["t_send_ns"]
        failure = row["failure"] and RuntimeError(f"{row['failure']}: {row['failure_detail']}")
        self.environment.events.request.fire(
            request_type=row["tier"],
            name=kind,
            response_time=(row["t_end_ns"] - began_ns) / 1e6,
            response_length=0,
            exception=failure,
            context={},
        )


@events.init_command_line_parser.add_listener  # type: ignore[untyped-decorator]
def _arguments(parser: Any) -> None:
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--tier", choices=run.TIERS, required=True)
    parser.add_argument("--parent", type=int, required=True)


@events.init.add_listener  # type: ignore[untyped-decorator]
def _prepare(environment: Any, **_: Any) -> None:
    global TIER
    options = environment.parsed_options
    _die_with(options.parent)
    TIER = Tier(options.run_dir, options.tier)
    gc.collect()
    gc.freeze()
    begun: list[int] = []

    def begin(user_count: int) -> None:
        if not begun:  # later levels complete a spawning too
            begun.append(user_count)
            gevent.spawn(_conduct, environment)

    environment.events.spawning_complete.add_listener(begin)


def _die_with(parent: int) -> None:
    """Have the kernel kill this process when the thread that started it is gone."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it was gone before we asked
        os._exit(1)


def _conduct(environment: Any) -> None:
    assert TIER is not None
    environment.process_exit_code = conduct(TIER, environment.runner)
    environment.runner.quit()


@events.quitting.add_listener  # type: ignore[untyped-decorator]
def _end_level_first(**_: Any) -> None:
    """Locust is told to quit (SIGTERM, Ctrl-C) and would kill its users in the middle of their rows."""
    if TIER is None:
        return
    TIER.stop()
    until = time.monotonic() + 2 * CUT_WITHIN_S
    while not TIER.is_over and time.monotonic() < until:
        gevent.sleep(0.02)
