"""What one user of a tier does: a single call, or a whole task of the agent. Blocking, so threads and greenlets may.

Which cases a user plays depends on the plan's seed, tier, level and seat alone, so every arm gets the same work in the
same order. Cases that some model is known to fail are left out, for every arm alike.

Forty cases in thousands of calls would be whole prompts seen before, and a prefix cache would look better than any
user's traffic lets it be. So each call or task is a session of its own, and a line that no other has stands between the
instructions and the user's words: a second system message. Instructions and tools come before it and are shared by all,
as those of a real service are; what comes after is shared by the steps of one task alone. The lines come from the seed:
alike for every arm. The gate plays without them.

Why there: of the demo model's 40 cases under vLLM 0.32.0 all are right with it, as without, and 1,024 of about 1,060
prompt tokens are shared. At the end of the first system message 40 are right and 640 tokens shared, for the tools come
after it. Before or after the user's words, in their own message, 28 are right.
"""

import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tasks import catalog, engines
from tasks.agent import golden
from tasks.run import Run
from tasks.traffic import level, stream

CALL_TIMEOUT_S = 60.0  # ours: far above any answer that a person would wait for, far below a plan's budget
SLICE_S = 0.2  # how often a pause looks whether the level is cut
Row = dict[str, Any]


@dataclass
class Seat:
    """One user's place in one level, and where its rows go."""

    run: Run
    tier: str
    running: level.Running
    number: int
    endpoint: stream.Endpoint
    cases: Iterator[Any]  # golden.Case, or trajectory.Trajectory where the tier replays
    sessions: Iterator[str]
    on_request: Callable[[Row], None]
    on_task: Callable[[Row], None]
    process: int = 0
    turns: int = 0
    place: Row = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.place = {
            "tier": self.tier,
            "level": self.running.number,
            "users": self.running.offered.users,
            "rate_per_s": self.running.offered.rate_per_s,
            "user": self.number,
            "process": self.process,
            "technique": self.run.technique,
        }

    def name(self) -> str:
        """Identity of the current turn; a request adds its step."""
        at = f"{self.running.number}.{self.number}.{self.turns}"
        return f"{self.run.run_id}/{self.run.attempt}/{self.tier}/{at}"

    def pause(self, seconds: float) -> None:
        """Think, or wait for a tool; shorter when the level is cut."""
        until = time.monotonic() + seconds
        while not self.running.is_cut and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, SLICE_S))


def endless(cases: Sequence[Any], rng: random.Random) -> Iterator[Any]:
    """All cases in a random order, then all again in another. Raises ValueError if there is none."""
    if not cases:
        raise ValueError("the golden set has no case to send: all are known limits")
    while True:
        yield from rng.sample(cases, len(cases))


def sessions(rng: random.Random) -> Iterator[str]:
    """Names of sessions, without end and, at 48 bits, without repetition."""
    while True:
        yield f"{rng.getrandbits(48):012x}"


def in_session(messages: Sequence[Row], session: str) -> list[Row]:
    """The messages of a session: its line comes after the instructions, and before the user's first words."""
    head, *rest = messages
    return [head, {"role": "system", "content": f"Session {session}."}, *rest]


def sendable(version: str) -> list[golden.Case]:
    """Cases of a golden set that no model is known to fail."""
    return [case for case in golden.load(version) if case.known_limit is None]


def cache_salt(run: Run) -> str | None:
    """What keeps a run's prompts out of every other run's cache. None where the engine takes no such field.

    vLLM 0.32.0 refuses one that holds @, / or a backslash, or is longer than 128 characters.
    """
    takes = catalog.module_of(engines, run.arm.engine).TAKES
    return f"{run.run_id}.{run.attempt}" if "cache_salt" in takes else None


def body(
    run: Run, tier: str, messages: Sequence[Row], tools: Sequence[Row], *, output_tokens: int | None = None
) -> Row:
    """What a call of a tier asks for, but for model and streaming, which the endpoint adds.

    `output_tokens` asks for an answer of just that length. The tools stay in the prompt, but no call is parsed out of
    the answer: under vLLM 0.32.0 the parser held back 16 of 40 forced tokens, and the last stamp came 60 ms early.
    """
    asked = {
        "messages": list(messages),
        "tools": list(tools),
        "tool_choice": "auto",
        "temperature": 0,
        "max_tokens": getattr(run.plan.tiers, tier).max_tokens,
        "seed": run.seed,
    }
    if salt := cache_salt(run):
        asked["cache_salt"] = salt
    if output_tokens is not None:
        asked |= {"max_tokens": output_tokens, "min_tokens": output_tokens, "ignore_eos": True, "tool_choice": "none"}
    return asked


