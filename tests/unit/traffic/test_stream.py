"""The client against a server whose bytes and times are known."""

import json
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from stand_in.scripted import Scripted, scripting

from tasks import metrics, record
from tasks.traffic import stream

pytestmark = pytest.mark.services  # a server for each fault

SSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
CHUNKED = SSE + b"Transfer-Encoding: chunked\r\n\r\n"
UNTIL_CLOSE = SSE + b"Connection: close\r\n\r\n"


@pytest.fixture
def scripted() -> Iterator[Callable[..., Scripted]]:
    with scripting() as start:
        yield start


def event(content: Any) -> bytes:
    return b"data: " + (content if isinstance(content, bytes) else json.dumps(content).encode()) + b"\n\n"


def word(text: str, finish: str | None = None) -> bytes:
    return event({"choices": [{"delta": {"content": text} if text else {}, "finish_reason": finish}]})


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


USAGE = event({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 6}})
END = word("", "stop") + USAGE + event(b"[DONE]")
WHOLE = CHUNKED + chunk(word("Hi")) + chunk(END) + chunk(b"")


def call(url: str, **more: Any) -> stream.Answer:
    endpoint = more.pop("endpoint", None) or stream.Endpoint(
        url, "arm-a", "tiny", key="secret", idle_s=more.pop("idle_s", 5), run="run-1/1"
    )
    return stream.call(endpoint, {"messages": []}, request_id="r1", timeout_s=more.pop("timeout_s", 5), **more)


