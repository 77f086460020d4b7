"""The echo server: its answers carry their own true times, whatever way they are read."""

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from tasks.traffic import echo, stream


@pytest.fixture
def port() -> Iterator[int]:
    command = [sys.executable, "-m", "tasks.traffic.echo", "127.0.0.1"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdout and server.stdin
        yield int(server.stdout.readline())
        server.stdin.close()
        assert server.wait(5) == 0, "it outlived its standard input"


def ask(endpoint: stream.Endpoint, asked: list[int]) -> stream.Answer:
    return stream.call(endpoint, {"messages": [], "echo": asked}, request_id="e1", timeout_s=10)


def test_an_answer_is_whole_and_tells_when_it_was_due_and_sent(port: int) -> None:
    endpoint = stream.Endpoint(f"http://127.0.0.1:{port}", "arm", "echo")
    before_ns = time.monotonic_ns()
    answers = [ask(endpoint, [4, 20_000, 50_000]) for _ in range(2)]
    after_ns = time.monotonic_ns()
    for answer in answers:
        assert (answer.row["failure"], answer.row["chunks"], answer.row["output_tokens"]) == (None, 4, 4)
        sent = echo.stamps(answer.content)
        assert [due - sent[0][0] for due, _ in sent] == [0, 50_000_000, 70_000_000, 90_000_000]
        assert all(due <= at for due, at in sent)
        assert before_ns < sent[0][0] < sent[-1][1] < after_ns
        # a chunk cannot be heard before it was sent (200 us: two clocks of the kernel are compared)
        assert all(heard > at - 200_000 for heard, (_, at) in zip(answer.chunks_ns, sent, strict=True))
    assert len(endpoint.kept) == 1, "the second call took the first one's connection"


@pytest.mark.parametrize("body", [b"{}", b'{"echo": [0, 1, 1]}', b'{"echo": "x"}'])
def test_what_is_no_question_for_an_echo_is_refused(port: int, body: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.sendall(b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        assert sock.recv(1000).startswith(b"HTTP/1.1 400 ")
        assert sock.recv(1000) == b""


def test_a_request_may_come_in_pieces_and_its_reader_may_be_slow(port: int) -> None:
    body = json.dumps({"messages": ["x" * 70_000], "echo": [40_000, 0, 0]}).encode()
    request = b"POST / HTTP/1.1\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.sendall(request[:30])
        time.sleep(0.05)
        sock.sendall(request[30:])
        time.sleep(0.3)  # its socket is full by now
        came = bytearray()
        while not came.endswith(b"\r\n0\r\n\r\n"):
            came += sock.recv(1 << 20)
    assert came.count(b'"content":"0') == 40_000
    assert came.count(b"data: [DONE]") == 1


def test_a_client_that_leaves_takes_nothing_with_it(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.sendall(b'POST / HTTP/1.1\r\ncontent-length: 28\r\n\r\n{"echo": [1000, 1000, 1000]}')
        assert sock.recv(100)
    endpoint = stream.Endpoint(f"http://127.0.0.1:{port}", "arm", "echo")
    assert ask(endpoint, [100, 1_000, 1_000]).row["chunks"] == 100


@pytest.mark.parametrize("text", ["1", "x" * 38, "1" * 39])
def test_a_text_that_is_no_echo_is_a_fault(text: str) -> None:
    with pytest.raises(ValueError, match=r"not an echo|invalid literal"):
        echo.stamps(text)
