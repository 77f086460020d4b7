"""The sim's scheduler: what is conserved, who goes first, and a queue whose waits are known from theory."""

import random
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.engines.sim.play import play
from tasks.engines.sim.scheduler import Batch, Limits, Request, Scheduler

STEP_S = 0.01
SMALL = Limits(max_num_seqs=4, max_num_batched_tokens=64, block_size=4, blocks=32)


def fixed(_batch: Batch) -> float:
    return STEP_S


def shared(name: str, prompt: int, output: int, prefix: int, size: int = 4, **more: float) -> Request:
    """A request whose first `prefix` blocks are those of every other one."""
    full = (prompt + output) // size
    hashes = tuple("common" * (i < prefix) or f"{name}" for i in range(full))
    return Request(name, prompt, output, tuple((h, i) for i, h in enumerate(hashes)), **more)


def poisson(count: int, load: float, seed: int) -> list[Request]:
    """One-token answers that take one step each: M/D/1 if one is served at a time."""
    rng, now_s, found = random.Random(seed), 0.0, []
    for number in range(count):
        now_s += rng.expovariate(load / STEP_S)
        found.append(Request(str(number), 10, 1, arrived_s=now_s))
    return found


REQUESTS = st.lists(
    st.tuples(st.integers(1, 60), st.integers(1, 30), st.integers(0, 6), st.floats(0, 0.3)), min_size=1, max_size=20
)
LIMITS = st.builds(
    replace,
    st.just(SMALL),
    max_num_seqs=st.integers(1, 8),
    blocks=st.integers(23, 60),
    prefix_caching=st.booleans(),
    chunked_prefill=st.booleans(),
    draft_tokens=st.integers(0, 4),
    acceptance=st.sampled_from([0.0, 0.5, 1.0]),
)


@settings(max_examples=150, deadline=None)
@given(REQUESTS, LIMITS)
def test_tokens_and_blocks_are_conserved_and_everybody_is_served(drawn: list, limits: Limits) -> None:
    limits = replace(limits, max_num_batched_tokens=64 if limits.chunked_prefill else 96)
    scheduler = Scheduler(limits, fixed)
    requests = [shared(str(i), *row[:3]) for i, row in enumerate(drawn)]
    for request in requests:
        scheduler.add(request)
    got = dict.fromkeys((request.id for request in requests), 0)
    ended, pool = set(), scheduler.pool
    for step in range(5_000):
        batch = scheduler.begin(step * STEP_S)
        if batch is None:
            break
        held = {block for request in scheduler.running for block in request.blocks}
        assert len(held) + len(pool.free) == pool.total
        assert held.isdisjoint(pool.free)
        assert batch.tokens == sum(tokens for _, tokens, _ in batch.items) <= limits.max_num_batched_tokens
        assert len(scheduler.running) <= limits.max_num_seqs
        for request, tokens, is_finished in scheduler.complete(batch):
            got[request.id] += tokens
            assert (got[request.id] == request.output) == is_finished
            ended |= {request.id} if is_finished else set()
    assert got == {request.id: request.output for request in requests}
    assert len(ended) == len(requests) and not scheduler.running and not scheduler.waiting
    assert len(pool.free) == pool.total and not any(pool.users)
    assert scheduler.counts.generation == sum(request.output for request in requests)
    assert scheduler.counts.prompt == sum(request.prompt for request in requests)


def test_first_come_first_scheduled_however_long_the_prompts() -> None:
    rng = random.Random(3)
    requests = [Request(str(i), rng.randint(1, 90), rng.randint(1, 20), arrived_s=i * 0.004) for i in range(60)]
    play(Scheduler(SMALL, fixed), requests)
    starts = [request.first_scheduled_s for request in requests]
    assert None not in starts and starts == sorted(starts)


def test_a_huge_prompt_is_not_starved_by_small_ones_that_fit() -> None:
    scheduler = Scheduler(replace(SMALL, max_num_seqs=2), fixed)
    requests = [Request("s0", 8, 20), Request("huge", 100, 4), *(Request(f"s{i}", 8, 4) for i in range(1, 30))]
    served = {one.request.id: one for one in play(scheduler, requests)}
    assert served["huge"].times_s[-1] < served["s1"].times_s[-1]


