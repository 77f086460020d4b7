"""What passes through the gateway, against an upstream whose every byte the test chose."""

import http.client
import json
import socket
import threading
import time
from pathlib import Path

import pytest
from scripted_upstream import (
    ASK,
    EVENTS,
    STREAM_HEAD,
    USAGE,
    Call,
    Upstream,
    answers,
    chunk,
    connect,
    gateway,
    lines,
    metric,
    plain,
    post,
    streams,
    upstream,
)

from tasks.gateway.app import Limits
from tasks.gateway.backends import openai
from tasks.gateway.client import Gateway, register
from tasks.gateway.outlet import TAIL_BYTES, Outlet

pytestmark = pytest.mark.services  # a gateway and its upstream

HELD_S = 1.0  # "at once", with room for a busy machine; the upstream would have gone on for 10 s or more

LIMITS = Limits(connect_s=1, idle_s=0.4)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "gateway"


def arm(to: Gateway, server: Upstream, key: str | None = None) -> None:
    register(to, "a", server.url, "m", key, "run-1")


@pytest.mark.parametrize("size", [1, 2, 7, 64, 1 << 20])
def test_the_body_is_the_same_byte_for_byte_however_it_is_cut(state: Path, size: int) -> None:
    with upstream(streams(EVENTS, size=size)) as server, gateway(state) as to:
        arm(to, server)
        answer = post(to)
        assert (answer.status, answer.getheader("content-type")) == (200, "text/event-stream")
        assert answer.read() == EVENTS
        assert json.loads(server.calls[0].body) == ASK
        line = lines(state)[0]
    assert (line["input_tokens"], line["cached_input_tokens"], line["output_tokens"]) == (11, 8, 3)
    assert (line["finish_reason"], line["is_done"], line["ended"]) == ("stop", True, "complete")


def test_a_long_body_of_every_byte_value_passes(state: Path) -> None:
    body = bytes(range(256)) * 4096 * 4
    with upstream(streams(body, size=100_003)) as server, gateway(state) as to:
        arm(to, server)
        assert post(to).read() == body


def test_an_event_reaches_the_client_before_the_next_is_sent(state: Path) -> None:
    go = threading.Event()

    def script(call: Call) -> None:
        call.send(STREAM_HEAD + chunk(b"data: 1\n\n"))
        assert go.wait(10)
        call.send(chunk(b"data: 2\n\n") + b"0\r\n\r\n")

    with upstream(script) as server, gateway(state) as to:
        arm(to, server)
        answer = post(to)
        assert answer.read1() == b"data: 1\n\n"
        go.set()
        assert answer.read() == b"data: 2\n\n"


def test_a_plain_answer_passes_with_its_status_and_length(state: Path) -> None:
    body = b'{"choices":[{"message":{"content":"hi"},"finish_reason":"length"}],' + USAGE + b"}"
    with upstream(answers(plain(body))) as server, gateway(state) as to:
        arm(to, server)
        answer = post(to)
        assert (answer.status, answer.getheader("content-length"), answer.read()) == (200, str(len(body)), body)
        line = lines(state)[0]
        assert (line["stream"], line["output_tokens"], line["finish_reason"]) == (False, 3, "length")
        assert metric(to, "armwise_gateway_output_tokens_total", technique="a", backend="openai") == 3


def test_an_answer_that_ends_with_its_connection_passes(state: Path) -> None:
    def script(call: Call) -> None:
        call.send(b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + EVENTS)
        call.sock.shutdown(socket.SHUT_RDWR)

    with upstream(script) as server, gateway(state) as to:
        arm(to, server)
        assert post(to).read() == EVENTS
        assert lines(state)[0]["ended"] == "complete"


@pytest.mark.parametrize("status", [b"400 Bad Request", b"429 Too Many Requests", b"500 Internal Server Error"])
def test_an_error_of_the_upstream_is_passed_on_as_it_is(state: Path, status: bytes) -> None:
    with upstream(answers(plain(b'{"error":{"message":"too long"}}', status))) as server, gateway(state) as to:
        arm(to, server)
        answer = post(to)
        assert (answer.status, answer.read()) == (int(status[:3]), b'{"error":{"message":"too long"}}')
        line = lines(state)[0]
        assert (line["status"], line["is_error"], line["upstream_error"]) == (int(status[:3]), True, None)


