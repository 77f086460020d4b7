"""Null calibration of a tier: the client against an echo server, direct and through the gateway, before any load.

`calibrate` starts the echo server, routes a technique of its own to it at the gateway that the run uses, has as many
client processes as the load will have play what calibration.py offers, and leaves <tier>/calibration.json. The engine
is idle meanwhile: what it takes from the client on the same cores shows under load alone (client.json: lag and CPU).

Whatever fails here does not fail the tier: it is told, as `is_enough: false` with the reason, and validate holds it
against the run. Whatever happens, the gateway is told to forget the technique, and no process is left. Where the
gateway does not answer to that, `fault` says so, and release tries again (tasks/leftovers.py).

calibration.json format 1 (2026-11): tier, at, calibrate_s, not_calibrated_because, offered, direct, through_gateway,
gateway_share, is_enough (None: not asked for), reason, fault. Figures as in calibration.py; a path that could not be
measured is None.
"""

import os
import select
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import tasks
from tasks import artifact, suite
from tasks.gateway import client
from tasks.run import Run
from tasks.stages.deploy import GATEWAY_FOLDER
from tasks.traffic import calibration
from tasks.traffic.calibration import DIRECT, GATEWAY, Figures

FORMAT = 1
START_S = 60.0  # for Locust to be imported, on a busy machine
GO_IN_S = 0.05  # from the word to the first call: every process must have heard it
END_S = 30.0  # beyond the rounds' own length
END_SELF_S = 0.5
COLUMNS = {  # what rule 6 bounds in deploy/expectations -> what we call it here
    "schedule_delay_ms_p99": "schedule_delay_ms_p99",
    "loop_lag_ms_p99": "loop_lag_ms_p99",
    "client_cpu_share": "cpu_share",
}
Json = dict[str, Any]


class NotMeasured(RuntimeError):
    """Why there is no calibration, in words."""


def calibrate(this: Run, tier: str, deployment: Mapping[str, Any]) -> Path:
    """Write <tier>/calibration.json. Raises InvalidDocument (the bounds of rule 6 cannot be read), OSError (disk)."""
    plan = getattr(this.plan.tiers, tier)
    told: Json = {"format": FORMAT, "tier": tier, "at": time.time(), "calibrate_s": plan.calibrate_s}
    told |= {"not_calibrated_because": plan.not_calibrated_because, "is_enough": None, "reason": None, "fault": None}
    if plan.calibrate_s:
        print(f"drive_{tier}: null calibration of the client, {plan.calibrate_s:g} s", flush=True)
        told |= _measured(this, tier, deployment)
        print(f"drive_{tier}: {says(told)}", flush=True)
    return artifact.write(this.folder / tier / "calibration.json", told)


def says(told: Mapping[str, Any]) -> str:
    """A finished calibration in one line."""
    direct, share = told["direct"], told["gateway_share"]
    if not told["is_enough"]:
        return f"null calibration is NOT ENOUGH: {told['reason']}"
    return (
        f"the client adds {direct['ttft_floor_ms_p50']:g} ms to a TTFT, the gateway {share['ttft_ms_p50']:g} ms "
        f"(p50 of {direct['calls_after_burst']} calls, {told['offered']['streams']} streams)"
    )


def bounds() -> dict[str, float]:
    """The bounds of rule 6, from deploy/expectations, where they stand with their reasons. Raises InvalidDocument."""
    found = {}
    for expectation in (one for name in suite.names() for one in suite.load(name).expectations if one.rule == 6):
        name, most = COLUMNS.get(str(expectation.kwargs.get("column"))), expectation.kwargs.get("max_value")
        if name and isinstance(most, int | float):
            found[name] = float(most)
    return found


def _measured(this: Run, tier: str, deployment: Mapping[str, Any]) -> Json:
    offered, processes = _offered(this, tier)
    faults: list[str] = []
    lacks: dict[str, str] = {}
    paths: dict[str, Figures | None] = {DIRECT: None, GATEWAY: None}
    try:
        with ExitStack() as stack:
            url = stack.enter_context(_echo_server(_host_towards(deployment["gateway_url"])))
            roads = {DIRECT: {"url": url, "technique": calibration.technique(this.technique)}}
            try:
                stack.enter_context(_routed(this, deployment, url, faults))
                roads[GATEWAY] = roads[DIRECT] | {"url": deployment["gateway_url"], "run": this.owner}
            except client.GatewayFailed as error:
                lacks[GATEWAY] = str(error)
            paths |= _play(this, tier, roads, processes)
    except (NotMeasured, OSError, artifact.BrokenArtifact) as error:
        lacks = dict.fromkeys(paths, str(error)) | lacks
    limits = bounds()
    short = {name: _lacking(paths[name], lacks.get(name), limits) for name in paths}
    return {
        "offered": asdict(offered) | {"chunks_per_s": offered.chunks_per_s, "processes": processes},
        **paths,
        "gateway_share": calibration.gateway_share(paths[DIRECT], paths[GATEWAY]),
        "is_enough": not any(short.values()),
        "reason": _reason(short),
        "fault": "; ".join(faults) or None,
    }


def _reason(short: Mapping[str, list[str]]) -> str | None:
    """Why it is not enough: what holds for both paths once, the rest with its path."""
    both = [words for words in short[DIRECT] if words in short[GATEWAY]]
    apart = [f"{name.replace('_', ' ')}: {words}" for name in short for words in short[name] if words not in both]
    return "; ".join([*both, *apart]) or None


