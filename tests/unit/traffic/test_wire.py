"""HTTP on the way in: interim answers, compressed bodies, framing cut anywhere, very long lines."""

import gzip
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from stand_in.scripted import Scripted, scripting

from tasks.traffic import stream

pytestmark = pytest.mark.services  # a server for each case

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"


@pytest.fixture
def scripted() -> Iterator[Callable[..., Scripted]]:
    with scripting() as start:
        yield start


def body(text: str, end: str = "\n") -> bytes:
    said: list[Any] = [{"choices": [{"delta": {"content": text}, "finish_reason": "stop"}]}]
    return b"".join(f"data: {line}{end}{end}".encode() for line in [json.dumps(said[0]), "[DONE]"])


def sized(content: bytes, headers: bytes = b"") -> bytes:
    return HEAD + headers + b"Content-Length: %d\r\n\r\n" % len(content) + content


def call(server: Scripted) -> stream.Answer:
    return stream.call(stream.Endpoint(server.url, "a", "m", idle_s=5), {"messages": []}, request_id="r", timeout_s=10)


@pytest.mark.parametrize(
    "interim", [b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"]
)
def test_an_interim_answer_is_not_the_answer(scripted: Callable[..., Scripted], interim: bytes) -> None:
    answer = call(scripted([(0, interim), (0.05, sized(body("a")))]))
    assert (answer.row["status"], answer.row["failure"], answer.content) == (200, None, "a")


def test_a_gzipped_answer_is_read(scripted: Callable[..., Scripted]) -> None:
    answer = call(scripted([(0, sized(gzip.compress(body("a")), b"Content-Encoding: gzip\r\n"))]))
    assert (answer.row["failure"], answer.content, answer.row["chunks"]) == (None, "a", 1)


def test_another_encoding_is_told(scripted: Callable[..., Scripted]) -> None:
    row = call(scripted([(0, sized(body("a"), b"Content-Encoding: br\r\n"))])).row
    assert (row["failure"], row["failure_detail"]) == ("malformed", "content-encoding br was not asked for")


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_framing_and_events_cut_byte_by_byte(scripted: Callable[..., Scripted], end: str) -> None:
    content = body("ab", end)
    framed = HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"".join(b"1\r\n%c\r\n" % byte for byte in content)
    answer = call(scripted([(0, framed[:90]), (0.02, framed[90:300]), (0.02, framed[300:] + b"0\r\n\r\n")]))
    assert (answer.row["failure"], answer.content, answer.row["chunks"]) == (None, "ab", 1)


def test_a_line_of_megabytes(scripted: Callable[..., Scripted]) -> None:
    answer = call(scripted([(0, sized(body("x" * 3_000_000)))]))
    assert (answer.row["failure"], len(answer.content)) == (None, 3_000_000)
