"""The gateway as processes: how it starts, stops, dies and comes back; several workers; two runs of one arm."""

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from conftest import PLAN, TARGET, write_yaml
from lifecycle import UNGATED, is_alive, until
from scripted_upstream import (
    EVENTS,
    OPENED,
    STREAM_HEAD,
    Call,
    answers,
    chunk,
    get,
    lines,
    metric,
    plain,
    post,
    streams,
    upstream,
)

from tasks import artifact, run, stage
from tasks.gateway import client
from tasks.stages.claim import claim
from tasks.traffic import stream

pytestmark = pytest.mark.services


@contextlib.contextmanager
def process(state: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tasks.gateway", "--state", str(state), *options]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as running:
        try:
            yield running
        finally:
            while OPENED:
                OPENED.pop().close()
            running.kill()


def test_it_says_where_it_is_serves_on_loopback_and_stops_when_told(tmp_path: Path) -> None:
    with upstream(answers(plain(b'{"i":"a"}'))) as server, process(tmp_path) as running:
        to = client.wait(tmp_path, deadline_s=30)
        address = json.loads((tmp_path / "address.json").read_text())
        assert address == {"url": to.url, "pid": running.pid}
        assert to.url.startswith("http://127.0.0.1:")
        client.register(to, "a", server.url, "m", None, "run-1")
        assert post(to).read() == b'{"i":"a"}'
        running.send_signal(signal.SIGTERM)
        assert running.wait(10) == 0
        assert not (tmp_path / "address.json").exists()
        assert client.at(tmp_path) is None


def test_answers_in_flight_end_within_the_grace_and_a_stuck_one_is_broken_off(tmp_path: Path) -> None:
    stopping = threading.Event()

    def script(call: Call) -> None:
        call.send(STREAM_HEAD + chunk(b"data: 1\n\n"))
        if call.header("x-request-id") == "ends":
            assert stopping.wait(20)
            call.send(chunk(b"data: 2\n\n") + b"0\r\n\r\n")
        else:
            call.wait_closed(20)

    with upstream(script) as server, process(tmp_path) as running:
        to = client.wait(tmp_path, deadline_s=30)
        client.register(to, "a", server.url, "m", None, "run-1")
        ends, stuck = post(to, X_Request_Id="ends"), post(to, X_Request_Id="stuck")
        assert (ends.read1(), stuck.read1()) == (b"data: 1\n\n", b"data: 1\n\n")
        running.send_signal(signal.SIGTERM)
        began = time.monotonic()
        stopping.set()
        assert ends.read() == b"data: 2\n\n"
        with pytest.raises(http.client.IncompleteRead):
            stuck.read()
        assert running.wait(10) == 0
        assert time.monotonic() - began < 10
    ended = {line["request_id"]: line["ended"] for line in lines(tmp_path, count=2)}
    assert ended == {"ends": "complete", "stuck": "gateway_stopped"}


def test_killed_and_started_again_it_knows_its_arms(tmp_path: Path) -> None:
    with upstream(answers(plain(b'{"i":"a"}'))) as server:
        with process(tmp_path) as running:
            to = client.wait(tmp_path, deadline_s=30)
            client.register(to, "a", server.url, "m", "key-of-the-arm", "run-1")
            running.kill()
            running.wait(10)
        assert client.at(tmp_path) is None, "the address of a killed gateway must not be believed"
        with process(tmp_path):
            again = client.wait(tmp_path, deadline_s=30)
            assert again.token == to.token
            assert post(again).read() == b'{"i":"a"}'
            assert server.calls[0].header("authorization") == "Bearer key-of-the-arm"


def refusal(state: Path, *options: str) -> str:
    """What a gateway that cannot start says."""
    with process(state, *options) as running:
        assert running.wait(30) == 2
        assert running.stderr is not None
        return running.stderr.read()


def test_a_taken_port_is_told_in_words(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        said = refusal(tmp_path, "--port", port)
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use; --port 0 takes a free one" in said
    assert not (tmp_path / "address.json").exists()


@pytest.mark.parametrize(
    ("options", "says"),
    [(("--port", "99999"), "port must be 0-65535"), (("--host", "no-such-host.invalid"), "not known")],
)
def test_an_address_that_cannot_be_is_told_in_words(tmp_path: Path, options: tuple[str, ...], says: str) -> None:
    said = refusal(tmp_path, *options)
    assert "Traceback" not in said
    assert says in said


def test_a_second_gateway_on_the_folder_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    with process(tmp_path):
        first = client.wait(tmp_path, deadline_s=30)
        assert "another gateway runs on this folder" in refusal(tmp_path)
        assert client.at(tmp_path) == first


def test_a_broken_backends_file_is_told_in_words(tmp_path: Path) -> None:
    (tmp_path / "backends.json").write_text('{"format": 1, "back')
    said = refusal(tmp_path)
    assert f"{tmp_path / 'backends.json'}: cannot be read" in said
    assert "Traceback" not in said


def test_a_state_folder_that_cannot_be_made_is_told_in_words(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    said = refusal(tmp_path / "file")
    assert "Traceback" not in said
    assert "file" in said


def test_a_registration_that_the_disk_refuses_is_not_believed(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        (tmp_path / "backends.json").mkdir()  # root writes where it wants, but not a file over a folder
        (tmp_path / "backends.json" / "x").touch()
        said = refusal(tmp_path)
        assert "Traceback" not in said
        (tmp_path / "backends.json" / "x").unlink()
        (tmp_path / "backends.json").rmdir()
    with process(tmp_path):
        to = client.wait(tmp_path, deadline_s=30)
        (tmp_path / "backends.json").mkdir()
        with pytest.raises(client.GatewayFailed, match="could not write its state"):
            client.register(to, "a", "http://127.0.0.1:9", "m", None, "run-1")
        assert json.loads(get(to, "/healthz")[1])["techniques"] == []


def workers(running: subprocess.Popen[str], count: int) -> list[int]:
    """Pids of its workers, once there are so many."""

    def found() -> list[int]:
        pids = [child.pid for child in psutil.Process(running.pid).children()]
        return pids if len(pids) == count else []

    return until(found, within_s=30)


def in_flight_by_worker(to: client.Gateway, pids: list[int], count: int) -> dict[int, list[http.client.HTTPResponse]]:
    """`count` streams that have begun, by the worker that holds their connection: the one that has its socket open."""
    held: dict[int, list[http.client.HTTPResponse]] = {pid: [] for pid in pids}
    for _ in range(count):
        answer = post(to)
        assert answer.read1() == b"data: 1\n\n"
        port = OPENED[-1].sock.getsockname()[1]
        (pid,) = [p for p in pids for c in psutil.Process(p).net_connections() if c.raddr and c.raddr.port == port]
        held[pid].append(answer)
    return held


def goes_on(go: threading.Event) -> object:
    def script(call: Call) -> None:
        call.send(STREAM_HEAD + chunk(b"data: 1\n\n"))
        assert go.wait(30)
        call.send(chunk(b"data: 2\n\n") + b"0\r\n\r\n")

    return script


def test_several_workers_have_one_registry_one_view_of_the_metrics_and_one_log(tmp_path: Path) -> None:
    with upstream(streams(EVENTS)) as server, process(tmp_path, "--workers", "3") as running:
        to = client.wait(tmp_path, deadline_s=30)
        pids = workers(running, 3)
        for name in ("a", "b", "c"):
            client.register(to, name, server.url, "m", None, "run-1")
            for _ in range(8):  # each on a connection of its own, so that every worker gets some
                assert post(to, technique=name).read() == EVENTS
        client.deregister(to, "b", "run-1")
        assert [post(to, technique="b").status for _ in range(8)] == [400] * 8
        assert {tuple(json.loads(get(to, "/healthz")[1])["techniques"]) for _ in range(8)} == {("a", "c")}
        lines(tmp_path, count=32)
        outcome = {"technique": "a", "backend": "openai"}
        for _ in range(4):
            assert metric(to, "armwise_gateway_requests_total", **outcome, status="200") == 8
            assert metric(to, "armwise_gateway_output_tokens_total", **outcome) == 24
            assert metric(to, "armwise_gateway_in_flight", **outcome) == 0
        assert until(lambda: metric(to, "armwise_gateway_workers") == 3, within_s=10)
        running.send_signal(signal.SIGTERM)
        assert running.wait(15) == 0
    assert not any(map(is_alive, pids))
    assert not (tmp_path / "address.json").exists()


def test_a_killed_worker_is_replaced_and_the_others_do_not_notice(tmp_path: Path) -> None:
    go = threading.Event()
    with upstream(goes_on(go)) as server, process(tmp_path, "--workers", "2") as running:
        to = client.wait(tmp_path, deadline_s=30)
        client.register(to, "a", server.url, "m", None, "run-1")
        pids = workers(running, 2)
        held = in_flight_by_worker(to, pids, 16)
        victim, other = sorted(pids, key=lambda pid: -len(held[pid]))
        os.kill(victim, signal.SIGKILL)
        for answer in held[victim]:
            with pytest.raises((http.client.IncompleteRead, ConnectionResetError)):
                answer.read()
        go.set()
        assert [answer.read() for answer in held[other]] == [b"data: 2\n\n"] * len(held[other])
        assert [post(to).read() for _ in range(8)] == [b"data: 1\n\ndata: 2\n\n"] * 8, (
            "connections are refused to nobody"
        )
        assert other in workers(running, 2)
        (died,) = lines(tmp_path, "worker_died")
        assert (died["pid"], died["how"]) == (victim, "killed by SIGKILL")
        assert metric(to, "armwise_gateway_worker_deaths_total") == 1
        lines(tmp_path, count=8 + len(held[other]))
        assert metric(to, "armwise_gateway_in_flight", technique="a", backend="openai") == 0


def test_workers_that_die_again_and_again_end_the_gateway_in_words(tmp_path: Path) -> None:
    with process(tmp_path, "--workers", "2") as running:
        client.wait(tmp_path, deadline_s=30)
        seen: set[int] = set()
        while running.poll() is None and len(seen) < 20:
            for child in psutil.Process(running.pid).children():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child.pid, signal.SIGKILL)
                seen.add(child.pid)
            time.sleep(0.2)
        assert running.wait(15) == 1
        assert running.stderr is not None
        said = running.stderr.read()
        assert "5 workers died within 60 s, the last one killed by SIGKILL: it ends" in said
        assert "Traceback" not in said
    assert not any(map(is_alive, seen))
    assert not (tmp_path / "address.json").exists()


def test_workers_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    with process(tmp_path, "--workers", "2") as running:
        client.wait(tmp_path, deadline_s=30)
        pids = workers(running, 2)
        running.kill()
        running.wait(10)
        assert until(lambda: not any(map(is_alive, pids)), within_s=15)
    assert client.at(tmp_path) is None


def test_a_port_of_several_workers_is_shared_with_no_other_gateway(tmp_path: Path) -> None:
    with process(tmp_path / "one", "--workers", "2"):
        port = client.wait(tmp_path / "one", deadline_s=30).url.rpartition(":")[2]
        for count in ("1", "2"):
            assert "Address already in use" in refusal(tmp_path / "two", "--port", port, "--workers", count)


@pytest.mark.parametrize("count", ["0", "-1", "many"])
def test_workers_are_one_or_more(tmp_path: Path, count: str) -> None:
    assert "--workers" in refusal(tmp_path, "--workers", count)


def test_two_runs_of_one_arm_at_once_reach_each_its_own_engine(sandbox: Path, armwise_home: Path) -> None:
    write_yaml(sandbox / "deploy" / "targets" / "stand-in" / "target.yaml", TARGET | {"slots": ["cpu0", "cpu1"]})
    write_yaml(sandbox / "deploy" / "plans" / "ungated.yaml", PLAN | {"gate": UNGATED})
    runs: list[Path] = []
    with process(armwise_home / "gateway"):
        shared = client.wait(armwise_home / "gateway", deadline_s=30)
        try:
            for _ in range(2):
                runs.append(claim(arm="cpu-baseline", target="stand-in", plan="ungated"))
                stage.perform("deploy", runs[-1])
            urls = [artifact.read(folder / "deployment.json")["url"] for folder in runs]
            assert len(set(urls)) == 2
            rows = [asked(shared, run.read(folder)) for folder in (runs[1], runs[0])]
            assert [row["failure"] for row in rows] == [None, None]
            assert [line["upstream"] for line in lines(armwise_home / "gateway", count=2)] == [urls[1], urls[0]]
            assert post(shared, technique="cpu-baseline").status == 409
            stage.perform("release", runs[0])
            assert [row["run_id"] for row in client.registered(shared)] == [run.read(runs[1]).owner]
        finally:
            for folder in runs:
                stage.perform("release", folder)


def asked(gateway: client.Gateway, of: run.Run) -> dict[str, object]:
    """The row of one call by the project's own client."""
    endpoint = stream.Endpoint(gateway.url, of.technique, "tiny", run=of.owner)
    body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
    return stream.call(endpoint, body, request_id=of.owner, timeout_s=30).row
