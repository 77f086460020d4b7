"""gate: are the answers of this deployment still right? Every golden case is played through the gateway, before load.

PASS needs all three:

1. every case was evaluated. A case whose model call failed (no connection, 5xx, timeout, the gate's time is over) was
   not: the gate is INVALID, for it did not look. An empty answer is an answer, and wrong;
2. the pass rate is at least the plan's minimum. Cases that are a known limit of this model are played and reported, and
   are in neither the numerator nor the denominator (tasks/agent/golden.py);
3. not more cases turned from pass to fail, against the control's last stored run, than chance explains
   (tasks/stats/flips.py). The control's results are those of its runs that passed their gate and broke no rule, on the
   same golden set and with the same content of the arm file. A control is compared with its own runs before. With two
   stored runs or more its flip rate sets the bound; with one, only a change that a sign test sees counts; with none, or
   without a database, the gate says so and uses the pass rate alone.

FAIL and INVALID are findings, not failures of this stage: gate.json is written and the caller skips the load. A plan
that skips the gate gets the verdict NONE with its reason, never PASS.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tasks import arm, artifact, settings
from tasks.agent import golden
from tasks.document import InvalidDocument
from tasks.run import Run, read
from tasks.stats import flips

FORMAT = 1
SAY_EVERY_S = 5.0
CALL_TIMEOUT_S = 120.0  # ours: a model call of a golden case is short; longer is broken
MOST_CONTROL_RUNS = 20
ANSWER_CHARS = 2000

Row = dict[str, Any]
Play = Callable[[golden.Case], Row]  # plays one case, returns its row


def gate(run_dir: Path) -> Path:
    """Write golden.jsonl and gate.json. Raises BrokenArtifact, UnknownName, InvalidDocument; not on a bad verdict."""
    path = run_dir / "gate.json"
    if path.exists():
        return path
    run = read(run_dir)
    if run.plan.gate.none_because:
        return artifact.write_once(path, document(run, [], [], ""))
    cases = golden.load(run.plan.gate.golden_set)
    rows = played(run, cases)
    history, said = control_history(run)
    artifact.write_rows(run_dir / "golden.jsonl", rows)
    content = document(run, rows, history, said)
    print(f"gate: {content['verdict']}: {content['reason']}", flush=True)
    return artifact.write_once(path, content)


def document(run: Run, rows: Sequence[Row], history: Sequence[tuple[str, flips.Outcomes]], said: str) -> Row:
    """The content of gate.json. `history`: the control's (run id, outcomes), oldest first; `said`: why it is empty."""
    plan = run.plan.gate
    counted = {row["case_id"]: row["outcome"] == "pass" for row in rows if not row["is_known_limit"]}
    passed = sum(counted.values())
    rate = passed / len(counted) if counted else None
    worse = flips.turned(history[-1][1], counted, to=False) if history else []
    verdict, reason = _verdict(run, rows, counted, history)
    return {
        "format": FORMAT,
        "verdict": verdict,
        "reason": "; ".join(filter(None, [reason, said])),
        "cases": len(rows),
        "evaluated": sum(row["outcome"] != "error" for row in rows),
        "counted": len(counted),
        "passed": passed,
        "pass_rate": rate,
        "min_pass_rate": plan.min_pass_rate,
        "known_limits": {row["case_id"]: row["outcome"] for row in rows if row["is_known_limit"]},
        "compared_with": history[-1][0] if history else None,
        "control_runs": len(history),
        "worse_cases": worse,
        "golden_set": plan.golden_set,
        "golden_sha256": None if plan.none_because else golden.digest(plan.golden_set),
    }


