"""What a user sends is the plan's seed and its seat, for every arm alike; what it writes are whole rows."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import PLAN
from stand_in.launch import Running, running

from tasks import record
from tasks.arm import Arm
from tasks.document import parse
from tasks.plan import Plan
from tasks.price import Price
from tasks.run import Run
from tasks.target import Target
from tasks.traffic import cache, level, scrape, stream, work

ARM = {
    "engine": "vllm",
    "question": "Does the traffic go where it should?",
    "model": {"path": "deploy/models/demo", "served_as": "tiny"},
    "price": "local-cpu",
}


def run_of(arm_name: str = "one", **more: Any) -> Run:
    return Run(
        folder=Path("nowhere"),
        run_id="r",
        attempt=2,
        arm_name=arm_name,
        arm=parse(ARM, Arm, source="arm"),
        target_name="t",
        target=parse({"driver": "process", "says": "nothing of note", "slots": ["s"]}, Target, source="target"),
        plan_name="p",
        plan=parse(PLAN, Plan, source="plan"),
        price=parse({"says": "nominal", "usd_per_hour": "unresolved"}, Price, source="price"),
        slot="s",
        claimed_at=0.0,
        **{"repeat": 1, "seed": 7} | more,
    )


def seat_of(run: Run, tier: str, url: str, requests: list[Any], tasks: list[Any]) -> work.Seat:
    offered = getattr(run.plan.tiers, tier).levels[0]
    open_level = level.Running(1, offered, t_start_ns=0, started_at=0.0)
    cases = work.endless(work.sendable("v1"), run.rng("here"))
    endpoint = stream.Endpoint(url, run.technique, "tiny")
    return work.Seat(run, tier, open_level, open_level.enter(), endpoint, cases, requests.append, tasks.append)


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
