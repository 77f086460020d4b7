"""What the gateway counts, in its own registry. docs/gateway.md lists every name; a test compares the two.

The label `status` is the outcome: the HTTP status that the client got, except that an answer cut short is not a 200.
499 is a client that left, 502 and 504 an upstream that died or fell silent, in the middle of an answer too. `backend`
is the backend's kind, so that a new port for every run does not make a new series.

Several workers share one view: with a folder, each writes its values to files there (prometheus_client's multiprocess
mode), and whoever is asked adds all of them up. Counts of a worker that died stay in; what it had in flight does not.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
    multiprocess,
    values,
)

NOBODY = ("unknown", "none")  # technique and backend of a request that could not be routed
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
LAG_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5)
Route = tuple[str, str]
_ROUTE = ("technique", "backend")
_OUTCOME = (*_ROUTE, "status")


@dataclass(frozen=True)
class Outcome:
    """The series of one outcome on one route, found once."""

    requests: Counter
    seconds: Histogram
    ttfb: Histogram


@dataclass(frozen=True)
class Metrics:
    registry: CollectorRegistry
    folder: Path | None
    requests: Counter
    seconds: Histogram
    ttfb: Histogram
    in_flight: Gauge
    input_tokens: Counter
    output_tokens: Counter
    upstream_errors: Counter
    log_errors: Counter
    loop_lag: Histogram
    cpu_seconds: Counter
    workers: Gauge
    worker_deaths: Counter
    outcomes: dict[tuple[Route, int], Outcome] = field(default_factory=dict)

    def outcome(self, route: Route, status: int) -> Outcome:
        found = self.outcomes.get((route, status))
        if found is None:
            labels = (*route, str(status))
            found = Outcome(self.requests.labels(*labels), self.seconds.labels(*labels), self.ttfb.labels(*labels))
            self.outcomes[route, status] = found
        return found

    def text(self) -> bytes:
        """All series as Prometheus reads them, of all workers."""
        if self.folder is None:
            return generate_latest(self.registry)
        whole = CollectorRegistry()
        multiprocess.MultiProcessCollector(whole, path=str(self.folder))  # type: ignore[no-untyped-call]
        return generate_latest(whole)


def create(folder: Path | None = None) -> Metrics:
    """Fresh metrics in a fresh registry: two gateways in one process do not share counts.

    With a folder, this process is one of several that share it, and every metric made in it from now on is shared.
    """
    disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series per series, that nobody reads
    if folder is not None:
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(folder)
        values.ValueClass = values.MultiProcessValue()  # type: ignore[no-untyped-call]
    own = CollectorRegistry()
    return Metrics(
        registry=own,
        folder=folder,
        requests=_counter(own, "requests", "Chat completions that ended, by outcome", *_OUTCOME),
        seconds=_histogram(own, "request_seconds", "From the request's head to the answer's end", SECONDS, *_OUTCOME),
        ttfb=_histogram(
            own, "ttfb_seconds", "From the request's head to the answer's first body byte", SECONDS, *_OUTCOME
        ),
        in_flight=_gauge(own, "in_flight", "Chat completions not ended yet", *_ROUTE),
        input_tokens=_counter(own, "input_tokens", "Prompt tokens by the server's usage", *_ROUTE),
        output_tokens=_counter(own, "output_tokens", "Completion tokens by the server's usage", *_ROUTE),
        upstream_errors=_counter(own, "upstream_errors", "Backends that failed, by kind of failure", *_ROUTE, "kind"),
        log_errors=_counter(own, "log_errors", "Log lines that could not be written"),
        loop_lag=_histogram(own, "loop_lag_seconds", "How late the event loop woke for a timer of 0.1 s", LAG_SECONDS),
        cpu_seconds=_counter(own, "cpu_seconds", "CPU of the workers, user and system"),
        workers=_gauge(own, "workers", "Workers that serve"),
        worker_deaths=_counter(own, "worker_deaths", "Workers that died; each was replaced"),
    )


def forget_gauges(folder: Path, pid: int) -> None:
    """What a dead worker had in flight is no longer."""
    multiprocess.mark_process_dead(pid, str(folder))  # type: ignore[no-untyped-call]


def _counter(own: CollectorRegistry, name: str, says: str, *labels: str) -> Counter:
    return Counter(f"armwise_gateway_{name}", says, labels, registry=own)


def _gauge(own: CollectorRegistry, name: str, says: str, *labels: str) -> Gauge:
    return Gauge(f"armwise_gateway_{name}", says, labels, registry=own, multiprocess_mode="livesum")


def _histogram(own: CollectorRegistry, name: str, says: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
    return Histogram(f"armwise_gateway_{name}", says, labels, registry=own, buckets=buckets)
