"""A model of vLLM's V1 scheduler: which tokens of which requests are computed in one step, and how long it takes.

Pure: no clock, no socket, no randomness but from the seed. `begin(now_s)` makes a batch and says its duration;
`complete(batch)` is called when that time is over and says which requests got tokens. As in vLLM, and tested so:

- A request is a number of tokens to compute. Prompt and decode are no two phases: a step computes for each running
  request what it lacks, within one budget of max_num_batched_tokens, running ones first, in order of arrival.
- Waiting requests are taken in order of arrival while max_num_seqs, budget and blocks allow; the first that does not
  fit ends it, so nobody overtakes. Without chunked prefill a prompt that exceeds the rest of the budget waits.
- If a running request gets no block, the youngest running one is preempted: its blocks are freed and it goes back to
  the head of the queue, to be computed anew (its prefix may still be in the cache). In that step nobody is admitted.
- A prompt found in the prefix cache is computed from its last block on; at least one token is always computed.
- With speculation, a decoding request computes its draft tokens beside its own; from the first to the last they are
  accepted with `acceptance`, independently, until the first refusal. One step so yields 1 to draft + 1 tokens. The
  draws depend on the seed and the request's key alone: an arm that schedules otherwise accepts the same tokens.

Approximate: no partial block is shared, draft tokens take blocks as real ones do, sampling takes no time of its own.
"""

import random
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from tasks.engines.sim.blocks import Blocks, Pool


@dataclass(frozen=True)
class Limits:
    """What the scheduler runs by. Tokens and requests; `draft_tokens` 0 is no speculation."""

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    block_size: int = 16
    blocks: int = 4096
    prefix_caching: bool = True
    chunked_prefill: bool = True
    draft_tokens: int = 0
    acceptance: float = 0.0
    seed: int = 0


@dataclass(slots=True, eq=False)
class Request:
    """`prompt` and `output` are numbers of tokens; `hashes` those of its full blocks, output included, or fewer."""

    id: str
    prompt: int
    output: int
    hashes: tuple[Hashable, ...] = ()
    arrived_s: float = 0.0
    key: str = ""  # seeds its draws; the id if empty
    not_before_s: float = 0.0  # planted: it is passed over until then
    computed: int = 0
    generated: int = 0
    cached: int | None = None  # prompt tokens found in the cache when first scheduled
    first_scheduled_s: float | None = None
    preemptions: int = 0
    hashed: int = 0  # blocks made known
    blocks: Blocks = field(default_factory=list)
    draws: random.Random | None = None
    is_gone: bool = False

    @property
    def known(self) -> int:
        """Tokens that exist: the prompt and what was generated."""
        return self.prompt + self.generated


@dataclass(slots=True)
class Batch:
    """One step. `items`: request, its tokens, how many of them are drafts. `context`: the requests' tokens, summed."""

    items: list[tuple[Request, int, int]]
    tokens: int = 0
    context: int = 0
    pairs: int = 0  # of a computed token and one it attends to
    drafts: int = 0  # the most draft tokens of one request
    began_s: float = 0.0
    duration_s: float = 0.0


@dataclass
class Counts:
    """Counters of the engine's life, in vLLM's sense."""

    prompt: int = 0
    cached: int = 0
    generation: int = 0
    queries: int = 0
    hits: int = 0
    preemptions: int = 0
    drafts: int = 0
    draft_tokens: int = 0
    accepted: int = 0
    accepted_at: list[int] = field(default_factory=list)  # by position of the draft token
    steps: int = 0
    computed: int = 0


Gain = tuple[Request, int, bool]  # request, tokens it got, whether it is finished
Duration = Callable[[Batch], float]


