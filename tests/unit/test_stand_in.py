"""The stand-in engine: what it says about itself is what was asked, and planted faults are what they say."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from stand_in.launch import Running, running

CASE = {
    "query": "Who founded Acme?",
    "expected_calls": [{"name": "web_search", "arguments": {"query": "Acme founder"}}],
    "reference_answer": "The founder of Acme is Bob.",
}
Start = Callable[..., Running]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    cases = tmp_path / "golden_set" / "v1" / "cases.jsonl"
    cases.parent.mkdir(parents=True)
    cases.write_text(json.dumps(CASE))
    with ExitStack() as stack:

        def up(*flags: str, **env: str) -> Running:
            engine = running("--model", "m", *flags, log=tmp_path / "log", ARMWISE_ROOT=str(tmp_path), **env)
            return stack.enter_context(engine)

        yield up


def ask(client: httpx.Client, *said: dict[str, Any], **more: Any) -> httpx.Response:
    messages = [{"role": "user", "content": CASE["query"]}, *said]
    return client.post("/v1/chat/completions", json={"model": "m", "messages": messages, **more})


def test_plays_a_case_call_by_call_then_answers(start: Start) -> None:
    client = start().client
    first = ask(client).json()["choices"][0]
    call = first["message"]["tool_calls"][0]["function"]
    assert (first["finish_reason"], call["name"], json.loads(call["arguments"])) == (
        "tool_calls",
        "web_search",
        {"query": "Acme founder"},
    )
    told = [{"role": "assistant", "content": ""}, {"role": "tool", "content": "Bob", "tool_call_id": "x"}]
    last = ask(client, *told).json()["choices"][0]
    assert (last["finish_reason"], last["message"]["content"]) == ("stop", CASE["reference_answer"])


def test_stream_carries_what_the_whole_answer_carries_and_counts_it(start: Start) -> None:
    client = start("--enable-prompt-tokens-details").client
    lines = ask(client, stream=True, stream_options={"include_usage": True}).text.split("\n\n")
    assert lines[-2] == "data: [DONE]"
    events = [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]
    pieces = [d["delta"] for e in events for d in e["choices"]]
    arguments = "".join(c["function"].get("arguments", "") for p in pieces for c in p.get("tool_calls", []))
    assert json.loads(arguments) == {"query": "Acme founder"}
    usage = events[-1]["usage"]
    assert usage["completion_tokens"] == len(events) - 3  # all but the role, the finish reason and the usage
    assert f'generation_tokens_total{{engine="0",model_name="m"}} {usage["completion_tokens"]}.0' in _metrics(client)


def test_second_time_comes_from_the_cache_until_it_is_reset_or_salted(start: Start) -> None:
    client = start("--enable-prompt-tokens-details").client

    def cached(**more: Any) -> int:
        filler = {"role": "assistant", "content": "word " * 100}
        return ask(client, filler, **more).json()["usage"]["prompt_tokens_details"]["cached_tokens"]

    assert cached() == 0
    assert cached() >= 96
    assert cached(cache_salt="other") == 0
    client.post("/reset_prefix_cache")
    assert cached() == 0


def test_server_info_reflects_flags_and_an_ignored_one_shows_its_default(start: Start) -> None:
    client = start("--max-num-seqs", "8", "--no-enable-prefix-caching", fault="ignore_flag:max-num-seqs").client
    config = client.get("/server_info?config_format=json").json()["vllm_config"]
    assert config["scheduler_config"]["max_num_seqs"] == 128
    assert config["cache_config"]["enable_prefix_caching"] is False


def test_key_is_asked_for(start: Start) -> None:
    client = start(VLLM_API_KEY="k").client
    assert client.get("/v1/models").status_code == 401
    assert client.get("/v1/models", headers={"Authorization": "Bearer k"}).json()["data"][0]["id"] == "m"


def test_exit_at_start(start: Start) -> None:
    engine = start(fault="exit_at_start")
    assert engine.process.wait(10) == 1
    assert "told to exit" in engine.log.read_text()


def test_dies_after_its_requests(start: Start) -> None:
    engine = start(fault="die_after:1")
    assert ask(engine.client).status_code == 200
    with pytest.raises(httpx.TransportError):
        ask(engine.client)
    assert engine.process.wait(10) == 137


def test_answers_503_at_the_ratio(start: Start) -> None:
    client = start(fault="http_503:0.5", STAND_IN_TTFT_MS="0", STAND_IN_TPOT_MS="0").client
    assert [ask(client).status_code for _ in range(4)] == [200, 503, 200, 503]


def test_truncated_stream_has_no_end(start: Start) -> None:
    client = start(fault="truncated").client
    with pytest.raises(httpx.RemoteProtocolError):
        ask(client, stream=True)


def test_rubbish_arguments_are_not_json(start: Start) -> None:
    client = start(fault="rubbish_json").client
    call = ask(client).json()["choices"][0]["message"]["tool_calls"][0]["function"]
    with pytest.raises(ValueError):
        json.loads(call["arguments"])


def _metrics(client: httpx.Client) -> str:
    return client.get("/metrics").text
