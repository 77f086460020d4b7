"""What a user sends is the plan's seed and its seat, for every arm alike; what it writes are whole rows."""

import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import PLAN
from stand_in.launch import Running, running

from tasks import record
from tasks.agent import trajectory
from tasks.arm import Arm
from tasks.document import parse
from tasks.plan import Plan
from tasks.price import Price
from tasks.run import Run
from tasks.target import Target
from tasks.traffic import cache, level, replay, scrape, stream, work, workload

ARM = {
    "engine": "vllm",
    "question": "Does the traffic go where it should?",
    "model": {"path": "deploy/models/demo", "served_as": "tiny"},
    "price": "local-cpu",
}


def run_of(arm_name: str = "one", **more: Any) -> Run:
    known = {"run_id": "r", "arm": parse(ARM, Arm, source="arm"), "plan": parse(PLAN, Plan, source="plan")}
    known |= {"repeat": 1, "seed": 7}
    return Run(
        folder=Path("nowhere"),
        attempt=2,
        arm_name=arm_name,
        target_name="t",
        target=parse({"driver": "process", "says": "nothing of note", "slots": ["s"]}, Target, source="target"),
        plan_name="p",
        price=parse({"says": "nominal", "usd_per_hour": "unresolved"}, Price, source="price"),
        slot="s",
        claimed_at=0.0,
        **known | more,
    )


def seat_of(run: Run, tier: str, url: str, requests: list[Any], tasks: list[Any]) -> work.Seat:
    offered = getattr(run.plan.tiers, tier).levels[0]
    open_level = level.Running(1, offered, t_start_ns=0, started_at=0.0)
    cases = work.endless(workload.cases(run, tier), run.rng("here"))
    names = work.sessions(run.rng("here/sessions"))
    endpoint = stream.Endpoint(url, run.technique, "tiny")
    return work.Seat(run, tier, open_level, open_level.enter(), endpoint, cases, names, requests.append, tasks.append)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("engine")
    with running(
        "--model", "m", "--served-model-name", "tiny", "--enable-prompt-tokens-details", log=folder / "log"
    ) as up:
        yield up


def order(run: Run, purpose: str) -> list[str]:
    return [case.id for case in itertools.islice(work.endless(work.sendable("v1"), run.rng(purpose)), 100)]


def test_every_arm_sends_the_same_in_the_same_order() -> None:
    first = order(run_of("one"), "user 0")
    assert first == order(run_of("other"), "user 0")
    assert first != order(run_of("one"), "user 1")
    assert first != order(run_of("one", seed=8), "user 0")
    assert first != order(run_of("one", repeat=2), "user 0")
    cases = len(work.sendable("v1"))
    assert len(set(first[:cases])) == cases  # each once before any comes again


def test_known_limits_are_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(case.known_limit is None for case in work.sendable("v1"))
    with pytest.raises(ValueError, match="no case to send"):
        next(work.endless([], run_of().rng("x")))


def test_the_body_is_that_of_the_plan() -> None:
    body = work.body(run_of(), "gateway", [{"role": "user", "content": "x"}], [{"type": "function"}])
    assert (body["temperature"], body["max_tokens"], body["seed"], body["tool_choice"]) == (0, 32, 7, "auto")
    assert "min_tokens" not in body and "ignore_eos" not in body


def test_a_fixed_length_is_asked_for_in_words_that_no_parser_shortens() -> None:
    body = work.body(run_of(), "gateway", [], [{"type": "function"}], output_tokens=9)
    assert (body["max_tokens"], body["min_tokens"], body["ignore_eos"], body["tool_choice"]) == (9, 9, True, "none")
    assert body["tools"] == [{"type": "function"}]  # they stay in the prompt


def test_a_runs_salt_is_its_own_and_sent_where_the_engine_takes_one() -> None:
    assert work.body(run_of(), "agent", [], [])["cache_salt"] == "r.2" == work.cache_salt(run_of())
    assert work.cache_salt(run_of(run_id="s")) == "s.2"
    elsewhere = run_of(arm=parse(ARM | {"engine": "openai"}, Arm, source="arm"))
    assert work.cache_salt(elsewhere) is None
    assert "cache_salt" not in work.body(elsewhere, "agent", [], [])


