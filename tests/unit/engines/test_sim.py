"""The sim as an engine: it is read back as vLLM is, says what vLLM says, and records what it really sent."""

import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from sim_server import CASE, MODEL, TOOLS, Sim, body, serving

from tasks import arm as arms
from tasks.document import InvalidDocument
from tasks.engines import sim as engine
from tasks.engines.sim import flags, record
from tasks.engines.sim.play import play
from tasks.engines.sim.scheduler import Limits, Request, Scheduler

pytestmark = pytest.mark.services  # an engine process

GOLDENS = sorted((Path(__file__).resolve().parents[2] / "goldens").glob("*/metrics_*.txt"))
ARMS = [name for name in arms.names() if arms.load(name).engine == "sim"]
SPECULATIVE = ("--speculative-config", '{"method":"ngram","num_speculative_tokens":4}')


@pytest.fixture(scope="module")
def sim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sim]:
    with serving(tmp_path_factory.mktemp("sim"), *TOOLS, *SPECULATIVE, "--max-num-seqs", "64") as found:
        yield found


def names_and_labels(text: str) -> dict[str, set[str]]:
    """Metric -> its label names, buckets left out."""
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {s.name: set(s.labels) for s in samples if not s.name.endswith(("_bucket", "_created"))}


def test_its_metrics_are_those_of_real_servers(sim: Sim) -> None:
    ours = names_and_labels(sim.client.get("/metrics").text)
    theirs: dict[str, set[str]] = {}
    for path in GOLDENS:
        theirs |= names_and_labels(path.read_text())
    assert set(engine.METRICS.values()) <= set(ours) <= set(theirs)
    same = [name for name in ours if name != "vllm:cache_config_info"]
    assert {name: ours[name] for name in same} == {name: theirs[name] for name in same}
    assert ours["vllm:cache_config_info"] <= theirs["vllm:cache_config_info"]


def test_there_are_sim_arms() -> None:
    assert {"sim-baseline", "sim-no-chunked-prefill", "sim-ngram", "sim-fp8", "sim-max-num-seqs-2"} <= set(ARMS)


@pytest.mark.parametrize("name", ARMS)
def test_every_sim_arm_runs_as_it_is_written(name: str, tmp_path: Path) -> None:
    arm = arms.load(name)
    words = engine.argv(arm, host="127.0.0.1", port=1)
    address = words.index("--host")
    with serving(tmp_path, *words[2:address], *words[address + 4 :], **arm.env) as sim:
        found = engine.effective(sim.url, None, sim.log)
    assert found["source"] == "server_info"
    assert set(found["versions"]) == {"sim"}
    assert found["weight_bytes"] > 2e9 and found["kv_pool_tokens"] > 1e6
    assert engine.compare(arm, found) == ([], [])


def test_a_flag_that_nothing_is_modelled_by_is_unverified_though_it_is_shown(tmp_path: Path) -> None:
    arm = arms.load("sim-baseline")
    arm = arm.model_copy(update={"flags": {"max-num-seqs": 9, "enforce-eager": True}, "env": {}})
    with serving(tmp_path, "--max-num-seqs", "9", "--enforce-eager", "--served-model-name", "sim") as sim:
        found = engine.effective(sim.url, None, sim.log)
        log = sim.log.read_text()
    differences, unverified = engine.compare(arm, found)
    assert differences == []
    assert [(row["flag"], row["why"]) for row in unverified] == [("flags.enforce-eager", engine.UNMODELLED)]
    assert "--enforce-eager: the sim takes it and models nothing by it" in log


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--max-num-batched-tokens", "512", "--no-enable-chunked-prefill"], "is smaller than max_model_len .8192."),
        (["--max-num-batched-tokens", "8", "--max-num-seqs", "9"], "must be greater than or equal to max_num_seqs .9."),
        (["--num-gpu-blocks-override", "10"], "the KV cache holds 160 tokens, fewer than max_model_len .8192."),
        (["--max-num-seq", "9"], "unrecognized arguments: --max-num-seq"),
        (["--quantization", "magic"], "the sim does not model 'magic'; it models: fp8"),
        (["--model", "/nowhere"], "/nowhere: has neither a model.yaml nor a readable config.json"),
    ],
)
def test_what_contradicts_itself_is_refused_in_words(words: list[str], said: str) -> None:
    with pytest.raises(InvalidDocument, match=said):
        flags.setup(["--model", str(MODEL), "--max-model-len", "8192", *words], {})


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({"SIM_GPU": "h300"}, "SIM_GPU: no 'h300'; known: h200, h100, a100, l4"),
        ({"SIM_STEP_MS": "fast"}, "SIM_STEP_MS: must be a number, 0 or more, found 'fast'"),
        ({"SIM_SPREAD": "4"}, "SIM_SPREAD: needs SIM_STEP_MS"),
        ({"SIM_FAULTS": "nonsense"}, "faults: no 'nonsense'; known: "),
    ],
)
def test_a_bad_variable_is_refused_in_words(env: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidDocument, match=said):
        flags.setup(["--model", str(MODEL)], env)


