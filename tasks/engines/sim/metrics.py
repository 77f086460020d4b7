"""/metrics in vLLM's own words. Names and labels are held against samples of real servers in tests/goldens.

Histograms have one bucket: what this project reads of them is count and sum.
"""

import time
from collections.abc import Iterator

from tasks.engines.sim import flags
from tasks.engines.sim.engine import Engine

HISTOGRAMS = (
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "request_time_per_output_token_seconds",
    "e2e_request_latency_seconds",
    "request_queue_time_seconds",
    "request_inference_time_seconds",
    "request_prefill_time_seconds",
    "request_decode_time_seconds",
    "request_prompt_tokens",
    "request_generation_tokens",
    "request_params_max_tokens",
)
Labels = dict[str, str]
Family = tuple[str, str, list[tuple[str, Labels, float]]]  # name, kind, samples: suffix, labels, value


def text(engine: Engine) -> str:
    """The body of /metrics."""
    lines = [
        "# TYPE process_start_time_seconds gauge",
        f"process_start_time_seconds {engine.started_at}",
        "# TYPE process_cpu_seconds_total counter",
        f"process_cpu_seconds_total {time.process_time()}",
    ]
    own = {"engine": "0", "model_name": engine.setup.served_as}
    for name, kind, samples in _families(engine):
        lines.append(f"# TYPE vllm:{name} {kind}")
        lines += [f"vllm:{name}{suffix}{_labels(own | more)} {float(value)}" for suffix, more, value in samples]
    return "\n".join([*lines, *_config_info(engine), ""])


def _families(engine: Engine) -> Iterator[Family]:
    counts, scheduler = engine.scheduler.counts, engine.scheduler
    yield from _gauges(engine)
    totals = {
        "prefix_cache_queries_total": counts.queries,
        "prefix_cache_hits_total": counts.hits,
        "num_preemptions_total": counts.preemptions,
        "prompt_tokens_total": counts.prompt,
        "prompt_tokens_cached_total": counts.cached,
        "generation_tokens_total": counts.generation,
    }
    if scheduler.limits.draft_tokens:
        totals |= {
            "spec_decode_num_drafts_total": counts.drafts,
            "spec_decode_num_draft_tokens_total": counts.draft_tokens,
            "spec_decode_num_accepted_tokens_total": counts.accepted,
        }
        by_place: list[tuple[str, Labels, float]] = [
            ("", {"position": str(place)}, count) for place, count in enumerate(counts.accepted_at)
        ]
        yield "spec_decode_num_accepted_tokens_per_pos_total", "counter", by_place
    for name, value in totals.items():
        yield name, "counter", [("", {}, value)]
    reasons = engine.seen.finished.items()
    yield "request_success_total", "counter", [("", {"finished_reason": reason}, n) for reason, n in reasons]
    yield "iteration_tokens_total", "histogram", _histogram(counts.steps, counts.computed)
    for name in HISTOGRAMS:
        yield name, "histogram", _histogram(*engine.seen.sums.get(name, (0, 0.0)))


def _gauges(engine: Engine) -> Iterator[Family]:
    scheduler = engine.scheduler
    yield "num_requests_running", "gauge", [("", {}, len(scheduler.running))]
    yield "num_requests_waiting", "gauge", [("", {}, len(scheduler.waiting))]
    yield "kv_cache_usage_perc", "gauge", [("", {}, scheduler.pool.usage)]


def _histogram(count: float, total: float) -> list[tuple[str, Labels, float]]:
    return [("_bucket", {"le": "+Inf"}, count), ("_count", {}, count), ("_sum", {}, total)]


def _config_info(engine: Engine) -> list[str]:
    shown = {key: str(value) for key, value in flags.shown(engine.setup)["cache_config"].items()}
    return ["# TYPE vllm:cache_config_info gauge", f"vllm:cache_config_info{_labels(shown | {'engine': '0'})} 1.0"]


def _labels(labels: Labels) -> str:
    inside = ",".join(f'{name}="{value}"' for name, value in sorted(labels.items()))
    return f"{{{inside}}}"
