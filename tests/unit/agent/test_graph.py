"""The loop of the agent, against models whose every word is known."""

import json
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tasks.agent import golden, graph
from tasks.traffic.stream import Answer

CASES = {case.id: case for case in golden.load("v1")}
GOOD = {"failure": None, "failure_detail": None, "is_aborted": False}
Script = list[Any]  # per step: an answer's text, or (tool, arguments), or a list of those


def say(entry: Any, step: int) -> Answer:
    if isinstance(entry, str):
        return Answer(GOOD, entry, "", [])
    calls = entry if isinstance(entry, list) else [entry]
    written = [(name, args if isinstance(args, str) else json.dumps(args)) for name, args in calls]
    made = [{"id": f"{step}-{i}", "name": name, "arguments": args} for i, (name, args) in enumerate(written)]
    return Answer(GOOD, f"Step {step}.", "", made)


def play(case_id: str, script: Script, seen: list[Any] | None = None, max_steps: int = 6) -> graph.Played:
    """Play a case with a model that follows a script; its last line is repeated."""

    def ask(messages: list[graph.Message], tools: Any, step: int) -> Answer:
        if seen is not None:
            seen.append(json.loads(json.dumps(messages)))
        return say(script[min(step, len(script)) - 1], step)

    return graph.play(CASES[case_id], ask=ask, max_steps=max_steps)


SEARCH = ("web_search", {"query": "Port Hefi population"})


def test_an_answer_at_once() -> None:
    played = play("g38", ["  Hello!\n"])
    assert (played.answer, played.steps, played.calls, played.failure) == ("Hello!", 1, [], None)


def test_what_travels_is_the_wire_format_and_the_call_as_the_model_wrote_it() -> None:
    seen: list[Any] = []
    raw = '{ "query":"Port Hefi  population" }'
    play("g01", [("web_search", raw), "204584"], seen)
    system, user = seen[0]
    assert system == {"role": "system", "content": golden.material("v1").system}
    assert user == {"role": "user", "content": CASES["g01"].query}
    assert seen[1][:2] == seen[0]
    function = {"name": "web_search", "arguments": raw}
    assert seen[1][2] == {
        "role": "assistant",
        "content": "Step 1.",
        "tool_calls": [{"id": "1-0", "type": "function", "function": function}],
    }
    assert seen[1][3]["role"] == "tool" and seen[1][3]["tool_call_id"] == "1-0"
    assert json.loads(seen[1][3]["content"])["results"][0]["title"] == "Port Hefi"


def test_tools_are_sent_as_they_are_frozen() -> None:
    sent: list[Any] = []

    def ask(_messages: Any, tools: Any, _step: int) -> Answer:
        sent.append(list(tools))
        return say("Hello", 1)

    graph.play(CASES["g38"], ask=ask)
    frozen = (golden.folder("v1") / "tools.json").read_text()
    assert json.dumps(sent[0]) == json.dumps(json.loads(frozen))


def test_the_same_call_twice_is_a_loop_and_ends_the_play() -> None:
    played = play("g01", [SEARCH, ("web_search", '{"query":"Port Hefi population"}'), "204584"])
    assert (played.failure, played.steps, played.answer) == ("loop", 2, None)
    assert len(played.calls) == 1 and played.tool_calls == 2


def test_the_step_limit_ends_the_play() -> None:
    script: Script = [("web_search", {"query": f"Port Hefi {number}"}) for number in range(9)]
    played = play("g01", script, max_steps=4)
    assert (played.failure, played.steps, len(played.calls)) == ("step_limit", 4, 4)


def test_a_malformed_call_is_told_to_the_model_and_stays_a_failure() -> None:
    seen: list[Any] = []
    played = play("g01", [("web_search", '{"query": "Port'), SEARCH, "Port Hefi has 204584."], seen)
    assert "not JSON" in json.loads(seen[1][-1]["content"])["error"]
    assert (played.failure, played.answer, len(played.calls)) == ("malformed_call", "Port Hefi has 204584.", 1)


def test_a_call_left_in_the_text_is_malformed() -> None:
    played = play("g01", ['I will search.\n<tool_call>\n{"name": "web_search"'])
    assert played.failure == "malformed_call"


def test_too_many_calls_in_one_step_are_refused() -> None:
    many = [("web_search", {"query": f"q{number}"}) for number in range(graph.MOST_CALLS + 2)]
    played = play("g01", [many, "done"])
    assert (len(played.calls), played.tool_calls, played.failure) == (graph.MOST_CALLS, len(many), "malformed_call")