def test_a_refused_start_ends_the_process_and_says_why(tmp_path: Path) -> None:
    with (
        pytest.raises(AssertionError, match="ValueError: unrecognized arguments: --no-such"),
        serving(tmp_path, "--no-such"),
    ):
        pass


def test_a_case_is_played_call_by_call_and_its_history_is_in_the_cache(sim: Sim) -> None:
    tools = [{"type": "function", "function": {"name": "web_search", "description": "word " * 60}}]
    first = sim.ask(CASE, tools=tools)
    message = first["choices"][0]["message"]
    call = message["tool_calls"][0]
    assert (first["choices"][0]["finish_reason"], call["function"]["name"]) == ("tool_calls", "web_search")
    told = [
        {"role": "user", "content": CASE},
        message,
        {"role": "tool", "content": "8.2.6", "tool_call_id": call["id"]},
    ]
    second = sim.client.post("/v1/chat/completions", json={"model": "m", "tools": tools, "messages": told}).json()
    assert second["choices"][0]["message"]["content"] == "The latest version of KrovozleyDB is 8.2.6."
    before = first["usage"]["prompt_tokens"] + first["usage"]["completion_tokens"]
    cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert before - 16 - 1 <= cached <= before  # prompt and answer of the first step, but for a part of a block


def test_a_salt_keeps_caches_apart_and_a_reset_empties_them(sim: Sim) -> None:
    def cached(**more: Any) -> int:
        return int(sim.ask("word " * 90, max_tokens=1, **more)["usage"]["prompt_tokens_details"]["cached_tokens"])

    assert [cached(), cached(), cached(cache_salt="x"), cached(cache_salt="x")] == [0, 80, 0, 80]
    assert sim.client.post("/reset_prefix_cache").status_code == 200
    assert cached() == 0


def test_counters_are_those_of_the_answers(sim: Sim) -> None:
    names = ("prompt_tokens_total", "generation_tokens_total", "request_success_total", "spec_decode_num_drafts_total")
    before = [sim.metric(f"vllm:{name}") for name in names]
    heard = [sim.stream(f"Say {n}.", max_tokens=30, ignore_eos=True).usage or {} for n in range(3)]
    gained = [sim.metric(f"vllm:{name}") - b for name, b in zip(names, before, strict=True)]
    assert gained[:3] == [sum(u["prompt_tokens"] for u in heard), 90, 3]
    assert 0 < gained[3] < 90


def test_speculation_sends_several_tokens_in_one_chunk(sim: Sim) -> None:
    heard = sim.stream(max_tokens=60, ignore_eos=True)
    parts = [tokens for _, what, tokens, _ in sim.requests()[-1]["sent"] if what == "tokens"]
    assert sum(parts) == 60 and max(parts) > 1
    assert len([d for d in heard.deltas if d.get("content")]) == len(parts)


def test_what_was_recorded_is_what_arrived(sim: Sim) -> None:
    sent_ns = time.monotonic_ns()
    with httpx.Client(base_url=sim.url, headers={"X-Request-Id": "mine/1"}) as client:
        asked = body("Say it.", stream=True, max_tokens=40, ignore_eos=True)
        with client.stream("POST", "/v1/chat/completions", json=asked) as answer:
            got = [(time.monotonic_ns(), piece) for piece in answer.iter_raw()]
    line = next(line for line in sim.requests() if line["id"] == "mine/1")
    assert sent_ns < line["arrived_ns"] < line["sent"][0][0] < got[0][0]
    assert sum(tokens for _, _, tokens, _ in line["sent"]) == line["output"] == 40
    stamps = [at for at, *_ in line["sent"]]
    assert stamps == sorted(stamps) and stamps[-1] < got[-1][0]
    late_ms = [(at - stamps[0]) / 1e6 for at, _ in got[:1]]
    assert late_ms[0] < 100


