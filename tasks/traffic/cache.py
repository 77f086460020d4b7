"""An empty prefix cache before each tier: drain, reset, prove it with a probe, reset again.

A 200 from the reset proves nothing: an engine that still holds blocks answers 200 too. The proof is a probe, the first
step of a case, that reports 0 cached tokens. The probe itself fills the cache again, so a second reset follows it.
Only engines with development endpoints can do this; for others the note says that nothing was reset.
"""

import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Mapping
from typing import Any

from tasks.agent import golden
from tasks.run import Run
from tasks.stage import StageFailed
from tasks.traffic import scrape, stream, work

DRAIN_S = 30.0
PROBE_S = 60.0
PROBES = 3
Note = dict[str, Any]


def empty(run: Run, tier: str, deployment: Mapping[str, Any], engine: scrape.Source | None) -> Note:
    """Empty the engine's prefix cache. Returns what was done; `is_proven` is None where nothing could be proven.

    Raises StageFailed if the engine answers no probe.
    """
    if not deployment.get("dev_endpoints"):
        return {"is_proven": None, "because": "the engine has no development endpoints: its cache was not reset"}
    note: Note = {"is_drained": drained(engine), "reset_status": _reset(deployment["url"], engine)}
    probe = _probe(run, tier, deployment, engine)
    cached = probe["cached_input_tokens"]
    note |= {"probe_input_tokens": probe["input_tokens"], "probe_cached_tokens": cached}
    drained(engine)
    note["second_reset_status"] = _reset(deployment["url"], engine)
    note["is_proven"] = None if cached is None else cached == 0 and note["second_reset_status"] == 200
    return note


def drained(engine: scrape.Source | None, *, deadline_s: float = DRAIN_S) -> bool | None:
    """Wait until the engine runs and queues nothing. None if it cannot say so."""
    until = time.monotonic() + deadline_s
    while engine is not None:
        rows = scrape.once(engine)
        counts = [scrape.value(rows, engine, name) for name in ("requests_running", "requests_waiting")]
        if counts[0] is None or not any(counts):
            return None if counts[0] is None else True
        if time.monotonic() > until:
            return False
        time.sleep(0.1)
    return None


def _probe(run: Run, tier: str, deployment: Mapping[str, Any], engine: scrape.Source | None) -> dict[str, Any]:
    """The first call that succeeds. One that failed may have filled the cache all the same, so a reset follows it."""
    case = work.sendable(run.plan.gate.golden_set)[0]
    endpoint = stream.Endpoint(deployment["gateway_url"], run.technique, deployment["model"], run=run.owner)
    body = work.body(run, tier, golden.first_messages(case), golden.material(case.golden_set).tools)
    for _ in range(PROBES):
        request_id = f"{run.run_id}/{run.attempt}/{tier}/probe/{uuid.uuid4().hex[:8]}"
        row = stream.call(endpoint, body | {"max_tokens": 1}, request_id=request_id, timeout_s=PROBE_S).row
        if row["failure"] is None:
            return row
        drained(engine)
        _reset(deployment["url"], engine)
    fault = f"{row['failure']}: {row['failure_detail']}"
    raise StageFailed(f"no load on tier {tier}: {PROBES} probe calls failed, the last one with {fault}")


def _reset(url: str, engine: scrape.Source | None) -> int | str:
    """Status of the answer, or why there was none."""
    headers = {"Authorization": f"Bearer {engine.key}"} if engine and engine.key else {}
    request = urllib.request.Request(f"{url}/reset_prefix_cache", data=b"", headers=headers, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code
    except OSError as error:
        return str(error)