def test_the_clients_credentials_stay_here_and_the_arms_key_goes_out(state: Path) -> None:
    with upstream(answers(plain(b"{}"))) as server, gateway(state) as to:
        arm(to, server, key="key-of-the-arm")
        headers = {"Authorization": "Bearer mine", "Cookie": "c=1", "X_Api_Key": "k", "Accept_Encoding": "gzip"}
        post(to, X_Request_Id="id-7", X_Task_Id="t-9", X_Step="2", **headers).read()
    call = server.calls[0]
    assert call.header("authorization") == "Bearer key-of-the-arm"
    assert (call.header("cookie"), call.header("x-api-key"), call.header("x-technique")) == (None, None, None)
    assert (call.header("x-request-id"), call.header("x-task-id"), call.header("x-step")) == ("id-7", "t-9", "2")
    assert call.header("accept-encoding") == "identity"
    assert b"mine" not in call.head


def test_without_a_key_nothing_is_sent_in_its_place(state: Path) -> None:
    with upstream(answers(plain(b"{}"))) as server, gateway(state) as to:
        arm(to, server)
        post(to, Authorization="Bearer mine").read()
    assert server.calls[0].header("authorization") is None


def test_the_request_id_is_echoed_or_made(state: Path) -> None:
    with upstream(answers(plain(b"{}"))) as server, gateway(state) as to:
        arm(to, server)
        assert post(to, X_Request_Id="mine").getheader("x-request-id") == "mine"
        made = {post(to).getheader("x-request-id") for _ in range(2)}
        assert len(made) == 2
        assert {line["request_id"] for line in lines(state, count=3)} == {"mine", *made}


def test_connections_are_used_again(state: Path) -> None:
    with upstream(streams(EVENTS)) as server, gateway(state) as to:
        arm(to, server)
        for _ in range(5):
            assert post(to).read() == EVENTS
    assert (len(server.calls), server.connections) == (5, 1)


@pytest.mark.parametrize("before", ["nothing", "head", "first event"])
def test_a_client_that_leaves_cuts_the_upstream_at_once(state: Path, before: str) -> None:
    sent = {"nothing": b"", "head": STREAM_HEAD, "first event": STREAM_HEAD + chunk(b"data: 1\n\n")}[before]

    def script(call: Call) -> None:
        call.send(sent)
        call.wait_closed()

    with upstream(script) as server, gateway(state) as to:
        arm(to, server)
        connection = connect(to)
        connection.request("POST", "/v1/chat/completions", json.dumps(ASK), {"X-Technique": "a"})
        assert server.called.wait(10)
        if before == "first event":
            assert connection.getresponse().read1() == b"data: 1\n\n"
        left_at = time.monotonic()
        connection.close()
        assert server.calls[0].closed.wait(10)
        assert server.calls[0].closed_at - left_at < HELD_S
        line = lines(state)[0]
        assert (line["status"], line["ended"]) == (499, "client_left")
        assert metric(to, "armwise_gateway_in_flight", technique="a", backend="openai") == 0
        assert metric(to, "armwise_gateway_requests_total", technique="a", backend="openai", status="499") == 1


def dies(call: Call) -> None:
    call.sock.shutdown(socket.SHUT_RDWR)


def test_an_upstream_that_dies_in_mid_stream_leaves_the_answer_without_its_end(state: Path) -> None:
    def script(call: Call) -> None:
        call.send(STREAM_HEAD + chunk(b"data: 1\n\n") + chunk(b"data: 2\n\n"))
        dies(call)

    with upstream(script) as server, gateway(state) as to:
        arm(to, server)
        answer = post(to)
        assert answer.status == 200
        with pytest.raises(http.client.IncompleteRead) as partial:
            answer.read()
        assert partial.value.partial == b"data: 1\n\ndata: 2\n\n"
        line = lines(state)[0]
        assert (line["status"], line["ended"], line["upstream_error"]) == (502, "upstream_failed", "lost")
        labels = {"technique": "a", "backend": "openai"}
        assert metric(to, "armwise_gateway_upstream_errors_total", **labels, kind="lost") == 1
        assert metric(to, "armwise_gateway_requests_total", **labels, status="200") is None


def test_a_plain_answer_cut_short_is_short_of_its_length_too(state: Path) -> None:
    def script(call: Call) -> None:
        call.send(plain(b"x" * 100)[:-40])
        dies(call)

    with upstream(script) as server, gateway(state) as to:
        arm(to, server)
        with pytest.raises(http.client.IncompleteRead) as partial:
            post(to).read()
    assert (partial.value.partial, partial.value.expected) == (b"x" * 60, 40)


