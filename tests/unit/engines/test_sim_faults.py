"""Each planted fault does, on the wire or in the counters, what the table says of it; and nothing unless planted."""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from sim_server import CASE, MODEL, TOOLS, Sim, serving

from tasks.document import InvalidDocument
from tasks.engines.sim import flags
from tasks.engines.sim.faults import TABLE, Faults

pytestmark = pytest.mark.services  # an engine process

FIXED: dict[str, Any] = {"max_tokens": 12, "ignore_eos": True}


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sim]:
    with serving(tmp_path_factory.mktemp("sim"), *TOOLS) as sim:
        yield sim


@pytest.fixture
def sim(started: Sim) -> Iterator[Sim]:
    """A server without faults and with an empty cache."""
    started.plant()
    started.client.post("/reset_prefix_cache")
    yield started
    started.plant()


def setup(*argv: str, faults: str = "") -> flags.Setup:
    words = ["--model", str(MODEL), "--max-model-len", "8192", *argv]
    return flags.setup(words, {"SIM_FAULTS": faults})


def test_there_are_twenty_numbered_as_the_plan_lists_them() -> None:
    assert sorted(fault.number for fault in TABLE.values()) == list(range(1, 21))


def test_without_faults_a_stream_is_whole(sim: Sim) -> None:
    heard = sim.stream(**FIXED)
    assert (heard.status, heard.finish_reason, heard.is_done, heard.error) == (200, "length", True, None)
    assert heard.usage is not None and heard.usage["completion_tokens"] == 12
    assert len(heard.deltas) == 1 + 12 + 1  # role, tokens, finish
    assert heard.raw.count(b"[DONE]") == 1


def test_01_an_ignored_flag_is_missing_in_what_the_server_shows() -> None:
    asked = ("--max-num-seqs", "7")
    shown = [flags.shown(setup(*asked, faults=text)) for text in ("", "flag_ignored:flag=max-num-seqs")]
    assert [tree["scheduler_config"]["max_num_seqs"] for tree in shown] == [7, 1024]
    assert setup(*asked, faults="flag_ignored:flag=max-num-seqs").limits.max_num_seqs == 1024


def test_02_two_arms_that_show_different_flags_run_the_same_scheduler() -> None:
    text = "same_scheduler:flag=speculative-config"
    arm = setup("--speculative-config", '{"method":"ngram","num_speculative_tokens":4}', faults=text)
    assert flags.shown(arm)["speculative_config"]["num_speculative_tokens"] == 4
    assert arm.limits == setup().limits


def test_03_chunks_carry_several_tokens_and_usage_counts_them_all(sim: Sim) -> None:
    sim.plant(several_tokens={"tokens": 4})
    heard = sim.stream(**FIXED)
    assert len([delta for delta in heard.deltas if delta.get("content")]) == 3
    assert heard.usage is not None and heard.usage["completion_tokens"] == 12
    assert [tokens for _, what, tokens, _ in sim.requests()[-1]["sent"] if what == "tokens"] == [4, 4, 4]


def test_04_a_tenth_is_answered_503(sim: Sim) -> None:
    sim.plant(http_503={"ratio": 0.1})
    statuses = [sim.client.post("/v1/chat/completions", json={}).status_code for _ in range(30)]
    assert statuses.count(503) == 3


def test_05_the_connection_breaks_in_mid_stream(sim: Sim) -> None:
    sim.plant(truncated={"ratio": 1})
    heard = sim.stream(**FIXED)
    assert heard.error is not None and not heard.is_done and heard.finish_reason is None
    assert 0 < len(heard.content.split()) < 12
    assert sim.requests()[-1]["end"] == "truncated"


def test_06_an_error_event_inside_a_200(sim: Sim) -> None:
    sim.plant(error_event={"ratio": 1})
    heard = sim.stream(**FIXED)
    assert (heard.status, heard.error, heard.finish_reason) == (200, None, None)
    assert heard.events[-1]["error"]["code"] == 500
    assert heard.content and heard.is_done