def test_a_client_that_leaves_is_aborted_at_once(sim: Sim) -> None:
    with sim.client.stream(
        "POST", "/v1/chat/completions", json=body("x", stream=True, max_tokens=4000, ignore_eos=True)
    ):
        assert sim.metric("vllm:num_requests_running") == 1
    deadline = time.monotonic() + 5
    while sim.metric("vllm:num_requests_running") and time.monotonic() < deadline:
        time.sleep(0.01)
    assert sim.metric("vllm:num_requests_running") == 0
    assert sim.requests()[-1]["end"] == "abort" and sim.requests()[-1]["output"] < 4000
    assert sim.metric("vllm:kv_cache_usage_perc") == 0


def test_one_who_leaves_while_waiting_is_aborted_too(tmp_path: Path) -> None:
    with serving(tmp_path, "--max-num-seqs", "1") as sim:
        long = body("x", stream=True, max_tokens=1500, ignore_eos=True)
        with sim.client.stream("POST", "/v1/chat/completions", json=long):
            with httpx.Client(base_url=sim.url) as other, other.stream("POST", "/v1/chat/completions", json=long):
                while not sim.metric("vllm:num_requests_waiting"):
                    time.sleep(0.01)
            time.sleep(0.2)
            assert sim.metric("vllm:num_requests_waiting") == 0
        waited = [line for line in sim.requests() if line["output"] == 0]
    assert [line["end"] for line in waited] == ["abort"]


def test_waiting_is_told_as_it_was(tmp_path: Path) -> None:
    """One seat, steps of 10 ms, answers of 10 tokens: the n-th of a burst starts (n - 1) x 100 ms after the first."""
    with serving(tmp_path, "--max-num-seqs", "1", step_ms=10) as sim, ThreadPoolExecutor(5) as pool:
        list(pool.map(lambda n: sim.ask(f"Say {n}.", max_tokens=10, ignore_eos=True), range(5)))
        waits = sorted(line["waited_s"] + line["arrived_ns"] / 1e9 for line in sim.requests())
        state = sim.client.get("/sim/state").json()
    starts = [wait - waits[0] for wait in waits]
    assert starts == pytest.approx([0, 0.1, 0.2, 0.3, 0.4], abs=0.02 + 0.3 * state["lost"])


def test_the_server_and_the_pure_model_agree_on_every_wait(tmp_path: Path) -> None:
    """The recorded arrivals, played without a clock, wait as long as they did on the server, within two steps."""
    lengths = [5, 15, 6, 1, 12, 8, 20, 3, 9, 11, 4, 7]
    with serving(tmp_path, "--max-num-seqs", "2", "--no-enable-prefix-caching", step_ms=30) as sim:
        with ThreadPoolExecutor(12) as pool:
            for number, length in enumerate(lengths):
                pool.submit(sim.ask, f"Say {number}.", max_tokens=length, ignore_eos=True)
                time.sleep(0.04 * (number % 3))
        lines = sorted(sim.requests(), key=lambda line: line["arrived_ns"])
    first_ns = lines[0]["arrived_ns"]
    arrivals = [
        Request(line["id"], line["prompt"], line["output"], arrived_s=(line["arrived_ns"] - first_ns) / 1e9)
        for line in lines
    ]
    played = play(Scheduler(Limits(max_num_seqs=2, prefix_caching=False), lambda _: 0.03), arrivals)
    waited = [line["waited_s"] for line in lines]
    assert max(waited) > 0.5
    assert waited == pytest.approx([one.waited_s for one in played], abs=0.061)


def test_time_can_run_faster_than_ours(tmp_path: Path) -> None:
    with serving(tmp_path, step_ms=100, SIM_TIME_SCALE="0.02") as sim:
        began = time.monotonic()
        sim.ask(max_tokens=100, ignore_eos=True)
        assert 0.18 < time.monotonic() - began < 3  # 10 s of the model


