"""The gateway as a process: how it starts, stops, dies and comes back."""

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

import pytest
from scripted_upstream import OPENED, STREAM_HEAD, Call, answers, chunk, get, lines, plain, post, upstream

from tasks.gateway import client

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
