"""What one user of a tier does: a single call, or a whole task of the agent. Blocking, so threads and greenlets may.

Which cases a user plays depends on the plan's seed, tier, level and seat alone, so every arm gets the same work in the
same order. Cases that some model is known to fail are left out, for every arm alike.
"""

import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tasks.agent import golden
from tasks.run import Run
from tasks.traffic import level, stream

CALL_TIMEOUT_S = 60.0  # ours: far above any answer that a person would wait for, far below a plan's budget
Row = dict[str, Any]


@dataclass
class Seat:
    """One user's place in one level, and where its rows go."""

    run: Run
    tier: str
    running: level.Running
    number: int
    endpoint: stream.Endpoint
    cases: Iterator[golden.Case]
    on_request: Callable[[Row], None]
    on_task: Callable[[Row], None]
    turns: int = 0
    place: Row = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.place = {
            "tier": self.tier,
            "level": self.running.number,
            "users": self.running.offered.users,
            "user": self.number,
            "technique": self.run.technique,
        }

    def name(self) -> str:
        """Identity of the current turn; a request adds its step."""
        at = f"{self.running.number}.{self.number}.{self.turns}"
        return f"{self.run.run_id}/{self.run.attempt}/{self.tier}/{at}"


def endless(cases: Sequence[golden.Case], rng: random.Random) -> Iterator[golden.Case]:
    """All cases in a random order, then all again in another. Raises ValueError if there is none."""
    if not cases:
        raise ValueError("the golden set has no case to send: all are known limits")
    while True:
        yield from rng.sample(cases, len(cases))


def sendable(version: str) -> list[golden.Case]:
    """Cases of a golden set that no model is known to fail."""
    return [case for case in golden.load(version) if case.known_limit is None]


def body(run: Run, tier: str, messages: Sequence[Row], tools: Sequence[Row]) -> Row:
    """What a call of a tier asks for, but for model and streaming, which the endpoint adds."""
    return {
        "messages": list(messages),
        "tools": list(tools),
        "tool_choice": "auto",
        "temperature": 0,
        "max_tokens": getattr(run.plan.tiers, tier).max_tokens,
        "seed": run.seed,
    }


def gateway(seat: Seat, *, t_intended_ns: int) -> bool:
    """One isolated call: the first step of a case. Returns whether the server answered."""
    case = next(seat.cases)
    seat.turns += 1
    tools = golden.material(case.golden_set).tools
    messages = golden.first_messages(case)
    answer = _call(seat, case, messages, tools, step=1, task_id=None, t_intended_ns=t_intended_ns)
    return answer.row["failure"] is None


def agent(seat: Seat, *, t_intended_ns: int) -> bool:
    """One whole task, judged. Returns whether the server answered, right or wrong."""
    from tasks.agent import graph  # seconds of CPU that the gateway tier need not spend

    case = next(seat.cases)
    seat.turns += 1
    task_id = seat.name()
    intended = [t_intended_ns]  # of the first step; the later ones are wanted when they are asked for

    def ask(messages: list[Row], tools: Sequence[Row], step: int) -> stream.Answer:
        wanted_ns = intended.pop() if intended else time.monotonic_ns()
        return _call(seat, case, messages, tools, step=step, task_id=task_id, t_intended_ns=wanted_ns)

    started_at, t_start_ns = time.time(), time.monotonic_ns()
    played = graph.play(case, ask=ask)
    t_end_ns = time.monotonic_ns()
    is_success, failure, detail = golden.judge(case, played)
    is_good_end = not played.is_aborted
    seat.on_task(
        {
            "task_id": task_id,
            **seat.place,
            "case_id": case.id,
            "started_at": started_at,
            "t_start_ns": t_start_ns,
            "t_end_ns": t_end_ns,
            "steps": played.steps,
            "tool_calls": played.tool_calls,
            "is_success": is_success if is_good_end else None,
            "failure": failure if is_good_end else None,
            "failure_detail": detail if is_good_end else None,
            "is_warmup": seat.running.is_warmup(t_start_ns),
            "is_aborted": played.is_aborted,
        }
    )
    return played.failure != "request"


def rehearse(cases: Sequence[golden.Case]) -> None:
    """Play cases of the agent without any server: what the first play loads and compiles must not be measured."""
    from tasks.agent import graph

    row = {"failure": None, "failure_detail": None, "is_aborted": False}
    for case in cases:
        answers = [stream.Answer(row, case.reference_answer, "", [])]
        for call in reversed(case.expected_calls):
            said = {"id": "rehearsal", "name": call.name, "arguments": json.dumps(call.arguments)}
            answers.append(stream.Answer(row, "", "", [said]))
        golden.judge(case, graph.play(case, ask=lambda *_, left=answers: left.pop()))


def _call(
    seat: Seat,
    case: golden.Case,
    messages: Sequence[Row],
    tools: Sequence[Row],
    *,
    step: int,
    task_id: str | None,
    t_intended_ns: int,
) -> stream.Answer:
    answer = stream.call(
        seat.endpoint,
        body(seat.run, seat.tier, messages, tools),
        request_id=f"{seat.name()}/{step}",
        task_id=task_id,
        step=step,
        timeout_s=CALL_TIMEOUT_S,
        t_intended_ns=t_intended_ns,
        is_cut=lambda: seat.running.is_cut,
    )
    row = answer.row
    delay_ms = (row["t_send_ns"] - row["t_intended_ns"]) / 1e6
    seat.running.finish(seat.number, now_ns=row["t_end_ns"], delay_ms=delay_ms)
    is_warmup = seat.running.is_warmup(row["t_send_ns"])
    seat.on_request(row | seat.place | {"case_id": case.id, "is_warmup": is_warmup})
    return answer
