"""The log: one line per request with what joins and what was measured, and nothing that was said."""

import io
import json
import time
from pathlib import Path

import pytest
from scripted_upstream import ASK, EVENTS, Call, answers, gateway, lines, metric, plain, post, streams, upstream

from tasks.gateway.client import register
from tasks.gateway.log import Log

FIELDS = {
    "at", "event", "request_id", "task_id", "step", "technique", "backend", "upstream", "run_id", "status", "ended",
    "error", "upstream_error", "stream", "sent_ms", "head_ms", "ttfb_ms", "total_ms", "request_bytes", "response_bytes",
    "input_tokens", "cached_input_tokens", "output_tokens", "finish_reason", "is_done", "is_error",
}  # fmt: skip


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "gateway"


def test_one_line_tells_what_joins_and_what_was_measured(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def script(call: Call) -> None:
        time.sleep(0.1)
        streams(EVENTS, size=len(EVENTS) // 2, pause_s=0.1)(call)

    with upstream(script) as server, gateway(state) as to:
        register(to, "a", server.url, "m", None, "run-1")
        post(to, X_Request_Id="r-1", X_Task_Id="t-1", X_Step="3").read()
        line = lines(state)[0]
    assert set(line) == FIELDS
    assert (line["request_id"], line["task_id"], line["step"], line["run_id"]) == ("r-1", "t-1", "3", "run-1")
    assert (line["technique"], line["backend"], line["upstream"]) == ("a", "openai", server.url)
    assert (line["request_bytes"], line["response_bytes"]) == (len(json.dumps(ASK)), len(EVENTS))
    assert 0 <= line["sent_ms"] <= line["head_ms"] <= line["ttfb_ms"] <= line["total_ms"]
    assert line["head_ms"] >= 100
    assert line["total_ms"] >= line["ttfb_ms"] + 100
    printed = [json.loads(text) for text in capsys.readouterr().out.splitlines()]
    assert [found for found in printed if found["event"] == "request"] == [line]


@pytest.mark.parametrize("body", [ASK, b'{"messages": the secret of the garden', b'["the secret of the garden"]'])
def test_what_was_said_is_not_logged(state: Path, body: object, capsys: pytest.CaptureFixture[str]) -> None:
    said = b'{"choices":[{"message":{"content":"roses in june"},"finish_reason":"stop"}]}'
    with upstream(answers(plain(said))) as server, gateway(state) as to:
        register(to, "a", server.url, "m", "key-of-the-arm", "run-1")
        post(to, body, Authorization="Bearer key-of-the-client").read()
        lines(state)
        token = to.token
    logged = (state / "requests.log").read_text() + "".join(capsys.readouterr())
    for secret in ("garden", "roses", "key-of-the-arm", "key-of-the-client", token):
        assert secret not in logged


def test_prompts_are_logged_when_asked_for_and_keys_still_are_not(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARMWISE_LOG_PROMPTS", "1")
    with upstream(answers(plain(b"{}"))) as server, gateway(state) as to:
        register(to, "a", server.url, "m", "key-of-the-arm", "run-1")
        post(to).read()
        assert json.loads(lines(state)[0]["prompt"]) == ASK
    assert "key-of-the-arm" not in (state / "requests.log").read_text()


def test_a_header_cannot_forge_a_line(state: Path) -> None:
    with upstream(answers(plain(b"{}"))) as server, gateway(state) as to:
        register(to, "a", server.url, "m", None, "run-1")
        post(to, X_Task_Id='"}\t{"event":"request","status":200', X_Step="s" * 5000).read()
        line = lines(state)[0]
    assert line["task_id"] == '"}\t{"event":"request","status":200'
    assert len(line["step"]) == 200


def test_a_line_that_cannot_be_written_is_counted_and_the_request_goes_on(state: Path) -> None:
    state.mkdir()
    (state / "requests.log").symlink_to("/dev/full")
    with upstream(answers(plain(b'{"i":"a"}'))) as server, gateway(state) as to:
        register(to, "a", server.url, "m", None, "run-1")
        assert post(to).read() == b'{"i":"a"}'
        assert metric(to, "armwise_gateway_log_errors_total") >= 1


def test_a_closed_standard_output_costs_nothing_but_a_count(tmp_path: Path) -> None:
    lost: list[int] = []
    with (tmp_path / "out").open("w") as closed:
        pass
    log = Log(tmp_path / "log", echo=closed, on_error=lambda: lost.append(1))
    log.write("request", status=200)
    log.close()
    assert json.loads((tmp_path / "log").read_text())["status"] == 200
    assert lost == [1]


def test_a_line_longer_than_a_pipe_takes_at_once_is_in_the_file_only(tmp_path: Path) -> None:
    echo = io.StringIO()
    log = Log(tmp_path / "log", echo=echo)
    log.write("request", prompt="x" * 5000)
    log.write("request", status=200)
    log.close()
    filed = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [len(line.get("prompt", "")) for line in filed] == [5000, 0]
    assert [json.loads(line)["status"] for line in echo.getvalue().splitlines()] == [200]