def _verdict(
    run: Run, rows: Sequence[Row], counted: flips.Outcomes, history: Sequence[tuple[str, flips.Outcomes]]
) -> tuple[str, str]:
    plan = run.plan.gate
    if plan.none_because:
        return "NONE", f"the plan skips the gate: {plan.none_because}"
    errors = [row for row in rows if row["outcome"] == "error"]
    if errors:
        return "INVALID", f"{len(errors)} of {len(rows)} cases were not evaluated: {_first(errors)}"
    if not counted:
        return "INVALID", "nothing was evaluated: the golden set has no case that counts"
    failed = [row for row in rows if row["outcome"] == "fail" and not row["is_known_limit"]]
    passed = f"{len(counted) - len(failed)} of {len(counted)} cases passed"
    if 1 - len(failed) / len(counted) < plan.min_pass_rate - 1e-9:
        return "FAIL", f"{passed}, at least {plan.min_pass_rate:.1%} must: {_first(failed)}"
    is_worse, against = _against_control(counted, history)
    return ("FAIL" if is_worse else "PASS"), "; ".join(filter(None, [passed, against]))


def _first(rows: Sequence[Row]) -> str:
    """The first three cases in words, and how many more there are."""
    more = f" and {len(rows) - 3} more" if len(rows) > 3 else ""
    return ", ".join(f"{row['case_id']} ({row['reason']})" for row in rows[:3]) + more


def _against_control(counted: flips.Outcomes, history: Sequence[tuple[str, flips.Outcomes]]) -> tuple[bool, str]:
    """(is it worse than chance explains, in words)."""
    if not history:
        return False, ""
    run_id, last = history[-1]
    worse = flips.turned(last, counted, to=False)
    words = f"{len(worse)} worse than the control's {run_id}{': ' if worse else ''}{', '.join(worse)}"
    if len(history) == 1:
        is_worse = flips.is_change(len(worse), len(flips.turned(last, counted, to=True)))
        return is_worse, f"{words} (its only stored run, so no flip rate is known: by the sign test)"
    flipped, seen = flips.flips([{case: o[case] for case in counted if case in o} for _, o in history])
    most = flips.most_by_chance(flipped, seen, sum(last.get(case, False) for case in counted))
    words += f" (its own {len(history)} runs flipped {flipped} of {seen}: up to {most} is chance)"
    return len(worse) > most, words


def played(run: Run, cases: Sequence[golden.Case]) -> list[Row]:
    """Play every case, plan.gate.at_once at a time, within plan.gate.timeout_s. One row per case, in their order."""
    deadline = time.monotonic() + run.plan.gate.timeout_s
    is_cut = threading.Event()
    play = player(run, deadline=deadline, is_cut=is_cut.is_set)
    pool = ThreadPoolExecutor(run.plan.gate.at_once, thread_name_prefix="gate")
    futures = {case.id: pool.submit(play, case) for case in cases}
    with _ended(pool, is_cut):
        _follow(futures, deadline=deadline)
        is_cut.set()  # what is still running ends now; what has not begun says so
        return [future.result() for future in futures.values()]


@contextmanager
def _ended(pool: ThreadPoolExecutor, is_cut: threading.Event) -> Iterator[None]:
    """Whatever happens inside, no call outlives it."""
    try:
        yield
    finally:
        is_cut.set()
        pool.shutdown(cancel_futures=True)


def _follow(futures: dict[str, "Future[Row]"], *, deadline: float) -> None:
    """Wait for all cases or the deadline, and say every few seconds how far it is."""
    began, pending = time.monotonic(), set(futures.values())
    while pending and time.monotonic() < deadline:
        left = max(deadline - time.monotonic(), 0.0)
        _, pending = wait(pending, timeout=min(SAY_EVERY_S, left))
        rows = [future.result() for future in futures.values() if future.done()]
        count = {kind: sum(row["outcome"] == kind for row in rows) for kind in ("pass", "fail", "error")}
        said = ", ".join(f"{number} {kind}" for kind, number in count.items() if number or kind != "error")
        print(f"gate: {len(rows)}/{len(futures)} cases, {said}, {time.monotonic() - began:.0f} s", flush=True)