def test_an_upstream_that_dies_before_its_answer_is_a_502(state: Path) -> None:
    with upstream(dies) as server, gateway(state) as to:
        arm(to, server)
        answer = post(to)
        assert (answer.status, json.loads(answer.read())["error"]["type"]) == (502, "upstream_lost")


def test_an_upstream_that_is_no_http_server_is_a_502(state: Path) -> None:
    with upstream(answers(b"SSH-2.0-OpenSSH_9.9\r\n")) as server, gateway(state) as to:
        arm(to, server)
        answer = post(to)
        assert (answer.status, json.loads(answer.read())["error"]["type"]) == (502, "upstream_malformed")


def test_silence_before_the_answer_is_a_504(state: Path) -> None:
    with upstream(lambda call: call.wait_closed()) as server, gateway(state, LIMITS) as to:
        arm(to, server)
        answer = post(to)
        error = json.loads(answer.read())["error"]
        assert (answer.status, error["type"]) == (504, "upstream_timeout")
        assert "sent nothing for 0.4 s" in error["message"]
        assert server.calls[0].closed.wait(5)


def test_silence_in_mid_stream_breaks_the_answer_off(state: Path) -> None:
    def script(call: Call) -> None:
        call.send(STREAM_HEAD + chunk(b"data: 1\n\n"))
        call.wait_closed()

    with upstream(script) as server, gateway(state, LIMITS) as to:
        arm(to, server)
        with pytest.raises(http.client.IncompleteRead):
            post(to).read()
        assert lines(state)[0]["status"] == 504


def test_a_slow_stream_is_not_silent(state: Path) -> None:
    with upstream(streams(b"0123456789", size=1, pause_s=0.1)) as server, gateway(state, LIMITS) as to:
        arm(to, server)
        assert post(to).read() == b"0123456789"


@pytest.mark.parametrize("size", [3, 1 << 20])
def test_nothing_waits_on_a_connection_that_stays_open_after_done(state: Path, size: int) -> None:
    def script(call: Call) -> None:
        call.send(STREAM_HEAD)
        for at in range(0, len(EVENTS), size):
            call.send(chunk(EVENTS[at : at + size]))
            time.sleep(0.005)  # so that the pieces arrive one by one
        call.wait_closed()

    with upstream(script) as server, gateway(state) as to:
        arm(to, server)
        began = time.monotonic()
        assert post(to).read() == EVENTS
        assert time.monotonic() - began < 5
        assert server.calls[0].closed.wait(5)
        assert lines(state)[0]["ended"] == "complete"


def test_a_slow_reader_stops_the_upstream_instead_of_filling_memory(state: Path) -> None:
    block, count = b"x" * 65536, 1000
    progress = [0]

    def script(call: Call) -> None:
        call.send(STREAM_HEAD)
        for _ in range(count):
            call.send(chunk(block))
            progress[0] += 1
        call.send(b"0\r\n\r\n")

    with upstream(script) as server, gateway(state, Limits(connect_s=1, idle_s=0.5)) as to:
        arm(to, server)
        answer = post(to)
        time.sleep(1.5)  # the idle limit passes while the client does not read: that is not the upstream's silence
        assert progress[0] < count, "64 MB were taken from the upstream although nobody read them"
        assert len(answer.read()) == len(block) * count


@pytest.mark.parametrize("body", [b"{", b"[]", b"", b"\xff", b'"{}"', b"}{", b"the secret of the garden"])
def test_a_body_that_cannot_be_a_json_object_is_a_400(state: Path, body: bytes) -> None:
    with upstream(answers(plain(b"{}"))) as server, gateway(state) as to:
        arm(to, server)
        answer = post(to, body)
        error = json.loads(answer.read())["error"]
        assert (answer.status, error["type"]) == (400, "invalid_json")
        assert error["message"] == f"body: must be a JSON object, {{...}}; found {len(body)} bytes that cannot be one"
        assert server.calls == []


def test_what_could_be_an_object_is_the_servers_to_judge(state: Path) -> None:
    refusal = plain(b'{"error":{"message":"no JSON"}}', b"400 Bad Request")
    with upstream(answers(refusal)) as server, gateway(state) as to:
        arm(to, server)
        answer = post(to, b' {"messages": nonsense}\n')
        assert (answer.status, answer.read()) == (400, b'{"error":{"message":"no JSON"}}')
        assert server.calls[0].body == b' {"messages": nonsense}\n'


