"""The traffic of one tier under Locust: python -m locust -f locustfile.py --run-dir D --tier T --parent PID ...

Locust gives the process, its users, its workers and its own summary; tasks/traffic/lead.py says what happens when.
Everything slow is imported and played through once before the first level opens. Each process dies with the stage that
started it (the kernel sees to that). SIGTERM and Ctrl-C end the level as if its drain were over: rows in flight are
written as aborted.

One process is all there is, or one is the master and `--process N` numbers the workers.

Exit codes: 0 all levels ran; 1 a fault, in words in client.json; 143 stopped by a signal.
"""

import ctypes
import gc
import os
import signal
from pathlib import Path
from typing import Any

import gevent
from gevent.event import Event
from locust import User, events, task
from locust.runners import MasterRunner, WorkerRunner

from tasks import artifact, run
from tasks.traffic import work
from tasks.traffic.conduct import CUT_WITHIN_S, Tier, take_part, wait
from tasks.traffic.hand import Hand
from tasks.traffic.lead import Alone, Course, Workers, in_ns, lead

PR_SET_PDEATHSIG = 1
READY = Event()
TIER: Tier | None = None  # of this process; none in a master
COURSE: Course | None = None  # none in a worker
HAND: Hand | None = None  # in a worker


class Member(User):
    """A user of the closed loop, or the dispatcher of an open one."""

    @task
    def one_level(self) -> None:
        READY.wait()
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
    """Plain words: Locust sends them to its workers."""
    parser.add_argument("--run-dir", required=True)
    parser.add_argument("--tier", choices=run.TIERS, required=True)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--process", type=int, default=0)


@events.init.add_listener  # type: ignore[untyped-decorator]
def _prepare(environment: Any, runner: Any, **_: Any) -> None:
    global TIER, COURSE, HAND
    options = environment.parsed_options
    _die_with(options.parent)
    run_dir = Path(options.run_dir)
    plan = getattr(run.read(run_dir).plan.tiers, options.tier)
    if isinstance(runner, MasterRunner):
        COURSE = Course(run_dir / options.tier, plan, Workers(plan, runner))
    else:
        deployment = artifact.read(run_dir / "deployment.json")
        where = {"url": deployment["gateway_url"], "model": deployment["model"]}
        TIER = Tier(run_dir, options.tier, process=options.process, **where)
        if isinstance(runner, WorkerRunner):
            HAND = Hand(TIER, environment)
        else:
            COURSE = Course(TIER.folder, plan, Alone(TIER, runner))
    gc.collect()
    gc.freeze()
    READY.set()
    environment.events.quitting.add_listener(_end_level_first)  # asked first: the last one in, before the runner's
    if COURSE:
        _begin_when_spawned(environment)


def _begin_when_spawned(environment: Any) -> None:
    begun: list[int] = []

    def begin(user_count: int) -> None:
        if not begun:  # later levels complete a spawning too
            begun.append(user_count)
            gevent.spawn(_lead, environment)

    environment.events.spawning_complete.add_listener(begin)


def _die_with(parent: int) -> None:
    """Have the kernel kill this process when the thread that started it is gone."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it was gone before we asked
        os._exit(1)


def _lead(environment: Any) -> None:
    assert COURSE is not None
    environment.process_exit_code = lead(COURSE)
    environment.runner.quit()


def _end_level_first(**_: Any) -> None:
    """Locust is told to quit (SIGTERM, Ctrl-C) and would kill its users, here or in workers, in the middle of a row."""
    course, within_s = COURSE, 2 * CUT_WITHIN_S
    if HAND is not None:
        HAND.stop(within_s=within_s)
    elif course is not None:
        course.stop()
        wait(lambda: course.is_over, until_ns=in_ns(within_s))