def _lacking(found: Figures | None, why: str | None, limits: Mapping[str, float]) -> list[str]:
    return [why] if why else calibration.shortcomings(found, limits)


def _offered(this: Run, tier: str) -> tuple[calibration.Offered, int]:
    plan = getattr(this.plan.tiers, tier)
    offered = calibration.offered(plan)
    return offered, min(plan.processes, offered.streams)


def _host_towards(url: str) -> str:
    """The address of this machine that a gateway answers to: loopback for one here, else the one that routes to it."""
    try:
        family, _, _, _, address = socket.getaddrinfo(urlsplit(url).hostname, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)  # sends nothing
            return str(probe.getsockname()[0])
    except OSError:  # no way to the gateway, as the calls through it will show
        return "127.0.0.1"


@contextmanager
def _echo_server(host: str) -> Iterator[str]:
    """Its URL while the block runs. It ends with its standard input, so also if this process is killed."""
    child = subprocess.Popen(
        [sys.executable, "-m", "tasks.traffic.echo", host],
        env=_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert child.stdin and child.stdout
    try:
        port = _within(child.stdout.fileno(), START_S) and child.stdout.readline().strip().decode()
        if not port:
            raise NotMeasured("the echo server did not start")
        yield f"http://{f'[{host}]' if ':' in host else host}:{port}"
    finally:
        child.stdin.close()
        child.stdout.close()
        _end(child)


@contextmanager
def _routed(this: Run, deployment: Mapping[str, Any], url: str, faults: list[str]) -> Iterator[None]:
    """The echo server as a technique of the run's gateway while the block runs. Raises GatewayFailed."""
    started = deployment.get("gateway_started")
    gateway = client.at(this.folder / GATEWAY_FOLDER) if started else client.find()
    if gateway is None or gateway.url != deployment["gateway_url"]:
        raise client.GatewayFailed(f"the gateway {deployment['gateway_url']} does not answer")
    name = calibration.technique(this.technique)
    try:
        client.register(gateway, name, url, "echo", None, this.owner)
        yield
    finally:
        try:
            client.deregister(gateway, name, this.owner)
        except client.GatewayFailed as error:
            faults.append(f"the gateway was not brought to forget {name} ({error}); release tries again")
            print(faults[-1], file=sys.stderr, flush=True)


def _play(this: Run, tier: str, roads: Mapping[str, Json], processes: int) -> dict[str, Figures | None]:
    """Figures by path. Raises NotMeasured, BrokenArtifact."""
    with tempfile.TemporaryDirectory(prefix="armwise-calibration-") as name, ExitStack() as stack:
        folder = Path(name)
        told = {"run_dir": str(this.folder.resolve()), "tier": tier, "paths": roads, "processes": processes}
        artifact.write(folder / "calibration.json", told)
        children = [stack.enter_context(_client(folder, share)) for share in range(processes)]
        for child, ready, _ in children:
            if not _within(ready, START_S) or not os.read(ready, 1):
                _end(child)
                raise NotMeasured(f"a client process did not start: {_log(folder)}")
        start = struct.pack("q", time.monotonic_ns() + int(GO_IN_S * 1e9))
        for _, _, go in children:
            os.write(go, start)
        until = time.monotonic() + getattr(this.plan.tiers, tier).calibrate_s + END_S
        for child, _, _ in children:
            try:
                code = child.wait(max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired as error:
                raise NotMeasured(f"a client process did not end in its time: {_log(folder)}") from error
            if code:
                raise NotMeasured(f"a client process ended with code {code}: {_log(folder)}")
        outs = [artifact.read(folder / f"{share}.json") for share in range(processes)]
    return {path: calibration.figures([out[path] for out in outs]) for path in roads}


@contextmanager
def _client(folder: Path, share: int) -> Iterator[tuple[subprocess.Popen[bytes], int, int]]:
    """A client process, the descriptor on which it says that it is ready, and the one on which it is told to go."""
    locustfile = Path(tasks.__file__).parent / "traffic" / "calibrate_locustfile.py"
    (ready, ready_in), (go_out, go) = os.pipe(), os.pipe()
    argv = [sys.executable, "-m", "locust", "-f", str(locustfile), "--headless", "--only-summary", "--users", "1"]
    argv += ["--calibration", str(folder / "calibration.json"), "--share", str(share)]
    argv += ["--ready", str(ready_in), "--go", str(go_out), "--out", str(folder / f"{share}.json")]
    with (folder / "locust.log").open("ab") as log:
        child = subprocess.Popen(
            argv,
            cwd=folder,  # Locust would read settings from a project file in the current folder
            env=_environment(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            pass_fds=(ready_in, go_out),
            start_new_session=True,
        )
    os.close(ready_in)
    os.close(go_out)
    try:
        yield child, ready, go
    finally:
        os.close(ready)
        os.close(go)
        _end(child)


def _within(descriptor: int, seconds: float) -> bool:
    return bool(select.select([descriptor], [], [], seconds)[0])


def _end(child: subprocess.Popen[bytes]) -> None:
    """What has not ended by itself is killed: nothing of it is needed any more."""
    with suppress(subprocess.TimeoutExpired):
        child.wait(END_SELF_S)
    child.kill()
    child.wait()


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LOCUST_")}
    path = [str(Path(tasks.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    return kept | {"PYTHONPATH": os.pathsep.join(path)}


def _log(folder: Path) -> str:
    found = (folder / "locust.log").read_text(encoding="utf-8", errors="replace").splitlines()
    return " | ".join(line[:300] for line in found[-3:]) or "its log is empty"