def test_sessions_share_instructions_and_nothing_that_comes_after() -> None:
    from tasks.agent import golden

    case = work.sendable("v1")[0]
    one, other = (work.in_session(golden.first_messages(case), name) for name in ("aa", "bb"))
    assert [message["role"] for message in one] == ["system", "system", "user"]
    assert one[0] == other[0] and one[1] != other[1]
    assert one[2] == other[2] == golden.first_messages(case)[-1]  # the golden rule is judged by the same words
    names = list(itertools.islice(work.sessions(run_of().rng("x")), 1000))
    assert len(set(names)) == 1000
    assert names == list(itertools.islice(work.sessions(run_of("other").rng("x")), 1000))


def test_a_gateway_call_leaves_one_whole_row(engine: Running) -> None:
    requests: list[Any] = []
    seat = seat_of(run_of(), "gateway", engine.url, requests, [])
    assert work.gateway(seat, t_intended_ns=5)
    assert work.gateway(seat, t_intended_ns=5)
    for row in requests:
        assert set(row) == set(record.REQUEST)
        assert (row["failure"], row["t_intended_ns"], row["step"], row["task_id"]) == (None, 5, 1, None)
        assert 1 < row["chunks"] == row["output_tokens"] <= 32  # the stand-in sends one token per chunk
    assert [row["request_id"] for row in requests] == ["r/2/gateway/1.0.1/1", "r/2/gateway/1.0.2/1"]


def test_a_task_leaves_its_row_and_one_per_step(engine: Running) -> None:
    requests: list[Any] = []
    tasks: list[Any] = []
    seat = seat_of(run_of(), "agent", engine.url, requests, tasks)
    for _ in range(5):
        assert work.agent(seat, t_intended_ns=5)
    for task in tasks:
        assert set(task) == set(record.TASK)
        own = [row for row in requests if row["task_id"] == task["task_id"]]
        assert task["is_success"], task["failure_detail"]
        assert [row["step"] for row in own] == list(range(1, task["steps"] + 1))
        assert own[0]["t_intended_ns"] == 5 < own[-1]["t_intended_ns"] or len(own) == 1
        assert task["t_start_ns"] <= own[0]["t_send_ns"] <= own[-1]["t_end_ns"] <= task["t_end_ns"]
    assert len({row["request_id"] for row in requests}) == len(requests) > 5


def test_the_gateway_tier_sends_what_the_agents_first_step_sends() -> None:
    from tasks.agent import golden, graph

    sent: list[Any] = []
    answer = stream.Answer({"failure": "connect", "failure_detail": "", "is_aborted": False}, "", "", [])
    for case in work.sendable("v1")[:3]:
        graph.play(case, ask=lambda messages, tools, step: sent.append((messages, list(tools))) or answer)
        assert sent[-1] == (golden.first_messages(case), list(golden.material("v1").tools))


def test_a_task_whose_call_failed_is_a_failed_task_and_a_cut_one_is_neither() -> None:
    requests: list[Any] = []
    tasks: list[Any] = []
    seat = seat_of(run_of(), "agent", "http://127.0.0.1:9", requests, tasks)
    assert not work.agent(seat, t_intended_ns=5)
    assert (tasks[0]["is_success"], tasks[0]["failure"], requests[0]["failure"]) == (False, "request", "connect")


REPLAY = {"levels": [{"users": 2, "duration_s": 3}], "drain_s": 5, "replay": True, "tool_s": 0.02, "think_s": 0.05}


def replaying(**more: Any) -> Run:
    tiers = PLAN["tiers"] | {"agent": REPLAY | more}
    return run_of(plan=parse(PLAN | {"tiers": tiers}, Plan, source="plan"))


