"""A recorded trajectory, played: fixed prompts, fixed lengths, pauses between the steps (tasks/agent/trajectory.py).

A task is one session. It is a success if every step was answered with as many tokens as recorded, by the server's own
count. What the words are is nobody's business: a replay measures the server, the live agent measures the answers.

The recorded prompts are short (under a thousand tokens). Where the plan asks for it, a document stands before a
session's first message: words of the golden set's corpus, drawn by the session's name. So it is the same for every arm,
no two sessions share it, and the steps of one session do.
"""

import json
import random
import time
from functools import cache

from tasks.agent import golden
from tasks.agent.trajectory import Trajectory
from tasks.traffic import work

Outcome = tuple[bool, str | None, str | None]


def agent(seat: work.Seat, *, t_intended_ns: int) -> bool:
    """One whole session. Returns whether the server answered to the end."""
    trajectory: Trajectory = next(seat.cases)
    session = next(seat.sessions)
    seat.turns += 1
    task_id, begun = seat.name(), work.begin(seat, t_intended_ns)
    messages = _opening(trajectory.golden_set, session, seat.run.plan.tiers.agent.document_words)
    outcome: Outcome = True, None, None
    steps, tool_calls, is_aborted = 0, 0, False
    for step in trajectory.steps:
        seat.pause(_pause_s(seat, step.after) if steps else 0)
        steps += 1
        messages += step.adds
        tool_calls += sum(len(message.get("tool_calls") or ()) for message in step.adds)
        wanted_ns = t_intended_ns if steps == 1 else time.monotonic_ns()
        answer = work.call(
            seat,
            trajectory,
            messages,
            step=steps,
            task_id=task_id,
            output_tokens=step.output_tokens,
            t_intended_ns=wanted_ns,
        )
        is_aborted, outcome = bool(answer.row["is_aborted"]), _outcome(answer.row, step.output_tokens)
        if is_aborted or not outcome[0]:
            break
    work.end(
        seat,
        begun,
        task_id=task_id,
        case_id=trajectory.id,
        steps=steps,
        tool_calls=tool_calls,
        is_aborted=is_aborted,
        outcome=outcome,
    )
    return outcome[1] != "request"


def _opening(version: str, session: str, words: int) -> list[work.Row]:
    """What comes before the first step's messages."""
    opening = work.in_session([{"role": "system", "content": golden.material(version).system}], session)
    return [*opening, {"role": "system", "content": document(version, session, words)}] if words else opening


def document(version: str, session: str, words: int) -> str:
    """So many words, another text for each session."""
    known = _words(version)
    return " ".join(random.Random(session).choices(known, k=words))


@cache
def _words(version: str) -> tuple[str, ...]:
    lines = (golden.folder(version) / "corpus.jsonl").read_text(encoding="utf-8").splitlines()
    return tuple(word for line in lines for word in json.loads(line)["snippet"].split())


def _pause_s(seat: work.Seat, after: str) -> float:
    tier = seat.run.plan.tiers.agent
    return tier.tool_s if after == "tool" else tier.think_s


def _outcome(row: work.Row, wanted: int) -> Outcome:
    at = f"step {row['step']}"
    if row["failure"]:
        return False, "request", f"{at}: {row['failure']}: {row['failure_detail']}"
    if row["output_tokens"] != wanted:
        return False, "wrong_length", f"{at}: {row['output_tokens']} tokens, recorded are {wanted}"
    return True, None, None
