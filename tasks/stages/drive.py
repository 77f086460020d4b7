"""One tier of load on the deployed arm: empty the cache, scrape, run Locust, follow it, keep its rows whatever happens.

The client is a process of its own (tasks/traffic/locustfile.py) in a session of its own: Ctrl-C reaches this stage,
which stops it in order; if this process dies, the kernel kills it. This process scrapes, prints a line every two
seconds, and watches: the lease, the engine's process, calls that all fail, and the time.

However the tier ends, its rows become Parquet and tier.json is written; its `failure` is None or the reason.
A tier is driven once per attempt: rows of two tries must not mix, so a second try is refused and needs a new attempt.

tier.json format 1 (2026-11): the first.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tasks
from tasks import artifact, catalog, drivers, engines, lease, rows, run
from tasks.drivers import _key
from tasks.stage import StageFailed
from tasks.traffic import cache, compact, scrape
from tasks.traffic.progress import Progress

FORMAT = 1
LOOK_EVERY_S = 0.5
SAY_EVERY_S = 2.0
START_S = 60.0  # for Locust to import the agent and open the first level, on a busy machine
STOP_S = 10.0
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
    path.parent.mkdir(exist_ok=True)
    note: dict[str, Any] = {"format": FORMAT, "tier": tier, "started_at": time.time()}
    with _kept(run_dir, tier, note):
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
        compact.compact(run_dir, tier)
    except (OSError, artifact.BrokenArtifact) as error:
        fault = f"the rows of tier {tier} stay as they were spooled: {error}"
    try:
        artifact.write(run_dir / tier / "tier.json", _document(run_dir, tier, note, failure or fault))
    except (OSError, artifact.BrokenArtifact) as error:
        fault = f"{run_dir / tier / 'tier.json'}: cannot be written: {error}"
    return fault


def _document(run_dir: Path, tier: str, note: dict[str, Any], failure: str | None) -> dict[str, Any]:
    client = run_dir / tier / "client.json"
    scraped: scrape.Scraped = note.get("scrape") or scrape.Scraped()
    starts = set(scraped.start_times)
    if (effective := run_dir / "effective.json").exists():
        start = artifact.read(effective).get("process_start_time")
        starts |= set() if start is None else {start}
    return note | {
        "ended_at": time.time(),
        "failure": failure,
        "levels": artifact.read(client)["levels"] if client.exists() else [],
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
    progress = Progress(folder / "requests.jsonl", plan)
    with (folder / "locust.log").open("ab") as log, _client(this.folder, tier, log) as child:
        _follow(child, progress, this, tier, deployment)
    progress.read()
    if child.returncode != 0:
        raise StageFailed(_fault_of_client(folder, child.returncode))
    if progress.done == 0:
        raise StageFailed(
            f"tier {tier}: not one call ended ({progress.aborted} were cut off at their level's end): "
            f"the engine does not answer{_last_words(deployment)}"
        )
    print(f"drive_{tier}: {progress.says()}", flush=True)


@contextlib.contextmanager
def _client(run_dir: Path, tier: str, log: Any) -> Iterator[subprocess.Popen[bytes]]:
    """The Locust process; stopped, politely first, when the block ends."""
    locustfile = Path(tasks.__file__).parent / "traffic" / "locustfile.py"
    argv = [sys.executable, "-m", "locust", "-f", str(locustfile), "--headless", "--only-summary"]
    users = getattr(run.read(run_dir).plan.tiers, tier).levels[0].users
    argv += ["--users", str(users), "--spawn-rate", str(users), "--run-dir", str(run_dir.resolve()), "--tier", tier]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LOCUST_")}
    child = subprocess.Popen(
        [*argv, "--parent", str(os.getpid())],
        cwd=run_dir / tier,  # Locust would read settings from a project file in the current folder
        env=environment | {"PYTHONPATH": os.pathsep.join([str(Path(tasks.__file__).parents[1]), *_python_path()])},
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        yield child
    finally:
        try:
            if child.poll() is None:
                child.send_signal(signal.SIGTERM)
                child.wait(STOP_S)
        except subprocess.TimeoutExpired:
            pass
        finally:
            child.kill()
            child.wait()


def _python_path() -> list[str]:
    return [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []


def _follow(
    child: subprocess.Popen[bytes], progress: Progress, this: run.Run, tier: str, deployment: Mapping[str, Any]
) -> None:
    """Until the client has ended. Raises StageFailed, LeaseLost as soon as going on is pointless."""
    driver = catalog.module_of(drivers, deployment["driver"])
    plan = progress.plan
    until = time.monotonic() + START_S + sum(level.duration_s + plan.drain_s + START_S for level in plan.levels)
    say_at = time.monotonic()
    while child.poll() is None:
        progress.read()
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
            raise StageFailed(
                f"the client of tier {tier} has not ended in its time; see {progress.path.parent}/locust.log"
            )
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(LOOK_EVERY_S)


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