def test_the_row_and_the_request(scripted: Callable[..., Scripted]) -> None:
    server = scripted([(0, WHOLE)])
    answer = call(server.url, task_id="t1", step=2, t_intended_ns=5)
    assert (answer.content, answer.row["failure"], answer.row["status"]) == ("Hi", None, 200)
    assert set(answer.row) <= set(record.REQUEST)
    assert (answer.row["t_intended_ns"], answer.row["output_tokens"], answer.row["chunks"]) == (5, 6, 1)
    head, _, body = server.requests[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /v1/chat/completions HTTP/1.1\r\n")
    for line in (
        b"X-Technique: arm-a",
        b"X-Run: run-1/1",
        b"X-Request-Id: r1",
        b"X-Task-Id: t1",
        b"X-Step: 2",
        b"Authorization: Bearer secret",
    ):
        assert line in head.split(b"\r\n")
    asked = json.loads(body)
    assert (asked["stream"], asked["stream_options"], asked["model"]) == (True, {"include_usage": True}, "tiny")


def test_times_are_those_of_the_server(scripted: Callable[..., Scripted]) -> None:
    waits = [0.0, 0.2, 0.15, 0.3, 0.15]
    parts = [CHUNKED, *(chunk(word(w)) for w in "abcd")]
    server = scripted([*zip(waits, parts, strict=True), (0.15, chunk(END) + chunk(b""))])
    row = call(server.url).row
    sent = server.sent_ns[0]
    for stamp, expected_ns in (
        ("t_first_byte_ns", sent[0]),
        ("t_first_token_ns", sent[1]),
        ("t_first_answer_ns", sent[1]),
        ("t_last_token_ns", sent[4]),
        ("t_end_ns", sent[5]),
    ):
        assert 0 <= row[stamp] - expected_ns < 140e6, stamp  # less than the next part is away, on a busy machine too
    assert row["icl_ms_max"] == pytest.approx((sent[3] - sent[2]) / 1e6, abs=140)
    assert metrics.computed(row)["tpot_ms"] == pytest.approx((sent[4] - sent[1]) / 1e6 / 5, abs=28)  # usage says 6


GREENLETS = """
import json, sys
from gevent import monkey
monkey.patch_all()
import gevent
from tasks.traffic import stream
def one(n):
    endpoint = stream.Endpoint(sys.argv[1], "a", "m")
    return stream.call(endpoint, {"messages": []}, request_id=str(n), timeout_s=20).row
print(json.dumps([job.get() for job in [gevent.spawn(one, n) for n in range(4)]]))
"""


def test_times_hold_under_gevent_too(scripted: Callable[..., Scripted]) -> None:
    play = [(0.0, CHUNKED), (0.4, chunk(word("a"))), (0.4, chunk(word("b"))), (0.4, chunk(END) + chunk(b""))]
    server = scripted(*[play] * 4)
    ran = subprocess.run(
        [sys.executable, "-c", GREENLETS, server.url], capture_output=True, text=True, check=True, timeout=60
    )
    rows = {row["request_id"]: row for row in json.loads(ran.stdout)}
    assert len(server.requests) == len(rows) == 4
    for request, sent in zip(server.requests, server.sent_ns, strict=True):
        row = rows[re.search(rb"X-Request-Id: (\d)", request)[1].decode()]
        assert row["failure"] is None
        for stamp, expected_ns in (("t_first_token_ns", sent[1]), ("t_last_token_ns", sent[2]), ("t_end_ns", sent[3])):
            assert 0 <= row[stamp] - expected_ns < 350e6, stamp  # 4 at once, on a busy machine; parts are 400 ms apart


def test_a_slow_parser_does_not_move_stamps(scripted: Callable[..., Scripted], monkeypatch: pytest.MonkeyPatch) -> None:
    server = scripted([(0, CHUNKED), (0.05, chunk(word("a"))), (0.05, chunk(word("b"))), (0, chunk(END) + chunk(b""))])
    real = stream.events.listen

    def slow(pieces: Any) -> Any:
        time.sleep(1)
        return real(pieces)

    monkeypatch.setattr(stream.events, "listen", slow)
    row = call(server.url).row
    assert (row["t_end_ns"] - row["t_send_ns"]) / 1e6 < 950


def _plain(status: str, body: bytes) -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


FAULTS: list[tuple[str, list[tuple[float, bytes]], str, int | None]] = [
    ("http_4xx", [(0, _plain("400 Bad Request", b'{"error": {"message": "too long"}}'))], "400: too long", 400),
    ("http_4xx", [(0, _plain("401 Unauthorized", b'{"error": "Unauthorized"}'))], "401: Unauthorized", 401),
    ("http_5xx", [(0, _plain("503 Busy", b"<h1>busy</h1>"))], "503: <h1>busy</h1>", 503),
    ("malformed", [(0, _plain("302 Found", b""))], "302", 302),
    (
        "connect",
        [(0, _plain("502 Bad Gateway", b'{"error": {"message": "refuses", "type": "upstream_refused"}}'))],
        "502: refuses",
        502,
    ),
    ("malformed", [(0, _plain("200 OK", b'{"choices": []}'))], "not an event stream", 200),
    ("error_event", [(0, _plain("200 OK", b'{"error": {"message": "inside"}}'))], "inside", 200),
    ("truncated", [(0, UNTIL_CLOSE + word("a"))], "without finish_reason and [DONE]", 200),
    ("truncated", [(0, CHUNKED + chunk(word("a")))], "the connection broke", 200),
    ("truncated", [(0, SSE + b"Content-Length: 999\r\n\r\n" + word("a"))], "the connection broke", 200),
    ("malformed", [(0, UNTIL_CLOSE + word("a") + event(b"{rubbish") + END)], "not JSON", 200),
    ("error_event", [(0, UNTIL_CLOSE + word("a") + event({"error": {"message": "no memory"}}))], "no memory", 200),
    ("empty", [(0, UNTIL_CLOSE + END)], "no content", 200),
    ("malformed", [(0, b"SSH-2.0-OpenSSH\r\n")], "not HTTP", None),
    ("connect", [], "the connection broke", None),
    ("connect", [(0, b"")], "the connection broke", None),
    ("timeout", [(0, CHUNKED + chunk(word("a"))), (1.5, chunk(word("b")))], "silent for 0.3 s", 200),
    ("timeout", [(1.5, WHOLE)], "no end within", None),
]


@pytest.mark.parametrize(("kind", "play", "says", "status"), FAULTS)
def test_every_fault_of_a_server_is_a_row(
    scripted: Callable[..., Scripted], kind: str, play: Any, says: str, status: int | None
) -> None:
    row = call(scripted(play).url, timeout_s=1, idle_s=0.3).row
    assert (row["failure"], row["status"], row["is_aborted"]) == (kind, status, False)
    assert says in row["failure_detail"]
    assert row["t_end_ns"] >= row["t_send_ns"]


def test_a_reset_in_the_middle_is_truncated() -> None:
    listener = socket.create_server(("127.0.0.1", 0))

    def reset() -> None:
        conn, _ = listener.accept()
        conn.recv(65536)
        conn.sendall(CHUNKED + chunk(word("a")))
        time.sleep(0.1)
        conn.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        conn.close()

    thread = threading.Thread(target=reset)
    thread.start()
    answer = call(f"http://127.0.0.1:{listener.getsockname()[1]}")
    thread.join()
    listener.close()
    assert (answer.row["failure"], answer.content, answer.row["chunks"]) == ("truncated", "a", 1)


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        url = f"http://127.0.0.1:{gone.getsockname()[1]}"
    row = call(url).row
    assert row["failure"] == "connect"
    assert url in row["failure_detail"]


def test_the_overall_deadline_holds_although_bytes_flow(scripted: Callable[..., Scripted]) -> None:
    server = scripted([(0, CHUNKED), *((0.05, chunk(word("a"))) for _ in range(60))])
    began = time.monotonic()
    row = call(server.url, timeout_s=0.5).row
    assert row["failure"] == "timeout"
    assert time.monotonic() - began < 1
    assert 1 <= row["chunks"] < 12


def test_waiting_for_the_first_byte_is_not_silence(scripted: Callable[..., Scripted]) -> None:
    assert call(scripted([(0.6, WHOLE)]).url, idle_s=0.2).row["failure"] is None


def test_done_without_an_end_of_the_body_is_a_good_answer(
    scripted: Callable[..., Scripted], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream.wire, "LINGER_S", 0.2)
    began = time.monotonic()
    row = call(scripted([(0, CHUNKED + chunk(word("a") + END)), (3, b"")]).url, timeout_s=10, idle_s=10).row
    assert row["failure"] is None
    assert time.monotonic() - began < 1


def test_a_cut_call_is_aborted_and_no_failure(scripted: Callable[..., Scripted]) -> None:
    server = scripted([(0, CHUNKED + chunk(word("a"))), (3, chunk(END))])
    cut_at = time.monotonic() + 0.3
    row = call(server.url, is_cut=lambda: time.monotonic() > cut_at).row
    assert (row["is_aborted"], row["failure"], row["chunks"]) == (True, None, 1)
    assert time.monotonic() - cut_at < 0.5


def test_connections_are_kept_and_replaced_when_closed(scripted: Callable[..., Scripted]) -> None:
    server = scripted([(0, WHOLE)], [(0, WHOLE)], [(0, WHOLE)], keep=True)
    endpoint = stream.Endpoint(server.url, "a", "m")
    assert [call("", endpoint=endpoint).row["failure"] for _ in range(3)] == [None] * 3
    assert server.connections == 1

    server = scripted([(0, WHOLE)], [(0, WHOLE)])  # closes after each answer, without having said so
    endpoint = stream.Endpoint(server.url, "a", "m")
    for _ in range(2):
        assert call("", endpoint=endpoint).row["failure"] is None
        time.sleep(0.05)
    assert server.connections == 2


def test_a_kept_connection_with_content_length(scripted: Callable[..., Scripted]) -> None:
    body = word("a") + END
    whole = SSE + f"Content-Length: {len(body)}\r\n\r\n".encode() + body
    server = scripted([(0, whole)], [(0, whole)], keep=True)
    endpoint = stream.Endpoint(server.url, "a", "m")
    assert [call("", endpoint=endpoint).row["failure"] for _ in range(2)] == [None] * 2
    assert server.connections == 1


def test_a_header_with_a_line_break_is_refused() -> None:
    with pytest.raises(ValueError, match="line break"):
        call("http://127.0.0.1:1", task_id="t\r\nX-Evil: 1")