@pytest.mark.parametrize(
    ("prompt", "prefix", "cached"),
    [
        (40, 10, 36),  # all of it is known, but the last block is computed again: one token at least must be
        (41, 10, 40),
        (41, 7, 28),
        (41, 0, 0),
        (3, 0, 0),
    ],
)
def test_prefix_hits_are_counted_exactly(prompt: int, prefix: int, cached: int) -> None:
    scheduler = Scheduler(SMALL, fixed)
    play(scheduler, [shared("first", 44, 2, 10)])
    play(scheduler, [second := shared("second", prompt, 2, prefix)])
    assert second.cached == cached
    assert (scheduler.counts.queries, scheduler.counts.hits) == (44 + prompt, cached)


def test_an_answer_is_found_when_it_comes_back_in_the_next_prompt() -> None:
    hashes = tuple(range(10))
    scheduler = Scheduler(SMALL, fixed)
    play(scheduler, [Request("turn 1", 8, 12, hashes[:5])])
    play(scheduler, [turn_2 := Request("turn 2", 30, 2, hashes[:8])])
    assert turn_2.cached == 16  # 20 tokens were computed but for the last, so four blocks of four are full


def test_a_reset_forgets_everything_but_not_while_blocks_are_held() -> None:
    scheduler = Scheduler(SMALL, fixed)
    scheduler.add(shared("a", 40, 4, 10))
    batch = scheduler.begin(0)
    assert not scheduler.pool.reset()
    while batch:
        scheduler.complete(batch)
        batch = scheduler.begin(0)
    assert scheduler.pool.reset()
    play(scheduler, [again := shared("b", 40, 4, 10)])
    assert again.cached == 0


def test_least_recently_used_blocks_go_first() -> None:
    scheduler = Scheduler(replace(SMALL, blocks=16), fixed)
    for name in ("old", "new"):
        play(scheduler, [shared(name, 28, 1, 0)])
    play(scheduler, [Request("big", 32, 1)])  # takes the two blocks never used, and those of old
    play(scheduler, [new := shared("new", 28, 1, 0)])
    assert new.cached == 24
    play(scheduler, [old := shared("old", 28, 1, 0)])
    assert old.cached == 0


def test_preemption_frees_blocks_and_loses_no_token() -> None:
    limits = replace(SMALL, blocks=24, prefix_caching=False)
    scheduler = Scheduler(limits, fixed)
    requests = [Request(str(i), 20, 60) for i in range(3)]
    served = play(scheduler, requests)
    assert scheduler.counts.preemptions > 0
    assert requests[0].preemptions == 0 < requests[2].preemptions  # the youngest gives way
    assert [sum(one.tokens) for one in served] == [60, 60, 60]
    assert len(scheduler.pool.free) == 24
    assert scheduler.counts.computed > sum(20 + 60 - 1 for _ in requests)  # what was lost was computed again


def test_the_blocks_of_the_preempted_are_there_for_the_others_at_once() -> None:
    scheduler = Scheduler(replace(SMALL, blocks=11, prefix_caching=False), fixed)
    old, young = Request("old", 20, 16), Request("young", 20, 16)
    scheduler.add(old)
    scheduler.add(young)
    while not young.preemptions:
        scheduler.complete(scheduler.begin(0) or Batch([]))
    assert young.blocks == [] and list(scheduler.waiting) == [young]
    assert len(scheduler.pool.free) == 11 - len(old.blocks)


@pytest.mark.parametrize(("chunked", "parts"), [(True, [50, 14, 36]), (False, [50, 50])])
def test_prefill_is_split_only_if_it_may_be(chunked: bool, parts: list[int]) -> None:
    scheduler = Scheduler(replace(SMALL, chunked_prefill=chunked, prefix_caching=False), fixed)
    for name in "ab":
        scheduler.add(Request(name, 50, 1))
    seen = []
    while batch := scheduler.begin(0):
        seen += [tokens for _, tokens, _ in batch.items]
        scheduler.complete(batch)
    assert seen == parts


def test_decodes_go_before_prefill_and_are_never_crowded_out() -> None:
    scheduler = Scheduler(SMALL, fixed)
    scheduler.add(talks := Request("talks", 4, 50))
    scheduler.complete(scheduler.begin(0) or Batch([]))
    scheduler.add(Request("long", 100, 4))
    for tokens in (64, 38):
        batch = scheduler.begin(0)
        assert batch is not None and batch.items[0] == (talks, 1, 0) and batch.tokens == tokens
        scheduler.complete(batch)


