"""One tier of load on the deployed arm: empty the cache, scrape, run Locust, follow it, keep its rows whatever happens.

The client is one process or several (tasks/traffic/crew.py), and stops when this stage does. This process scrapes,
prints a line every two seconds, and watches: the lease, the engine's process, the client's processes, calls that all
fail, and the time.

However the tier ends, its rows become Parquet and tier.json is written; its `failure` is None or the reason.
A tier is driven once per attempt: rows of two tries must not mix, so a second try is refused and needs a new attempt.

tier.json format 1 (2026-11): the first.
"""

import contextlib
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tasks import artifact, catalog, drivers, engines, lease, rows, run, windows
from tasks.drivers import _key
from tasks.stage import StageFailed
from tasks.traffic import cache, calibrate, compact, crew, scrape, work, workload
from tasks.traffic.progress import Progress

FORMAT = 1
LOOK_EVERY_S = 0.5
SAY_EVERY_S = 2.0
START_S = 60.0  # for Locust to import the agent and open the first level, on a busy machine
HOPELESS_CALLS = 5  # so many calls, all failed, over ten seconds: the tier is stopped
LOG_LINES = 15
NEW_ATTEMPT = (
    "In Airflow, clear from deploy (that claims a new attempt); on the command line, start `armwise run` again"
)


def drive(run_dir: Path, tier: str) -> Path:
    """Run one tier's levels. Returns <tier>/tier.json. Raises StageFailed, LeaseLost, BrokenArtifact."""
    this = run.read(run_dir)
    path = run_dir / tier / "tier.json"
    if _is_done(path):
        return path
    _refuse_ungated(run_dir)
    deployment = artifact.read(run_dir / "deployment.json")
    sources = scrape.sources(deployment, _key.read(run_dir), catalog.module_of(engines, deployment["engine"]).METRICS)
    engine = next((source for source in sources if source.source == "engine"), None)
    sources += scrape.gpus(this.slot)
    path.parent.mkdir(exist_ok=True)
    note: dict[str, Any] = {"format": FORMAT, "tier": tier, "started_at": time.time()}
    note |= {"workload_sha256": workload.digest(this, tier), "cache_salt": work.cache_salt(this)}
    with _kept(run_dir, tier, note):
        calibrate.calibrate(this, tier, deployment)
        print(f"drive_{tier}: emptying the prefix cache", flush=True)
        note["cache"] = cache.empty(this, tier, deployment, engine)
        with scrape.running(path.parent / "engine.jsonl", sources) as scraped:
            note["scrape"] = scraped
            try:
                _load(this, tier, deployment)
            finally:
                cache.drained(engine, deadline_s=5)
    return path


def _is_done(path: Path) -> bool:
    """Raises StageFailed if this attempt tried the tier before and did not end it well."""
    if path.exists():
        failure = artifact.read(path)["failure"]
        if failure is None:
            return True
        raise StageFailed(f"{path}: this tier has failed in this attempt: {failure}. {NEW_ATTEMPT}")
    left = sorted(p.name for p in path.parent.glob("*") if not p.name.startswith("."))
    if left:
        raise StageFailed(
            f"{path.parent}: holds {', '.join(left)} of an interrupted try, and rows of two tries must not mix. "
            f"{NEW_ATTEMPT}"
        )
    return False


def _refuse_ungated(run_dir: Path) -> None:
    path = run_dir / "gate.json"
    if not path.exists():
        raise StageFailed(f"{path}: is missing: no load before the gate has passed; run the gate stage")
    gate = artifact.read(path)
    if gate.get("verdict") not in ("PASS", "NONE"):
        raise StageFailed(
            f"{path}: verdict: {gate.get('verdict')} ({gate.get('reason')}): no load on such a deployment"
        )


@contextlib.contextmanager
def _kept(run_dir: Path, tier: str, note: dict[str, Any]) -> Iterator[None]:
    """However the block ends: compact the rows and write tier.json with the reason."""
    failure: str | None = None
    try:
        yield
    except BaseException as error:
        failure = "stopped by Ctrl-C" if isinstance(error, KeyboardInterrupt) else str(error) or type(error).__name__
        raise
    finally:
        fault = _settle(run_dir, tier, note, failure)
        if fault and failure:
            print(f"drive_{tier}: {fault}", file=sys.stderr, flush=True)
        elif fault:
            raise StageFailed(fault)


def _settle(run_dir: Path, tier: str, note: dict[str, Any], failure: str | None) -> str | None:
    """Returns what went wrong in settling, in words (a full disk), or None."""
    fault = None
    try:
        planned = getattr(run.read(run_dir).plan.tiers, tier)
        found = windows.write(run_dir / tier, rows.read(run_dir, tier, "requests"), planned)
        compact.compact(run_dir, tier, found)
    except (OSError, artifact.BrokenArtifact) as error:
        fault = f"the rows of tier {tier} stay as they were spooled: {error}"
    try:
        artifact.write(run_dir / tier / "tier.json", _document(run_dir, tier, note, failure or fault))
    except (OSError, artifact.BrokenArtifact) as error:
        fault = f"{run_dir / tier / 'tier.json'}: cannot be written: {error}"
    return fault


