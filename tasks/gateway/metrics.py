"""What the gateway counts, in its own registry. docs/gateway.md lists every name; a test compares the two.

The label `status` is the outcome: the HTTP status that the client got, except that an answer cut short is not a 200.
499 is a client that left, 502 and 504 an upstream that died or fell silent, in the middle of an answer too. `backend`
is the backend's kind, so that a new port for every run does not make a new series.
"""

from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

NOBODY = ("unknown", "none")  # technique and backend of a request that could not be routed
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_ROUTE = ("technique", "backend")
_OUTCOME = (*_ROUTE, "status")


@dataclass(frozen=True)
class Metrics:
    registry: CollectorRegistry
    requests: Counter
    seconds: Histogram
    ttfb: Histogram
    in_flight: Gauge
    input_tokens: Counter
    output_tokens: Counter
    upstream_errors: Counter
    log_errors: Counter


def create() -> Metrics:
    """Fresh metrics in a fresh registry: two gateways in one process do not share counts."""
    disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series per series, that nobody reads
    own = CollectorRegistry()
    name = "armwise_gateway_"
    return Metrics(
        registry=own,
        requests=Counter(f"{name}requests", "Chat completions that ended, by outcome", _OUTCOME, registry=own),
        seconds=Histogram(
            f"{name}request_seconds",
            "From the request's head to the answer's end",
            _OUTCOME,
            registry=own,
            buckets=SECONDS,
        ),
        ttfb=Histogram(
            f"{name}ttfb_seconds",
            "From the request's head to the answer's first body byte",
            _OUTCOME,
            registry=own,
            buckets=SECONDS,
        ),
        in_flight=Gauge(f"{name}in_flight", "Chat completions not ended yet", _ROUTE, registry=own),
        input_tokens=Counter(f"{name}input_tokens", "Prompt tokens by the server's usage", _ROUTE, registry=own),
        output_tokens=Counter(f"{name}output_tokens", "Completion tokens by the server's usage", _ROUTE, registry=own),
        upstream_errors=Counter(
            f"{name}upstream_errors", "Backends that failed, by kind of failure", (*_ROUTE, "kind"), registry=own
        ),
        log_errors=Counter(f"{name}log_errors", "Log lines that could not be written", registry=own),
    )