class Scheduler:
    """`duration` gives the seconds of a batch. `is_warm` is planted: every full block of a prompt counts as cached."""

    def __init__(self, limits: Limits, duration: Duration) -> None:
        self.limits, self.duration = limits, duration
        self.pool = Pool(limits.blocks, limits.block_size)
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.counts = Counts(accepted_at=[0] * limits.draft_tokens)
        self.is_warm = False

    def add(self, request: Request) -> None:
        """Put at the end of the queue. Raises ValueError for a request that could never be scheduled."""
        most, needed = self.limits.max_num_batched_tokens, self.pool.needed(request.prompt + request.output)
        if needed > self.pool.total:
            raise ValueError(f"{request.id}: needs {needed} blocks, and the pool has {self.pool.total}")
        if request.prompt < 1 or request.output < 1:
            raise ValueError(f"{request.id}: prompt and output must hold at least one token")
        if not self.limits.chunked_prefill and request.prompt + request.output > most:
            raise ValueError(f"{request.id}: has more tokens than the {most} of a batch, and prefill is not split")
        self.waiting.append(request)

    def abort(self, request: Request) -> None:
        """Drop a request wherever it is; its blocks are free at once. Dropping it twice is fine."""
        if request.is_gone:
            return
        request.is_gone = True
        if request in self.running:
            self.running.remove(request)
        elif request in self.waiting:
            self.waiting.remove(request)
        self._free(request)

    def begin(self, now_s: float) -> Batch | None:
        """The next step's batch; None if there is nothing to compute at this time."""
        batch = Batch([], began_s=now_s)
        if not self._continue_running(batch, now_s):
            self._admit(batch, now_s)
        if not batch.items:
            return None
        self.counts.steps += 1
        self.counts.computed += batch.tokens
        batch.duration_s = self.duration(batch)
        return batch

    def complete(self, batch: Batch) -> list[Gain]:
        """What the step brought, in the order of the batch."""
        gains = []
        for request, tokens, drafts in batch.items:
            if request.is_gone:
                continue
            if request.computed + tokens - drafts < request.known:
                request.computed += tokens
                continue
            gained = 1 + (self._accepted(request, drafts) if drafts else 0)
            request.computed = request.known + gained - 1
            request.generated += gained
            self.counts.generation += gained
            is_finished = request.generated >= request.output
            self._remember(request, request.computed)
            if is_finished:
                request.is_gone = True
                self.running.remove(request)
                self._free(request)
            gains.append((request, gained, is_finished))
        return gains

    def next_start_s(self) -> float | None:
        """When the earliest request that is held back may go on; None if none is held back."""
        held = [max(r.not_before_s, r.arrived_s) for r in (*self.running, *self.waiting)]
        return min(held, default=None)

    def _continue_running(self, batch: Batch, now_s: float) -> bool:
        """Schedule running requests. Whether one was preempted."""
        limits, size = self.limits, self.limits.block_size
        running, is_preempted, place = self.running, False, 0
        while place < len(running) and batch.tokens < limits.max_num_batched_tokens:
            request = running[place]
            if request.not_before_s > now_s:
                place += 1
                continue
            lacks, drafts = request.prompt + request.generated - request.computed, 0
            if lacks == 1 and limits.draft_tokens:
                drafts = min(limits.draft_tokens, request.output - request.generated - 1)
            tokens = min(lacks + drafts, limits.max_num_batched_tokens - batch.tokens)
            drafts = max(0, tokens - lacks)
            if request.computed + tokens > len(request.blocks) * size:
                is_there, was_preempted = self._grow(request, request.computed + tokens)
                is_preempted |= was_preempted
                if not is_there:
                    break
            self._put(batch, request, tokens, drafts)
            place += 1
        return is_preempted

    def _grow(self, request: Request, tokens: int) -> tuple[bool, bool]:
        """Give a running request room for its tokens. Whether it has it, and whether anyone was preempted for it."""
        is_preempted = False
        while True:
            fresh = self.pool.take([], self.pool.needed(tokens) - len(request.blocks))
            if fresh is not None:
                request.blocks += fresh
                return True, is_preempted
            victim = self.running.pop()
            self._preempt(victim)
            is_preempted = True
            if victim is request:
                return False, True

    def _preempt(self, victim: Request) -> None:
        self._free(victim)
        victim.computed = victim.hashed = 0
        victim.preemptions += 1
        self.counts.preemptions += 1
        self.waiting.appendleft(victim)

    def _admit(self, batch: Batch, now_s: float) -> None:
        limits = self.limits
        while self.waiting and len(self.running) < limits.max_num_seqs:
            budget = limits.max_num_batched_tokens - batch.tokens
            request = self.waiting[0]
            if budget < 1 or request.arrived_s > now_s or request.not_before_s > now_s:
                return
            hits = self._hits(request)
            cached = max(len(hits) * limits.block_size, self._warm_tokens(request))
            lacks = request.known - cached
            if lacks > budget and not limits.chunked_prefill:
                return
            tokens = min(lacks, budget)
            blocks = self.pool.take(hits, self.pool.needed(cached + tokens) - len(hits))
            if blocks is None:
                return
            self.waiting.popleft()
            self._start(request, blocks, cached, now_s)
            self._put(batch, request, tokens, 0)

    def _hits(self, request: Request) -> Blocks:
        if not self.limits.prefix_caching:
            return []
        return self.pool.match(request.hashes, (request.known - 1) // self.limits.block_size)

    def _warm_tokens(self, request: Request) -> int:
        size = self.limits.block_size
        return (request.prompt - 1) // size * size if self.is_warm and self.limits.prefix_caching else 0

    def _start(self, request: Request, blocks: Blocks, cached: int, now_s: float) -> None:
        request.blocks, request.computed = blocks, cached
        request.hashed = cached // self.limits.block_size
        self.running.append(request)
        if request.first_scheduled_s is None:
            request.first_scheduled_s, request.cached = now_s, cached
            counts = self.counts
            counts.prompt += request.prompt
            counts.cached += cached
            counts.queries += request.prompt if self.limits.prefix_caching else 0
            counts.hits += cached

    def _put(self, batch: Batch, request: Request, tokens: int, drafts: int) -> None:
        batch.items.append((request, tokens, drafts))
        batch.tokens += tokens
        batch.context += request.computed + tokens
        batch.pairs += tokens * (request.computed + tokens)
        if drafts > batch.drafts:
            batch.drafts = drafts
        self._remember(request, request.computed + tokens - drafts)

    def _remember(self, request: Request, tokens: int) -> None:
        """Make the blocks known that so many tokens fill."""
        full = min(tokens // self.limits.block_size, len(request.hashes), len(request.blocks))
        if self.limits.prefix_caching:
            for number in range(request.hashed, full):
                self.pool.remember(request.blocks[number], request.hashes[number])
        request.hashed = max(request.hashed, full)

    def _accepted(self, request: Request, drafts: int) -> int:
        if request.draws is None:
            request.draws = random.Random(f"{self.limits.seed}/{request.key or request.id}")
        counts, accepted = self.counts, 0
        counts.drafts += 1
        counts.draft_tokens += drafts
        while accepted < drafts and request.draws.random() < self.limits.acceptance:
            counts.accepted_at[accepted] += 1
            accepted += 1
        counts.accepted += accepted
        return accepted

    def _free(self, request: Request) -> None:
        self.pool.give_back(request.blocks)
        request.blocks = []