def _document(run_dir: Path, tier: str, note: dict[str, Any], failure: str | None) -> dict[str, Any]:
    client = artifact.optional(run_dir / tier, "client")
    scraped: scrape.Scraped = note.get("scrape") or scrape.Scraped()
    starts = set(scraped.start_times)
    if (effective := run_dir / "effective.json").exists():
        start = artifact.read(effective).get("process_start_time")
        starts |= set() if start is None else {start}
    return note | {
        "ended_at": time.time(),
        "failure": failure,
        "levels": client.get("levels", []),
        "ended_early": client.get("ended_early"),
        "counts": _counts(run_dir, tier),
        "engine_restarted": len({round(start, 1) for start in starts}) > 1 if starts else None,
        "scrape": {"samples": scraped.samples, "failed": scraped.failed, "fault": scraped.fault},
    }


def _counts(run_dir: Path, tier: str) -> dict[str, Any]:
    requests, played = rows.read(run_dir, tier, "requests"), rows.read(run_dir, tier, "tasks")
    return {
        "requests": len(requests),
        "failed": sum(row["failure"] is not None for row in requests),
        "failures": dict(Counter(row["failure"] for row in requests if row["failure"])),
        "aborted": sum(bool(row["is_aborted"]) for row in requests),
        "warmup": sum(bool(row["is_warmup"]) for row in requests),
        "tasks": len(played),
        "tasks_succeeded": sum(bool(row["is_success"]) for row in played),
        "task_failures": dict(Counter(row["failure"] for row in played if row["failure"])),
        "tasks_aborted": sum(bool(row["is_aborted"]) for row in played),
    }


def _load(this: run.Run, tier: str, deployment: Mapping[str, Any]) -> None:
    """Run the client to its end. Raises StageFailed in words, LeaseLost; stops it whatever arrives."""
    folder = this.folder / tier
    plan = getattr(this.plan.tiers, tier)
    progress = Progress(folder, plan)
    with (folder / "locust.log").open("ab") as log, crew.running(this, tier, log) as client:
        _follow(client, progress, this, tier, deployment)
    progress.read()
    if client.first.returncode != 0:
        raise StageFailed(_fault_of_client(folder, client.first.returncode))
    if progress.done == 0:
        raise StageFailed(
            f"tier {tier}: not one call ended ({progress.aborted} were cut off at their level's end): "
            f"the engine does not answer{_last_words(deployment)}"
        )
    early = artifact.read(folder / "client.json")["ended_early"]
    print(f"drive_{tier}: {progress.says()}{f'; {early}' if early else ''}", flush=True)


def _follow(
    client: crew.Processes, progress: Progress, this: run.Run, tier: str, deployment: Mapping[str, Any]
) -> None:
    """Until the client has ended. Raises StageFailed, LeaseLost as soon as going on is pointless."""
    driver = catalog.module_of(drivers, deployment["driver"])
    plan = progress.plan
    until = time.monotonic() + START_S + sum(level.duration_s + plan.drain_s + START_S for level in plan.levels)
    say_at = time.monotonic()
    while client.first.poll() is None:
        progress.read()
        if lost := client.lost():
            raise StageFailed(f"tier {tier}: {lost}; see {progress.folder}/locust.log")
        if fault := lease.lost(this.folder):
            raise fault
        if time.monotonic() >= say_at:  # a look at the engine's process costs CPU that the client needs
            say_at += SAY_EVERY_S
            print(f"drive_{tier}: {progress.says()}", flush=True)
            if not driver.alive(deployment):
                raise StageFailed(f"the engine died in tier {tier}: {progress.says()}{_last_words(deployment)}")
        if progress.is_hopeless(at_least=HOPELESS_CALLS):
            raise StageFailed(
                f"every call of tier {tier} fails for ten seconds now ({progress.last_failure}); stopped"
                f"{_last_words(deployment)}"
            )
        if time.monotonic() > until:
            raise StageFailed(f"the client of tier {tier} has not ended in its time; see {progress.folder}/locust.log")
        with contextlib.suppress(subprocess.TimeoutExpired):
            client.first.wait(LOOK_EVERY_S)


def _fault_of_client(folder: Path, code: int) -> str:
    client = folder / "client.json"
    told = artifact.read(client).get("fault") if client.exists() else None
    if told:
        return f"tier {folder.name}: {told}"
    log = folder / "locust.log"
    return f"the client of tier {folder.name} ended with code {code}; the last lines of {log}:{_lines(log)}"


def _last_words(deployment: Mapping[str, Any]) -> str:
    log = deployment.get("log")
    return f"; the last lines of {log}:{_lines(Path(log))}" if log and Path(log).exists() else ""


def _lines(path: Path) -> str:
    found = path.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_LINES:]
    return "".join(f"\n    {line[:300]}" for line in found) or " (it is empty)"