def test_streams_can_have_phases_of_their_own(tmp_path: Path) -> None:
    with serving(tmp_path, step_ms=50, SIM_SPREAD="5") as sim, ThreadPoolExecutor(5) as pool:
        heard = list(pool.map(lambda n: sim.stream(f"Say {n}.", max_tokens=8, ignore_eos=True), range(5)))
        lines = sim.requests()
    assert all(one.is_done and (one.usage or {})["completion_tokens"] == 8 for one in heard)
    due = {line["number"]: [due for _, what, _, due in line["sent"] if what == "tokens"] for line in lines}
    assert all(b - a == pytest.approx(50e6, abs=1e4) for stamps in due.values() for a, b in pairwise(stamps))
    phases = {number: round(stamps[-1] % 50e6 / 10e6) % 5 for number, stamps in due.items()}
    assert len(set(phases.values())) == 5
    assert all((phases[n + 1] - phases[n]) % 5 == 1 for n in range(1, 5))


def test_the_roofline_paces_it(tmp_path: Path) -> None:
    """301 tokens/s at one stream is what an H200 was measured to do with this model."""
    with serving(tmp_path, step_ms=0, SIM_GPU="h200") as sim:
        sim.stream(max_tokens=200, ignore_eos=True)
        stamps = [at for at, what, *_ in sim.requests()[-1]["sent"] if what == "tokens"]
    assert 199 / ((stamps[-1] - stamps[0]) / 1e9) == pytest.approx(301, rel=0.1)


def test_a_key_is_asked_for_below_v1_and_development_endpoints_only_open_where_told(tmp_path: Path) -> None:
    with serving(tmp_path, VLLM_API_KEY="k", VLLM_SERVER_DEV_MODE="0") as sim:
        assert sim.client.get("/v1/models").status_code == 401
        assert sim.client.post("/v1/chat/completions", json=body("x")).status_code == 401
        good = sim.client.get("/v1/models", headers={"Authorization": "Bearer k"})
        assert good.json()["data"][0]["id"] == "m"
        assert [sim.client.get(path).status_code for path in ("/server_info", "/sim/state", "/sim/faults")] == [404] * 3


@pytest.mark.parametrize(
    ("asked", "status", "words"),
    [
        ({"model": "other"}, 404, "does not exist"),
        ({"messages": []}, 400, "messages: must be a list of at least one message"),
        ({"max_tokens": 0}, 400, "max_tokens: must be a whole number"),
        ({"n": 2}, 400, "n: the sim gives one answer"),
        ({"messages": [{"role": "user", "content": "word " * 9000}]}, 400, "the context 8192"),
    ],
)
def test_a_bad_request_is_answered_in_words(sim: Sim, asked: dict[str, Any], status: int, words: str) -> None:
    answer = (
        sim.ask(status=status, **asked)
        if "messages" not in asked
        else sim.client.post("/v1/chat/completions", json={"model": "m", **asked}).json()
    )
    assert answer["error"]["code"] == status and re.search(words, answer["error"]["message"])


def test_fifty_at_once_all_get_their_tokens(sim: Sim) -> None:
    with ThreadPoolExecutor(50) as pool:
        heard = list(pool.map(lambda n: sim.stream(f"Say {n}.", max_tokens=40, ignore_eos=True), range(50)))
    assert {(one.finish_reason, one.is_done, (one.usage or {})["completion_tokens"]) for one in heard} == {
        ("length", True, 40)
    }


def test_what_is_in_flight_at_a_stop_is_written_down(tmp_path: Path) -> None:
    with serving(tmp_path) as sim:
        threading.Thread(target=lambda: _ignoring(sim), daemon=True).start()
        while not sim.metric("vllm:generation_tokens_total"):
            time.sleep(0.01)
        sim.process.terminate()
        sim.process.wait(timeout=10)
        lines = record.read(sim.record)
    assert [line["what"] for line in lines] == ["start", "faults", "request", "stop"]
    assert 0 < lines[2]["output"] < 4000


def _ignoring(sim: Sim) -> None:
    try:
        sim.stream(max_tokens=4000, ignore_eos=True)
    except httpx.HTTPError:
        return


def test_in_a_process_of_a_run_the_record_is_in_its_folder(tmp_path: Path) -> None:
    with serving(tmp_path, SIM_RECORD="", ARMWISE_RUN_DIR=str(tmp_path)) as sim:
        sim.ask(max_tokens=1)
    assert record.read(tmp_path / "sim.jsonl")[0]["what"] == "start"
