"""What an engine did against what it shows, on traces made by hand."""

import pytest

from tasks.behaviour import Observed, Trace, observed, stronger, unshown

ON = {"enable-prefix-caching": True}
OFF = {"enable-prefix-caching": False}
LIMIT = {"max-num-seqs": 8, "max-num-batched-tokens": 8192}
TOKENS = {"generation_tokens_total": [0, 500], "prompt_tokens_total": [0, 4000]}
HITS = {"prefix_cache_queries_total": [0, 4000], "prefix_cache_hits_total": [10, 3000]}
QUEUE = {"requests_running": [0, 2, 2, 2, 2, 2, 2, 0], "requests_waiting": [0, 2, 2, 1, 2, 2, 2, 0]}
ROOM = {"kv_cache_usage": [0.0, 0.1, 0.2]}
CALLS = [{"input_tokens": 900, "cached_input_tokens": 0, "failure": None} for _ in range(3)]


def state(flag: str, flags: dict, series: dict, requests: list | None = None) -> str:
    trace = Trace(flags, lambda name: (TOKENS | series).get(name, []), CALLS if requests is None else requests)
    return next(one.state for one in observed(trace) if one.flag == flag)


@pytest.mark.parametrize(
    ("series", "wanted"),
    [
        ({"requests_running": [0, 9, 3]}, "belied"),
        ({"requests_running": [0, 8, 3], "requests_waiting": [0, 1, 0]}, "shown"),
        ({"requests_running": [0, 8, 3], "requests_waiting": [0, 0, 0]}, "unshown"),  # it never bound
        ({"requests_running": [0, 4, 3]}, "unshown"),
        (QUEUE | ROOM, "belied"),  # 2 ran, others waited, and 8 may
        (QUEUE | {"kv_cache_usage": [0.1, 0.95]}, "unshown"),  # the cache was full
        (QUEUE, "unshown"),  # nobody knows whether it was
        (ROOM | QUEUE | {"requests_running": [0, 2, 1, 2, 2, 2, 2, 0]}, "unshown"),  # it varies: no limit
        (ROOM | {key: values[:4] + [0] * 20 for key, values in QUEUE.items()}, "unshown"),  # a short queue
    ],
)
def test_max_num_seqs(series: dict, wanted: str) -> None:
    assert state("max-num-seqs", LIMIT, series) == wanted


def test_a_queue_of_prompts_that_fill_a_step_shows_no_limit() -> None:
    """4 in the engine x 3000 tokens are more than one step of 8192."""
    long = [{"input_tokens": 3000, "failure": None}]
    assert state("max-num-seqs", LIMIT, QUEUE | ROOM, long) == "unshown"


@pytest.mark.parametrize(
    ("flags", "series", "wanted"),
    [
        (ON, HITS, "shown"),
        (ON, {"prefix_cache_queries_total": [0, 0], "prefix_cache_hits_total": [0, 0]}, "belied"),
        (ON, {"prefix_cache_queries_total": [0, 4000], "prefix_cache_hits_total": [0, 0]}, "unshown"),
        (OFF, HITS, "belied"),
        (OFF, {"prefix_cache_queries_total": [0, 0], "prefix_cache_hits_total": [0, 0]}, "shown"),
        (ON, {"prompt_tokens_total": [5, 5]}, "unshown"),
    ],
)
def test_prefix_caching(flags: dict, series: dict, wanted: str) -> None:
    assert state("enable-prefix-caching", flags, series) == wanted


def test_a_cached_token_belies_a_cache_that_is_off() -> None:
    calls = [{"input_tokens": 900, "cached_input_tokens": 16, "failure": None}]
    assert state("enable-prefix-caching", OFF, {}, calls) == "belied"


@pytest.mark.parametrize(
    ("flags", "series", "wanted"),
    [
        ({"speculative-config": {"method": "ngram"}}, {"spec_drafts_total": [3, 9]}, "shown"),
        ({"speculative-config": {"method": "ngram"}}, {"spec_drafts_total": [3, 3]}, "unshown"),
        ({"speculative-config": {"method": "ngram"}}, {}, "belied"),
        ({}, {}, "shown"),
        ({}, {"spec_drafts_total": [0, 1]}, "belied"),
    ],
)
def test_speculation(flags: dict, series: dict, wanted: str) -> None:
    assert state("speculative-config", flags, series) == wanted


@pytest.mark.parametrize(
    ("is_on", "batch", "wanted"), [(True, 512, "shown"), (True, 2048, "unshown"), (False, 2048, "unshown")]
)
def test_chunked_prefill(is_on: bool, batch: int, wanted: str) -> None:
    assert (
        state("enable-chunked-prefill", {"enable-chunked-prefill": is_on, "max-num-batched-tokens": batch}, {})
        == wanted
    )


def test_an_engine_that_shows_nothing_is_not_judged() -> None:
    assert list(observed(Trace(LIMIT, lambda _name: [], CALLS))) == []


def test_two_tiers_together() -> None:
    kinds = {state: Observed("x", state, state) for state in ("unshown", "shown", "belied")}
    assert stronger(None, kinds["unshown"]).state == "unshown"
    assert stronger(kinds["unshown"], kinds["shown"]).state == "shown"
    assert stronger(kinds["belied"], kinds["shown"]).state == "belied"


def test_what_neither_tier_shows_is_told_of_both() -> None:
    """The words of short calls alone would hide that the agent tier had long prompts."""
    short, long = (Observed("x", "unshown", f"no prompt ({n} tokens at most)") for n in (964, 10080))
    assert stronger(short, long).words == "no prompt (964 tokens at most); no prompt (10080 tokens at most)"
    assert stronger(short, short).words == short.words


def test_chunked_prefill_off_leaves_no_trace_and_is_not_said_to_lack_a_long_prompt() -> None:
    flags = {"enable-chunked-prefill": False, "max-num-batched-tokens": 500}
    trace = Trace(flags, lambda name: TOKENS.get(name, []), CALLS)
    (told,) = (one for one in observed(trace) if one.flag == "enable-chunked-prefill")
    assert told.state == "unshown"
    assert told.words == "it is off, which leaves no trace (longest prompt computed: 900 tokens)"


def test_a_varied_flag_without_a_trace_is_told() -> None:
    found = [Observed("max-num-seqs", "unshown", "at most 4 ran"), Observed("enable-prefix-caching", "shown", "hits")]
    varies = ["flags.max-num-seqs", "flags.enable-prefix-caching", "flags.block-size", "flags.dtype", "env.X"]
    told = unshown(varies, found, is_weighed=True)
    assert [words.partition(":")[0] for words in told] == ["max-num-seqs", "block-size"]
    assert [words.partition(":")[0] for words in unshown(varies, found, is_weighed=False)][-1] == "dtype"