def trace(limits: Limits, seed: int = 5) -> list:
    rng, now_s, requests = random.Random(seed), 0.0, []
    for number in range(60):
        now_s += rng.expovariate(30)
        requests.append(shared(str(number), rng.randint(5, 60), rng.randint(1, 25), rng.randint(0, 5), arrived_s=now_s))
    served = play(Scheduler(limits, lambda batch: 0.002 + 1e-4 * batch.tokens), requests)
    return [(one.request.id, one.request.cached, one.times_s, one.tokens) for one in served]


def test_the_same_seed_gives_the_same_trace_and_another_does_not() -> None:
    limits = replace(SMALL, draft_tokens=3, acceptance=0.5, seed=1)
    assert trace(limits) == trace(limits)
    assert trace(limits) != trace(replace(limits, seed=2))


def test_arms_that_schedule_otherwise_accept_the_same_tokens() -> None:
    limits = replace(SMALL, draft_tokens=3, acceptance=0.5)
    one_by_one, together = trace(replace(limits, max_num_seqs=1)), trace(limits)
    assert [row[3] for row in one_by_one] == [row[3] for row in together]
    assert [row[2] for row in one_by_one] != [row[2] for row in together]


def test_speculation_yields_what_its_acceptance_says() -> None:
    scheduler = Scheduler(replace(SMALL, draft_tokens=4, acceptance=0.7, blocks=8_000), fixed)
    served = play(scheduler, [Request("a", 4, 20_000)])
    expected = sum(0.7**k for k in range(5))
    assert sum(served[0].tokens) / len(served[0].tokens) == pytest.approx(expected, rel=0.03)
    counts = scheduler.counts
    assert counts.generation == counts.drafts + counts.accepted + 1  # the first token came without drafts
    assert sum(counts.accepted_at) == counts.accepted
    assert counts.accepted_at == sorted(counts.accepted_at, reverse=True)


@pytest.mark.parametrize(("load", "within"), [(0.5, 0.12), (0.8, 0.24)])
def test_waits_of_one_seat_are_those_of_the_theory(load: float, within: float) -> None:
    """M/D/1. Each wait is that of Lindley's recursion; their mean is load x service / (2 (1 - load)), by the formula of
    Pollaczek and Khinchin, within three standard errors of so many correlated waits (4 and 8 percent over 16 seeds)."""
    requests = poisson(12_000, load, seed=11)
    served = play(Scheduler(replace(SMALL, max_num_seqs=1), fixed), requests)
    waits = [one.waited_s for one in served]
    wait = 0.0
    for (earlier, later), found in zip(pairwise(requests), waits[1:], strict=True):
        wait = max(0.0, wait + STEP_S - (later.arrived_s - earlier.arrived_s))
        assert found == pytest.approx(wait, abs=1e-6)
    assert sum(waits) / len(waits) == pytest.approx(load * STEP_S / 2 / (1 - load), rel=within)


def test_twice_the_capacity_waits_longer_and_longer() -> None:
    requests = poisson(2_000, 2.0, seed=1)
    waits = [one.waited_s for one in play(Scheduler(replace(SMALL, max_num_seqs=1), fixed), requests)]
    assert waits[-1] == pytest.approx(1_000 * STEP_S, rel=0.1)


def test_a_request_that_can_never_run_is_refused_in_words() -> None:
    with pytest.raises(ValueError, match="needs 50 blocks, and the pool has 32"):
        Scheduler(SMALL, fixed).add(Request("a", 190, 10))
    with pytest.raises(ValueError, match="prefill is not split"):
        Scheduler(replace(SMALL, chunked_prefill=False), fixed).add(Request("a", 64, 1))
    with pytest.raises(ValueError, match="at least one token"):
        Scheduler(SMALL, fixed).add(Request("a", 1, 0))


def test_an_aborted_request_leaves_nothing_behind_wherever_it_was() -> None:
    scheduler = Scheduler(replace(SMALL, max_num_seqs=1), fixed)
    runs, waits = Request("runs", 20, 20), Request("waits", 20, 20)
    scheduler.add(runs)
    scheduler.add(waits)
    batch = scheduler.begin(0)
    for request in (runs, waits, waits):
        scheduler.abort(request)
    assert scheduler.complete(batch or Batch([])) == []
    assert len(scheduler.pool.free) == 32 and scheduler.begin(0) is None
