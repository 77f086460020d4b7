"""What engine, gateway and GPU say about themselves while a tier runs: once a second, as long rows.

Each row is {at, source, name, labels, value}: seconds since the epoch, `engine`, `gateway` or `gpu`, the source's own
name of the metric (of an engine: those in its METRICS; of a GPU: those of drivers/_gpu.py), its labels as JSON text,
its value. Engine and gateway are asked at /metrics, the slot's GPUs through NVML, if it has any. A scrape that failed
is a row too, named `scrape_failed`, with the reason in its labels. Histogram buckets are left out.

The scraping thread lives in the stage's process, not in Locust's: parsing must not delay the client's stamps.
"""

import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tasks.drivers import _gpu
from tasks.engines import _http
from tasks.traffic.spool import Spool, SpoolBroken

EVERY_S = 1.0
TIMEOUT_S = 2.0
GATEWAY_PREFIX = "armwise_gateway_"
LEFT_OUT = ("_bucket", "_created")
Row = dict[str, Any]


@dataclass(frozen=True)
class Source:
    """`names` maps what we call a metric to what the source calls it; None: all of the gateway's own.

    `url` is where /metrics is; of source `gpu` it is the slot.
    """

    source: str
    url: str
    key: str | None = field(default=None, repr=False)
    names: Mapping[str, str] | None = None


@dataclass
class Scraped:
    """What became of it, so far."""

    samples: int = 0
    failed: int = 0
    fault: str | None = None  # why rows could not be written
    start_times: set[float] = field(default_factory=set)  # of the engine's process


def sources(deployment: Mapping[str, Any], key: str | None, metrics: Mapping[str, str]) -> list[Source]:
    """The engine (if it has metrics that we know) and the gateway of a deployment."""
    engine = [Source("engine", f"{deployment['url']}/metrics", key, metrics)] if metrics else []
    return [*engine, Source("gateway", f"{deployment['gateway_url']}/metrics")]


def gpus(slot: str) -> list[Source]:
    """The GPUs of a slot as a source; none where NVML shows none."""
    return [Source("gpu", slot)] if _gpu.of_slot(slot) is not None and _gpu.readings(slot) else []


def once(source: Source) -> list[Row]:
    """One scrape of one source. Never raises: a failure is a row."""
    if source.source == "gpu":
        return _of_gpus(source)
    at = time.time()
    try:
        samples = list(_samples(_http.get(source.url, source.key, timeout_s=TIMEOUT_S), source))
    except (*_http.FAULTS, LookupError) as error:  # the parser of broken text
        reason = json.dumps({"error": (str(error) or type(error).__name__)[:200]})
        return [{"at": at, "source": source.source, "name": "scrape_failed", "labels": reason, "value": 1.0}]
    return [{"at": at, "source": source.source} | sample for sample in samples]


def _of_gpus(source: Source) -> list[Row]:
    at = time.time()
    found = _gpu.readings(source.url)
    if not found:
        reason = json.dumps({"error": f"NVML shows no GPU of slot {source.url}"})
        return [{"at": at, "source": "gpu", "name": "scrape_failed", "labels": reason, "value": 1.0}]
    return [
        {"at": at, "source": "gpu", "name": name, "labels": json.dumps({"gpu": int(one["gpu"])}), "value": reading}
        for one in found
        for name, reading in one.items()
        if name != "gpu"
    ]


def value(rows: list[Row], source: Source, ours: str) -> float | None:
    """Sum of one metric over its labels, or None if it is not there."""
    theirs = (source.names or {}).get(ours)
    found = [row["value"] for row in rows if row["name"] == theirs]
    return sum(found) if found else None


@contextmanager
def running(path: Path, scraped_from: list[Source]) -> Iterator[Scraped]:
    """Scrape into path once a second while the block runs, and once before and once after."""
    spool, scraped, ended = Spool(path), Scraped(), threading.Event()

    def scrape() -> None:
        for source in scraped_from:
            _store(spool, scraped, source, once(source))

    def keep_on() -> None:
        due = time.monotonic()
        while True:
            due = max(due + EVERY_S, time.monotonic())
            if ended.wait(due - time.monotonic()):
                return
            scrape()

    scrape()
    thread = threading.Thread(target=keep_on, name="scrape", daemon=True)
    thread.start()
    try:
        yield scraped
    finally:
        ended.set()
        thread.join(timeout=len(scraped_from) * (TIMEOUT_S + 1))
        scrape()
        spool.close()


def _store(spool: Spool, scraped: Scraped, source: Source, rows: list[Row]) -> None:
    scraped.samples += 1
    scraped.failed += any(row["name"] == "scrape_failed" for row in rows)
    started_at = value(rows, source, "process_start_time")
    scraped.start_times |= set() if started_at is None else {started_at}
    try:
        for row in rows:
            spool.append(row)
    except SpoolBroken as error:
        scraped.fault = str(error)


def _samples(text: str, source: Source) -> Iterator[Row]:
    from prometheus_client.parser import text_string_to_metric_families

    wanted = "\n".join(line for line in text.splitlines() if _is_wanted(line, source))
    for family in text_string_to_metric_families(wanted + "\n"):
        for sample in family.samples:
            yield {"name": sample.name, "labels": json.dumps(sample.labels, sort_keys=True), "value": sample.value}


def _is_wanted(line: str, source: Source) -> bool:
    name = line.partition("{")[0].partition(" ")[0]
    if source.names is not None:
        return name in source.names.values()
    return name.startswith(GATEWAY_PREFIX) and not name.endswith(LEFT_OUT)