def test_a_failed_request_ends_the_play() -> None:
    row = GOOD | {"failure": "http_5xx", "failure_detail": "503: busy"}
    played = graph.play(CASES["g01"], ask=lambda *_: Answer(row, "", "", []))
    assert (played.failure, played.request_failure, played.failure_detail) == (
        "request",
        "http_5xx",
        "step 1: http_5xx: 503: busy",
    )


def test_calls_of_a_failed_request_are_not_carried_out() -> None:
    row = GOOD | {"failure": "truncated", "failure_detail": "no [DONE]"}
    call = {"id": "1", "name": "manage_tasks", "arguments": '{"action": "add", "title": "x"}'}
    played = graph.play(CASES["g22"], ask=lambda *_: Answer(row, "", "", [call]))
    assert (played.tasks, played.calls, played.steps) == ([], [], 1)


def test_a_cut_off_request_is_neither_failure_nor_success() -> None:
    played = graph.play(CASES["g01"], ask=lambda *_: Answer(GOOD | {"is_aborted": True}, "", "", []))
    assert played.is_aborted and played.failure is None and played.answer is None


def test_what_ask_raises_comes_through() -> None:
    def ask(*_: Any) -> Answer:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        graph.play(CASES["g01"], ask=ask)


@pytest.mark.parametrize(
    "rubbish",
    [
        "\x00\ud800 \U0001f600",
        ("web_search", "\x00"),
        ("web_search", '{"query": "' + "x" * 1_000_000 + '"}'),
        ("web_search", '{"a":' * 5000),
        ("", ""),
        [("manage_tasks", '{"action": "add", "title": "' + "y" * 500 + '"}')] * 3,
    ],
)
def test_rubbish_never_raises(rubbish: Any) -> None:
    played = play("g01", [rubbish])
    assert not golden.judge(CASES["g01"], played)[0]
    assert all(len(str(part)) < 2000 for part in (played.failure_detail, played.tasks))


def test_tasks_played_at_once_do_not_meet() -> None:
    barrier = threading.Barrier(8, timeout=30)

    def one(number: int) -> graph.Played:
        def ask(_messages: Any, _tools: Any, step: int) -> Answer:
            barrier.wait()
            return say([("manage_tasks", {"action": "add", "title": f"task {number}"}), "Added."][step - 1], step)

        return graph.play(CASES["g22"], ask=ask)

    with ThreadPoolExecutor(8) as pool:
        ends = [played.tasks for played in pool.map(one, range(8))]
    assert ends == [[{"id": 1, "title": f"task {number}", "done": False}] for number in range(8)]


def test_nothing_is_traced_whatever_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    from langchain_core.tracers.langchain import LangChainTracer

    def traced(*_: Any, **__: Any) -> None:
        raise AssertionError("a tracer was made")

    monkeypatch.setenv("LANGSMITH_TRACING", "true")
    monkeypatch.setenv("LANGSMITH_API_KEY", "none")
    monkeypatch.setattr(LangChainTracer, "__init__", traced)
    assert play("g38", ["Hello!"]).answer == "Hello!"


UNDER_GEVENT = """
from gevent import monkey
monkey.patch_all()
import gevent, json, time
from tasks.agent import golden, graph
from tasks.traffic.stream import Answer
case = {case.id: case for case in golden.load("v1")}["g22"]
row = {"failure": None, "failure_detail": None, "is_aborted": False}
def one(number):
    def ask(messages, tools, step):
        time.sleep(0.2)
        call = {"id": "1", "name": "manage_tasks", "arguments": json.dumps({"action": "add", "title": f"t{number}"})}
        return Answer(row, "", "", [call]) if step == 1 else Answer(row, "Added.", "", [])
    return graph.play(case, ask=ask).tasks[0]["title"]
one(0)
began = time.monotonic()
jobs = [gevent.spawn(one, number) for number in range(20)]
gevent.joinall(jobs, raise_error=True)
print(sorted(job.value for job in jobs) == sorted(f"t{n}" for n in range(20)), time.monotonic() - began < 2.5)
"""


def test_greenlets_play_at_once() -> None:
    """Twenty plays of 0.4 s each; one after the other they would take 8 s."""
    ran = subprocess.run([sys.executable, "-c", UNDER_GEVENT], capture_output=True, text=True, timeout=120)
    assert ran.stdout.strip() == "True True", ran.stdout + ran.stderr