def test_deeply_nested_json_is_a_400_too(state: Path) -> None:
    with upstream(answers(plain(b"{}"))) as server, gateway(state) as to:
        arm(to, server)
        assert post(to, b'{"a":' + b"[" * 200_000).status == 400


def test_a_body_over_the_limit_is_a_413(state: Path) -> None:
    with upstream(answers(plain(b"{}"))) as server, gateway(state, Limits(body_bytes=1000)) as to:
        arm(to, server)
        answer = post(to, ASK | {"padding": "x" * 1000})
        assert answer.status == 413
        assert "at most 1000 bytes" in json.loads(answer.read())["error"]["message"]
        chunked = connect(to)
        body = iter([b'{"a":"', b"x" * 1000, b'"}'])
        chunked.request("POST", "/v1/chat/completions", body, {"X-Technique": "a"}, encode_chunked=True)
        assert chunked.getresponse().status == 413
        assert server.calls == []


def test_more_requests_than_allowed_are_a_503_and_the_others_live(state: Path) -> None:
    go = threading.Event()

    def script(call: Call) -> None:
        assert go.wait(10)
        call.send(plain(b"{}"))

    with upstream(script) as server, gateway(state, Limits(in_flight=1)) as to:
        arm(to, server)
        first: list[int] = []
        waiting = threading.Thread(target=lambda: first.append(post(to).status))
        waiting.start()
        assert server.called.wait(10)
        assert post(to).status == 503
        go.set()
        waiting.join(10)
        assert first == [200]
        assert sorted(line["status"] for line in lines(state, count=2)) == [200, 503]
        assert post(to).status == 200


def test_a_second_answer_that_nobody_asked_for_reaches_nobody(state: Path) -> None:
    with upstream(answers(plain(b"{}") + plain(b'{"for":"somebody else"}'))) as server, gateway(state) as to:
        arm(to, server)
        assert [post(to).read(), post(to).read()] == [b"{}", b"{}"]
        assert server.connections == 2


def test_100_continue_before_the_answer_is_skipped(state: Path) -> None:
    with upstream(answers(b"HTTP/1.1 100 Continue\r\n\r\n" + plain(b"{}"))) as server, gateway(state) as to:
        arm(to, server)
        answer = post(to)
        assert (answer.status, answer.read()) == (200, b"{}")


def test_what_comes_after_the_end_of_a_stream_reaches_nobody(state: Path) -> None:
    """A second answer in the same read, which would otherwise be the answer to the client's next request."""
    whole = STREAM_HEAD + chunk(EVENTS) + b"0\r\n\r\n"
    with upstream(answers(whole + plain(b'{"for":"somebody else"}'))) as server, gateway(state) as to:
        arm(to, server)
        connection = connect(to)
        for _ in range(2):
            connection.request("POST", "/v1/chat/completions", json.dumps(ASK), {"X-Technique": "a"})
            assert connection.getresponse().read() == EVENTS
        assert server.connections == 2


class Cycle:
    """What uvicorn's `send` belongs to, as far as an outlet looks at it; its client never reads too slowly."""

    def __init__(self) -> None:
        self.transport = self
        self.flow = self
        self.write_paused = False
        self.wrote: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.wrote.append(data)

    async def send(self, _message: object) -> None:
        raise AssertionError("a chunk does not go through send")


@pytest.mark.parametrize("size", [1, 1000, 70_000])
def test_the_tail_is_the_end_of_what_passed(size: int) -> None:
    body = bytes(i * 7 % 251 for i in range(200_000))
    cycle = Cycle()
    outlet = Outlet(cycle.send, openai)
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    for piece in pieces:
        assert outlet.write(piece) is False
    assert (outlet.tail(), outlet.size) == (body[-TAIL_BYTES:], len(body))
    assert sum(map(len, outlet.parts)) <= 5 * TAIL_BYTES + size
    assert cycle.wrote == [chunk(piece) for piece in pieces]


def test_a_send_without_a_transport_is_told_in_words() -> None:
    async def send(_message: object) -> None: ...

    with pytest.raises(RuntimeError, match=r"outlet\.py must be adapted"):
        Outlet(send, openai)