def test_a_replay_sends_what_was_recorded_and_gets_what_was_asked_for(engine: Running) -> None:
    requests: list[Any] = []
    tasks: list[Any] = []
    seat = seat_of(replaying(), "agent", engine.url, requests, tasks)
    recorded = {one.id: one for one in trajectory.load("v1")}
    for _ in range(4):
        assert replay.agent(seat, t_intended_ns=time.monotonic_ns())
    for task in tasks:
        assert set(task) == set(record.TASK)
        one = recorded[task["case_id"]]
        own = [row for row in requests if row["task_id"] == task["task_id"]]
        assert (task["is_success"], task["failure"], task["steps"]) == (True, None, len(one.steps))
        assert task["tool_calls"] == one.tool_calls
        assert [row["step"] for row in own] == list(range(1, len(one.steps) + 1))
        asked = [step.output_tokens for step in one.steps]
        assert [row["requested_output_tokens"] for row in own] == [row["output_tokens"] for row in own] == asked
        assert all(b["input_tokens"] > a["input_tokens"] for a, b in itertools.pairwise(own))  # the history grows
        for before, after, step in zip(own, own[1:], one.steps[1:], strict=False):
            paused_ms = (after["t_intended_ns"] - before["t_end_ns"]) / 1e6
            assert paused_ms >= {"tool": 20, "user": 50}[step.after]
    assert {row["finish_reason"] for row in requests} == {"length"}


def test_a_document_is_the_same_for_every_arm_and_of_one_session_alone() -> None:
    one, again, other = (replay.document("v1", session, 500) for session in ("aa", "aa", "bb"))
    assert one == again
    assert one.split()[:20] != other.split()[:20], "the beginning is what a prefix cache would share"
    assert len(one.split()) == 500


def test_a_document_comes_once_and_stays_in_the_history(engine: Running) -> None:
    def tokens(**more: Any) -> list[int]:
        requests: list[Any] = []
        seat = seat_of(replaying(**more), "agent", engine.url, requests, [])
        assert replay.agent(seat, t_intended_ns=time.monotonic_ns())
        return [row["input_tokens"] for row in requests]

    added = [b - a for a, b in zip(tokens(), tokens(document_words=700), strict=True)]
    assert min(added) == max(added) >= 700


def test_a_replayed_answer_of_another_length_is_a_failed_task(monkeypatch: pytest.MonkeyPatch, engine: Running) -> None:
    requests: list[Any] = []
    tasks: list[Any] = []
    seat = seat_of(replaying(), "agent", engine.url, requests, tasks)
    cut = {"max_tokens": 2, "ignore_eos": False}
    bodies = work.body
    monkeypatch.setattr(work, "body", lambda *args, **more: bodies(*args, **more) | cut)
    assert replay.agent(seat, t_intended_ns=5)  # the server did answer
    assert (tasks[0]["is_success"], tasks[0]["failure"], tasks[0]["steps"]) == (False, "wrong_length", 1)
    assert "step 1: 2 tokens, recorded are " in tasks[0]["failure_detail"]


def test_a_replay_that_is_not_answered_is_a_failed_task() -> None:
    tasks: list[Any] = []
    seat = seat_of(replaying(), "agent", "http://127.0.0.1:9", [], tasks)
    assert not replay.agent(seat, t_intended_ns=5)
    assert (tasks[0]["failure"], tasks[0]["failure_detail"][:15]) == ("request", "step 1: connect")


def test_a_gateway_tier_of_fixed_lengths(engine: Running) -> None:
    requests: list[Any] = []
    tiers = PLAN["tiers"] | {"gateway": PLAN["tiers"]["gateway"] | {"output_tokens": 21}}
    seat = seat_of(
        run_of(plan=parse(PLAN | {"tiers": tiers}, Plan, source="plan")), "gateway", engine.url, requests, []
    )
    assert work.gateway(seat, t_intended_ns=5)
    assert (requests[0]["requested_output_tokens"], requests[0]["output_tokens"]) == (21, 21)