def player(run: Run, *, deadline: float, is_cut: Callable[[], bool]) -> Play:
    """A function that plays one case through the gateway of this deployment. Raises BrokenArtifact."""
    from tasks.agent import graph
    from tasks.traffic import stream, work

    deployment = artifact.read(run.folder / "deployment.json")
    golden.material(run.plan.gate.golden_set)  # read once, not by several threads at once

    def play(case: golden.Case) -> Row:
        if is_cut():
            return row_of(run, case, error=f"not begun within the gate's {run.plan.gate.timeout_s:g} s")
        endpoint = stream.Endpoint(deployment["gateway_url"], run.technique, deployment["model"], run=run.owner)
        task_id = f"{run.run_id}/{run.attempt}/gate/{case.id}"

        def ask(messages: list[Row], tools: Sequence[Row], step: int) -> stream.Answer:
            return stream.call(
                endpoint,
                work.body(run, "agent", messages, tools),
                request_id=f"{task_id}/{step}",
                task_id=task_id,
                step=step,
                timeout_s=min(CALL_TIMEOUT_S, max(deadline - time.monotonic(), 0.1)),
                is_cut=is_cut,
            )

        began = time.monotonic()
        result = graph.play(case, ask=ask)
        return row_of(run, case, played=result, task_ms=(time.monotonic() - began) * 1e3)

    return play


def row_of(run: Run, case: golden.Case, *, played: Any = None, task_ms: float | None = None, error: str = "") -> Row:
    """One row of golden.jsonl. A case without a play, or whose model call failed, is an error."""
    is_right, _, reason = golden.judge(case, played) if played else (False, None, error)
    if played and played.is_aborted:
        error = f"cut off when the gate's {run.plan.gate.timeout_s:g} s were over"
    elif played and played.failure == "request" and played.request_failure != "empty":
        error = played.failure_detail
    return {
        "case_id": case.id,
        "category": case.category,
        "outcome": "error" if error else "pass" if is_right else "fail",
        "reason": _storable(error or reason),
        "steps": played.steps if played else 0,
        "tool_calls": played.tool_calls if played else 0,
        "answer": _storable(played.answer) if played else None,
        "task_ms": task_ms,
        "is_known_limit": golden.is_known_limit(case, golden.model_of(run.arm)),
    }


def _storable(text: str | None) -> str | None:
    """Bounded, and without what no database stores: a model may say anything."""
    if text is None:
        return None
    return text[:ANSWER_CHARS].replace("\x00", "\ufffd").encode("utf-8", "replace").decode()


def control_history(run: Run) -> tuple[list[tuple[str, flips.Outcomes]], str]:
    """([(run id, case -> passed)], oldest first, and why there is none, in words)."""
    from tasks import database

    control = run.arm.control or run.arm_name
    alone = "so the pass rate alone decides"
    if not database.available():
        return [], f"no database with results of the control {control}, {alone}"
    from sqlalchemy import text
    from sqlalchemy.exc import SQLAlchemyError

    try:
        asked = {
            "control": control,
            "control_digest": (arm.load(control) if run.arm.control else run.arm).digest(),
            "golden_sha256": golden.digest(run.plan.gate.golden_set),
            "run_id": run.run_id,
            "most_runs": MOST_CONTROL_RUNS,
        }
        statement = (settings.root() / "sql" / "gate" / "control_golden.sql").read_text(encoding="utf-8")
        with database.engine().connect() as connection:
            rows = connection.execute(text(statement), asked).all()
    except (SQLAlchemyError, database.DatabaseAway, InvalidDocument) as error:
        return [], f"results of the control {control} cannot be read ({str(error).splitlines()[0]}), {alone}"
    runs: dict[tuple[str, int], dict[str, bool]] = {}
    for row in rows:
        runs.setdefault((row.run_id, row.attempt), {})[row.case_id] = row.outcome == "pass"
    said = "" if runs else f"the control {control} has no stored result on this golden set, {alone}"
    return [(run_id, outcomes) for (run_id, _), outcomes in runs.items()], said