def gateway(seat: Seat, *, t_intended_ns: int) -> bool:
    """One isolated call: the first step of a case. Returns whether the server answered."""
    case = next(seat.cases)
    seat.turns += 1
    messages = in_session(golden.first_messages(case), next(seat.sessions))
    fixed = seat.run.plan.tiers.gateway.output_tokens
    answer = call(seat, case, messages, output_tokens=fixed, t_intended_ns=t_intended_ns)
    return answer.row["failure"] is None


def agent(seat: Seat, *, t_intended_ns: int) -> bool:
    """One whole task, judged. Returns whether the server answered, right or wrong."""
    from tasks.agent import graph  # seconds of CPU that the gateway tier need not spend

    case, session = next(seat.cases), next(seat.sessions)
    seat.turns += 1
    task_id = seat.name()
    tool_s = seat.run.plan.tiers.agent.tool_s

    def ask(messages: list[Row], _tools: Sequence[Row], step: int) -> stream.Answer:
        seat.pause(tool_s if step > 1 else 0)
        wanted_ns = t_intended_ns if step == 1 else time.monotonic_ns()  # later steps: when they are asked for
        told = in_session(messages, session)
        return call(seat, case, told, step=step, task_id=task_id, t_intended_ns=wanted_ns)

    begun = begin(seat, t_intended_ns)
    played = graph.play(case, ask=ask)
    is_success, failure, detail = golden.judge(case, played)
    end(
        seat,
        begun,
        task_id=task_id,
        case_id=case.id,
        steps=played.steps,
        tool_calls=played.tool_calls,
        is_aborted=played.is_aborted,
        outcome=(is_success, failure, detail),
    )
    return played.failure != "request"


def begin(seat: Seat, t_intended_ns: int) -> Row:
    """When a task began: in an open loop at its arrival, whatever kept us."""
    now_ns = time.monotonic_ns()
    started_ns = t_intended_ns if seat.running.offered.users is None else now_ns
    return {"started_at": time.time() - (now_ns - started_ns) / 1e9, "t_start_ns": started_ns}


def end(
    seat: Seat,
    begun: Row,
    *,
    task_id: str,
    case_id: str,
    steps: int,
    tool_calls: int,
    is_aborted: bool,
    outcome: tuple[bool, str | None, str | None],
) -> None:
    """Write a task's row. `outcome`: (is it a success, its failure, in words); of no worth if it was cut off."""
    is_success, failure, detail = (None, None, None) if is_aborted else outcome
    seat.on_task(
        {
            "task_id": task_id,
            **seat.place,
            "case_id": case_id,
            **begun,
            "t_end_ns": time.monotonic_ns(),
            "steps": steps,
            "tool_calls": tool_calls,
            "is_success": is_success,
            "failure": failure,
            "failure_detail": detail,
            "is_warmup": seat.running.is_warmup(begun["t_start_ns"]),
            "is_aborted": is_aborted,
        }
    )


def rehearse(cases: Sequence[golden.Case]) -> None:
    """Play cases of the agent without any server: what the first play loads and compiles must not be measured."""
    from tasks.agent import graph

    row = {"failure": None, "failure_detail": None, "is_aborted": False}
    for case in cases:
        answers = [stream.Answer(row, case.reference_answer, "", [])]
        for expected in reversed(case.expected_calls):
            said = {"id": "rehearsal", "name": expected.name, "arguments": json.dumps(expected.arguments)}
            answers.append(stream.Answer(row, "", "", [said]))
        golden.judge(case, graph.play(case, ask=lambda *_, left=answers: left.pop()))


def call(
    seat: Seat,
    case: Any,
    messages: Sequence[Row],
    *,
    step: int = 1,
    task_id: str | None = None,
    output_tokens: int | None = None,
    t_intended_ns: int,
) -> stream.Answer:
    """One model call of a case or trajectory, and its row."""
    tools = golden.material(case.golden_set).tools
    answer = stream.call(
        seat.endpoint,
        body(seat.run, seat.tier, messages, tools, output_tokens=output_tokens),
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
    begun_ns = row["t_send_ns"] if seat.running.offered.rate_per_s is None else row["t_intended_ns"]
    about = {"case_id": case.id, "requested_output_tokens": output_tokens}
    seat.on_request(row | seat.place | about | {"is_warmup": seat.running.is_warmup(begun_ns)})
    return answer