def test_no_prompt_of_a_tier_comes_twice(engine: Running) -> None:
    """All cases twice: the second time they are in the cache up to the session's line and no further."""
    requests: list[Any] = []
    seat = seat_of(run_of(run_id="alone"), "gateway", engine.url, requests, [])
    cases = len(work.sendable("v1"))
    for _ in range(2 * cases):
        work.gateway(seat, t_intended_ns=5)
    assert len({row["case_id"] for row in requests}) == cases
    shared = {row["cached_input_tokens"] for row in requests[1:]}
    assert len(shared) == 1 and 0 < shared.pop() < min(row["input_tokens"] for row in requests) - 20


def test_a_pause_ends_when_the_level_is_cut(engine: Running) -> None:
    seat = seat_of(run_of(), "gateway", engine.url, [], [])
    seat.running.is_cut = True
    began = time.monotonic()
    seat.pause(60)
    assert time.monotonic() - began < 10


def test_in_an_open_loop_a_task_begins_at_its_arrival(engine: Running) -> None:
    requests: list[Any] = []
    tasks: list[Any] = []
    shape = {"levels": [{"rate_per_s": 2, "arrivals": "poisson", "duration_s": 3, "warmup_s": 1}], "drain_s": 5}
    run = run_of(plan=parse(PLAN | {"tiers": PLAN["tiers"] | {"agent": shape}}, Plan, source="plan"))
    seat = seat_of(run, "agent", engine.url, requests, tasks)
    assert work.agent(seat, t_intended_ns=999_999_999)
    assert work.agent(seat, t_intended_ns=1_000_000_000)
    assert [(task["t_start_ns"], task["is_warmup"]) for task in tasks] == [(999_999_999, True), (1_000_000_000, False)]
    assert {(row["users"], row["rate_per_s"]) for row in [*requests, *tasks]} == {(None, 2.0)}


def test_a_cut_task_is_neither_success_nor_failure(tmp_path: Path) -> None:
    requests: list[Any] = []
    tasks: list[Any] = []
    with running("--model", "m", "--served-model-name", "tiny", log=tmp_path / "log", fault="hang") as hanging:
        seat = seat_of(run_of(), "agent", hanging.url, requests, tasks)
        seat.running.is_cut = True
        work.agent(seat, t_intended_ns=5)
    assert (tasks[0]["is_success"], tasks[0]["failure"], tasks[0]["is_aborted"]) == (None, None, True)
    assert (requests[0]["failure"], requests[0]["is_aborted"]) == (None, True)


def deployment(engine: Running) -> dict[str, Any]:
    return {"url": engine.url, "gateway_url": engine.url, "model": "tiny", "dev_endpoints": True}


def source(engine: Running) -> scrape.Source:
    from tasks.engines import vllm

    return scrape.sources(deployment(engine), None, vllm.METRICS)[0]


def test_an_emptied_cache_is_proven_by_a_probe(engine: Running) -> None:
    note = cache.empty(run_of(), "gateway", deployment(engine), source(engine))
    assert note["is_proven"] is True
    assert (note["reset_status"], note["probe_cached_tokens"], note["is_drained"]) == (200, 0, True)
    assert engine.client.get("/metrics").text.count("vllm:num_requests_running")


def test_a_cache_that_cannot_be_emptied_is_seen(tmp_path: Path) -> None:
    flags = ("--model", "m", "--served-model-name", "tiny", "--enable-prompt-tokens-details")
    with running(*flags, log=tmp_path / "log", VLLM_SERVER_DEV_MODE="0") as stubborn:
        cache.empty(run_of(), "gateway", deployment(stubborn), source(stubborn))  # its probe fills the cache
        note = cache.empty(run_of(), "gateway", deployment(stubborn), source(stubborn))
    assert (note["is_proven"], note["reset_status"]) == (False, 404)
    assert note["probe_cached_tokens"] > 500


def test_without_development_endpoints_nothing_is_claimed(engine: Running) -> None:
    note = cache.empty(run_of(), "gateway", deployment(engine) | {"dev_endpoints": False}, None)
    assert note["is_proven"] is None
    assert "not reset" in note["because"]
