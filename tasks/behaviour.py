"""Does the scheduler do what its configuration shows? What an outside observer can tell, flag by flag.

A configuration that is read back proves what the engine says of itself. vLLM has shown one thing and run another
(vllm-project/vllm#18547), so each flag that leaves a trace is also held against its trace: counters and gauges of
/metrics, scraped once a second, and the rows of the calls.

    max-num-seqs N            belied when more than N ran at once; or when others waited in most samples while always
                              the same M < N ran, the KV cache had room, and all prompts together fit in one step: then
                              nothing but a smaller limit holds them back. Shown when N ran and others waited.
    enable-prefix-caching     on: belied when the engine looked nothing up although it computed prompts, shown by a hit.
                              off: belied by a hit or a cached token, shown when nothing was looked up.
    speculative-config        belied when the engine has no counter of drafts (vLLM has it only with speculation on),
                              shown by a draft. Not asked for: belied by a draft.
    enable-chunked-prefill    on: shown by a prompt that was longer than a whole step may be. Off: leaves no trace here.
    dtype, quantization       by the weight of the weights (tasks/engines/_weights.py), an expectation of its own.

Belied is a broken rule. Unshown is no fault, but where it is the flag that the arm varies, a reader must know: nothing
in the run tells the two arms' schedulers apart.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

Rows = list[dict[str, Any]]
State = Literal["shown", "belied", "unshown"]
FULL = 0.9  # of the KV cache: from here on blocks may be what is lacking
LEAST_SAMPLES = 5  # of a queue, ours: a call that arrived since the last step is seen to wait, but not five times
BY_WEIGHT = ("dtype", "quantization")


@dataclass(frozen=True)
class Observed:
    """One flag and its trace."""

    flag: str
    state: State
    words: str


@dataclass(frozen=True)
class Trace:
    """What was seen of the engine. `series` gives one of its metrics over time, by our name; empty if it has none."""

    flags: dict[str, Any]  # as the arm asks
    series: Callable[[str], list[float]]
    requests: Rows

    def growth(self, name: str) -> float | None:
        found = self.series(name)
        return found[-1] - found[0] if found else None

    def most(self, column: str) -> float:
        return max((row[column] for row in self.requests if row.get(column) is not None), default=0)


def observed(trace: Trace) -> Iterator[Observed]:
    """Of each flag that the arm sets and that leaves a trace, and of speculation always."""
    if not trace.series("generation_tokens_total"):
        return  # the engine shows nothing of itself
    for flag, look in TESTS.items():
        if flag in trace.flags or flag == "speculative-config":
            state, words = look(trace)
            yield Observed(flag, state, words)


def stronger(before: Observed | None, now: Observed) -> Observed:
    """Of two tiers: what one has belied stays belied, what one has shown stays shown; of what neither shows, both."""
    order = ("unshown", "shown", "belied")
    if before is not None and before.state == now.state == "unshown" and before.words != now.words:
        return Observed(now.flag, "unshown", f"{before.words}; {now.words}")
    return now if before is None or order.index(now.state) > order.index(before.state) else before


def unshown(varies: list[str], found: list[Observed], *, is_weighed: bool) -> list[str]:
    """Flags that the arm varies and of which this run shows no trace, in words."""
    by_flag = {one.flag: one for one in found}
    words = []
    for key in varies:
        flag = key.removeprefix("flags.").partition(".")[0]
        if not key.startswith("flags.") or (flag in BY_WEIGHT and is_weighed):
            continue
        one = by_flag.get(flag)
        if one is None:
            words.append(f"{flag}: no test here tells whether the scheduler runs by it")
        elif one.state == "unshown":
            words.append(f"{flag}: {one.words}")
    return words


def _max_num_seqs(trace: Trace) -> tuple[State, str]:
    limit, running = int(trace.flags["max-num-seqs"]), trace.series("requests_running")
    waiting = trace.series("requests_waiting")
    most = int(max(running, default=0))
    if most > limit:
        return "belied", f"{most} ran at once, and {limit} is the limit"
    if held := _held_back(trace, limit):
        return "belied", held
    if most == limit and any(w and r == limit for r, w in zip(running, waiting, strict=False)):
        return "shown", f"{most} ran while others waited"
    return "unshown", f"at most {most} ran at once, so a limit of {limit} never bound"


def _held_back(trace: Trace, limit: int) -> str | None:
    """In words, if requests waited though nothing but a smaller limit can have held them back."""
    samples = list(zip(*(trace.series(n) for n in ("requests_running", "requests_waiting")), strict=False))
    queued = [int(running) for running, waiting in samples if waiting]
    if len(queued) < LEAST_SAMPLES or len(queued) < len(samples) / 2:
        return None
    most, usage = int(max(running for running, _ in samples)), max(trace.series("kv_cache_usage"), default=1.0)
    inside = max(running + waiting for running, waiting in samples)
    batch = trace.flags.get("max-num-batched-tokens")
    if batch is None or inside * trace.most("input_tokens") > batch or usage > FULL:
        return None
    if set(queued) != {most} or most >= limit:
        return None
    return f"others waited in {len(queued)} of {len(samples)} samples while {most} ran, and {limit} may"


def _prefix_caching(trace: Trace) -> tuple[State, str]:
    queries, hits = (trace.growth(f"prefix_cache_{what}_total") for what in ("queries", "hits"))
    cached = sum(row.get("cached_input_tokens") or 0 for row in trace.requests)
    found = f"{int(hits or 0)} tokens hit by its counter, {cached} by usage"
    if not trace.growth("prompt_tokens_total"):
        return "unshown", "no prompt was computed"
    if trace.flags["enable-prefix-caching"]:
        if hits:
            return "shown", found
        return ("unshown", found) if queries else ("belied", "it is on, and nothing was ever looked up in it")
    if hits or cached:
        return "belied", f"it is off, and {found}"
    return ("unshown" if queries else "shown"), found


def _speculation(trace: Trace) -> tuple[State, str]:
    drafts = trace.growth("spec_drafts_total")
    if "speculative-config" not in trace.flags:
        return ("belied", f"not asked for, and {int(drafts)} drafts were made") if drafts else ("shown", "no drafts")
    if drafts is None:
        return "belied", "the engine has no counter of drafts, which it has only with speculation on"
    return ("shown" if drafts else "unshown"), f"{int(drafts)} drafts were made"


def _chunked_prefill(trace: Trace) -> tuple[State, str]:
    batch, is_on = trace.flags.get("max-num-batched-tokens"), trace.flags["enable-chunked-prefill"]
    computed = [row["input_tokens"] - (row.get("cached_input_tokens") or 0) for row in _good(trace.requests)]
    longest = max(computed, default=0)
    if is_on and batch is not None and longest > batch:
        return "shown", f"a prompt of {longest} tokens was computed in steps of at most {batch}"
    if not is_on:
        return "unshown", f"it is off, which leaves no trace (longest prompt computed: {longest} tokens)"
    return "unshown", f"no prompt ({longest} tokens at most) filled a step ({batch or 'of unknown size'})"


def _good(requests: Rows) -> Rows:
    return [row for row in requests if row.get("failure") is None and row.get("input_tokens") is not None]


TESTS: dict[str, Callable[[Trace], tuple[State, str]]] = {
    "max-num-seqs": _max_num_seqs,
    "enable-prefix-caching": _prefix_caching,
    "speculative-config": _speculation,
    "enable-chunked-prefill": _chunked_prefill,
}