@pytest.mark.parametrize(("factor", "told"), [(1.5, 18), (0, None)])
def test_07_usage_is_wrong_or_missing(sim: Sim, factor: float, told: int | None) -> None:
    sim.plant(usage_wrong={"factor": factor})
    before = sim.metric("vllm:generation_tokens_total")
    heard = sim.stream(**FIXED)
    assert (heard.usage["completion_tokens"] if heard.usage else None) == told
    assert sim.metric("vllm:generation_tokens_total") - before == 12


def test_08_a_reset_cache_is_as_warm_as_before(sim: Sim) -> None:
    prompt = "word " * 200
    assert sim.ask(prompt, max_tokens=1)["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    sim.plant(warm_cache={})
    assert sim.client.post("/reset_prefix_cache").status_code == 200
    told = sim.ask(prompt, max_tokens=1, cache_salt="of this run alone")["usage"]
    assert told["prompt_tokens"] - 17 <= told["prompt_tokens_details"]["cached_tokens"] < told["prompt_tokens"]


def test_09_the_first_wave_is_slow_and_the_next_is_not(sim: Sim) -> None:
    sim.plant(slow_first_wave={"requests": 2, "factor": 100})
    ttfts = []
    for _ in range(4):
        sim.stream(max_tokens=1)
        line = sim.requests()[-1]
        ttfts.append((line["sent"][0][0] - line["arrived_ns"]) / 1e6)
    assert min(ttfts[:2]) >= 200 > max(ttfts[2:]) * 2
    sim.client.post("/reset_prefix_cache")
    sim.stream(max_tokens=1)
    line = sim.requests()[-1]
    assert (line["sent"][0][0] - line["arrived_ns"]) / 1e6 >= 200


def test_10_the_engine_restarts_in_mid_run(tmp_path: Path) -> None:
    with serving(tmp_path, SIM_FAULTS="restart:requests=3") as sim:
        started = sim.metric("process_start_time_seconds")
        whole = [sim.stream(**FIXED).is_done for _ in range(2)]
        broken = sim.stream(max_tokens=200, ignore_eos=True)
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            try:
                if sim.client.get("/health").status_code == 200:
                    break
            except httpx.HTTPError:
                time.sleep(0.05)
        again = sim.stream(**FIXED)
        assert (whole, broken.is_done, again.is_done) == ([True, True], False, True)
        assert sim.metric("process_start_time_seconds") > started
        assert sim.metric("vllm:generation_tokens_total") == 12  # counted from zero
        assert [line["end"] for line in sim.requests()] == ["length", "length", "cut", "length"]


def test_11_weights_are_held_in_another_precision_than_is_shown() -> None:
    right, wrong = setup("--dtype", "bfloat16"), setup("--dtype", "bfloat16", faults="other_precision:bytes=1")
    assert flags.shown(wrong)["model_config"] == flags.shown(right)["model_config"]
    assert wrong.machine.weight_bytes < 0.65 * right.machine.weight_bytes


def test_12_steps_get_slower_with_time() -> None:
    faults = Faults.parsed("drift:per_minute=0.3")
    assert [faults.stretch(first_tokens=9, since_s=s) for s in (0, 60, 600)] == pytest.approx([1, 1.3, 4])


def test_13_arguments_of_tool_calls_are_no_json(sim: Sim) -> None:
    def arguments() -> str:
        heard = sim.stream(CASE, tools=[{"type": "function"}])
        calls = [call for delta in heard.deltas for call in delta.get("tool_calls", ())]
        assert heard.finish_reason == "tool_calls"
        return "".join(call["function"].get("arguments", "") for call in calls)

    assert json.loads(arguments()) == {"query": "KrovozleyDB latest version"}
    sim.plant(bad_tool_json={})
    with pytest.raises(ValueError, match=r"Expecting|delimiter|Unterminated"):
        json.loads(arguments())


def test_14_beyond_so_many_in_flight_all_are_refused(sim: Sim) -> None:
    sim.plant(refuses_load={"in_flight": 2, "status": 429})
    with ThreadPoolExecutor(6) as pool:
        statuses = [heard.status for heard in pool.map(lambda _: sim.stream(max_tokens=60, ignore_eos=True), range(6))]
    assert statuses.count(200) >= 2 and statuses.count(429) >= 2


def test_15_the_output_is_shorter_than_was_asked(sim: Sim) -> None:
    sim.plant(short_output={"share": 0.5})
    heard = sim.stream(**FIXED)
    assert heard.usage is not None and heard.usage["completion_tokens"] == 6
    assert heard.finish_reason == "stop"


def test_16_reasoning_comes_before_the_content(sim: Sim) -> None:
    sim.plant(reasoning={"tokens": 5, "key": "reasoning_content"})
    heard = sim.stream(max_tokens=12)
    kinds = [key for delta in heard.deltas for key in ("reasoning_content", "content") if delta.get(key)]
    assert kinds == ["reasoning_content"] * 5 + ["content"] * 7
    assert heard.usage is not None and heard.usage["completion_tokens"] == 12


def test_17_one_long_gap_in_mid_stream(sim: Sim) -> None:
    sim.plant(stalls={"ratio": 1, "ms": 300})
    sim.stream(**FIXED)
    stamps = [at for at, what, *_ in sim.requests()[-1]["sent"] if what == "tokens"]
    gaps = [(b - a) / 1e6 for a, b in pairwise(stamps)]
    assert max(gaps) >= 300 and sorted(gaps)[-2] < 200
    assert gaps.index(max(gaps)) == 5  # after 6 of 12 tokens


def test_18_the_client_gets_less_cpu(sim: Sim) -> None:
    server = psutil.Process(sim.process.pid)
    sim.plant(client_starved={"processes": 1, "seconds": 30})
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        burners = [child for child in server.children(recursive=True) if child.cpu_times().user > 0.5]
        if burners:
            break
        time.sleep(0.1)
    assert burners
    sim.plant()
    assert not [child for child in burners if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]


def test_19_a_clean_end_that_is_none(sim: Sim) -> None:
    sim.plant(clean_end={"ratio": 1})
    heard = sim.stream(**FIXED)
    assert heard.error is None and heard.content
    assert (heard.finish_reason, heard.usage, heard.is_done) == (None, None, False)


def test_20_the_role_comes_long_before_the_content(sim: Sim) -> None:
    sim.plant(early_role={"ms": 300})
    heard = sim.stream(**FIXED)
    assert heard.deltas[0] == {"role": "assistant", "content": ""}
    assert sum("role" in delta for delta in heard.deltas) == 1
    assert (heard.at_ns[1] - heard.at_ns[0]) / 1e6 >= 290
    sent = sim.requests()[-1]["sent"]
    assert [what for _, what, *_ in sent[:2]] == ["role", "tokens"] and (sent[1][0] - sent[0][0]) / 1e6 >= 300


def test_a_share_strikes_exactly_that_share() -> None:
    faults = Faults.parsed("stalls:ratio=0.1,clean_end:ratio=0.25")
    struck = [faults.strikes(number) for number in range(1, 101)]
    assert sum("stalls" in one for one in struck) == 10
    assert sum("clean_end" in one for one in struck) == 25


def test_text_and_table_are_the_same_thing() -> None:
    faults = Faults.parsed("http_503:ratio=0.5, stalls:ms=800")
    assert faults.planted == {"http_503": {"ratio": 0.5}, "stalls": {"ratio": 0.1, "ms": 800}}
    assert Faults.parsed(faults.text()) == faults


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("http_500", "no 'http_500'; known: flag_ignored, "),
        ("http_503:share=1", "http_503: no parameter 'share'; known: ratio"),
        ("warm_cache:x=1", "warm_cache: no parameter 'x'; known: none"),
        ("http_503:0.1", "http_503: '0.1' must be parameter=value"),
    ],
)
def test_a_wrong_fault_is_answered_with_the_known_ones(text: str, words: str) -> None:
    with pytest.raises(InvalidDocument, match=words):
        Faults.parsed(text)


def test_what_can_only_be_planted_at_the_start_is_refused_later(sim: Sim) -> None:
    answer = sim.client.post("/sim/faults", json={"other_precision": {}})
    assert answer.status_code == 400 and "only SIM_FAULTS at the start" in answer.text
    assert sim.client.post("/sim/faults", json={"nonsense": {}}).status_code == 400
    assert sim.client.get("/sim/faults").json()["planted"] == {}
