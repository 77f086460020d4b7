"""What a stream said does not depend on how the network cut it; every fault has its own kind."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.record import FAILURES
from tasks.traffic import events


def sse(*contents: Any, end: str = "\n") -> bytes:
    return b"".join(
        f"data: {c if isinstance(c, str) else json.dumps(c, ensure_ascii=False)}{end}{end}".encode() for c in contents
    )


def delta(finish: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}


def part(index: int | None = 0, **function: Any) -> dict[str, Any]:
    call = {"function": {k: v for k, v in function.items() if k != "id"}}
    return call | ({"index": index} if index is not None else {}) | ({"id": function["id"]} if "id" in function else {})


USAGE = {
    "choices": [],
    "usage": {"prompt_tokens": 90, "completion_tokens": 12, "prompt_tokens_details": {"cached_tokens": 64}},
}
GOOD: tuple[Any, ...] = (
    delta(role="assistant", content=""),
    delta(reasoning="hm", reasoning_content="hm"),
    delta(content="Grüße ✓ "),
    delta(tool_calls=[part(0, id="a", name="web_search", arguments="")]),
    delta(tool_calls=[part(0, arguments='{"query":')]),
    delta(tool_calls=[part(0, arguments=' "x"}')]),
    delta("tool_calls"),
    USAGE,
    "[DONE]",
)


def heard_of(*contents: Any) -> events.Heard:
    return events.listen([(i, sse(c)) for i, c in enumerate(contents, start=1)])


def test_a_good_stream_in_full() -> None:
    heard = heard_of(*GOOD)
    assert heard.failure is None
    assert (heard.reasoning, heard.content) == ("hm", "Grüße ✓ ")
    assert heard.tool_calls == [{"id": "a", "name": "web_search", "arguments": '{"query": "x"}'}]
    assert heard.chunks_ns == [2, 3, 4, 5, 6]  # neither the role nor the finish reason is a chunk
    assert heard.first_answer_ns == 3  # not the reasoning
    assert (heard.input_tokens, heard.cached_input_tokens, heard.output_tokens) == (90, 64, 12)
    assert heard.finish_reason == "tool_calls"


BODIES = {
    "good": sse(*GOOD),
    "crlf": sse(*GOOD, end="\r\n"),
    "comments": b": ping\n\n" + sse(*GOOD[:3]) + b":\n\nid: 7\nretry: 5\n" + sse(*GOOD[3:]),
    "error": sse(*GOOD[:3], {"error": {"message": "no memory"}}, "[DONE]"),
    "cut": sse(*GOOD)[:-40],
    "cut in a field's name": sse(*GOOD[:3]) + b"dat",
    "rubbish": sse(*GOOD[:3], '{"choices": [', "[DONE]"),
    "no end": sse(*GOOD).removesuffix(b"\n\n"),
    "lines joined": b'data: {"choices": [{"delta": {"content":\ndata: "a"}, "finish_reason": "stop"}]}\n\n'
    + sse("[DONE]"),
    "json": b'{"error": {"message": "not\\nhere"}}',
    "html": b"<html>\ndown for repair\n</html>",
}


@pytest.mark.parametrize("name", BODIES)
@settings(deadline=None)
@given(data=st.data())
def test_any_cut_of_the_bytes_says_the_same(name: str, data: st.DataObject) -> None:
    body = BODIES[name]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=12)))
    ends = [*cuts, len(body)]
    pieces = [(7, body[a:b]) for a, b in zip([0, *cuts], ends, strict=True)]
    assert events.listen(pieces) == events.listen([(7, body)])


@settings(deadline=None)
@given(st.lists(st.integers(0, len(BODIES["good"])), max_size=12))
def test_an_event_is_stamped_by_the_piece_that_ends_it(cuts: list[int]) -> None:
    body, cuts = BODIES["good"], sorted(cuts)
    pieces = [(end, body[a:end]) for a, end in zip([0, *cuts], [*cuts, len(body)], strict=True)]
    marks = [b"hm", "Grüße".encode(), b"web_search", b'"{\\"query\\":"', b'" \\"x\\"}"']
    ends = [body.index(b"\n\n", body.index(mark)) + 2 for mark in marks]
    expected = [min(end for end, _ in pieces if end >= blank) for blank in ends]
    assert events.listen(pieces).chunks_ns == expected


def test_bytes_one_by_one() -> None:
    for body in BODIES.values():
        assert events.listen([(7, bytes([byte])) for byte in body]) == events.listen([(7, body)])


FAULTS: list[tuple[str, bytes, str]] = [
    ("truncated", b"", "finish_reason and [DONE]"),
    ("truncated", sse(*GOOD[:-1]), "[DONE]"),
    ("truncated", sse(delta(content="a"), "[DONE]"), "finish_reason"),
    ("truncated", sse(*GOOD)[:-60], "[DONE]"),
    ("truncated", sse(delta(content="a")) + b'data: {"choices": [{"del', "finish_reason"),
    ("malformed", sse('{"choices": [{"del'), "not JSON"),
    ("malformed", sse("[1, 2]", "[DONE]"), "not an object"),
    ("malformed", sse("[" * 100_000), "not JSON"),
    ("malformed", sse({"id": "x"}), "without choices"),
    ("malformed", sse({"choices": ["x"]}), "without a delta"),
    ("malformed", sse(delta(content=5)), "delta.content is not text"),
    ("malformed", sse(delta(tool_calls={})), "delta.tool_calls is not a list"),
    ("malformed", sse(delta(tool_calls=["x"])), "a tool call that is not an object"),
    ("malformed", b"data: \xff\xfe\n\n", "not JSON"),
    ("malformed", b'{"choices": [{"message": {"content": "whole"}}]}', "not an event stream"),
    ("malformed", b"<html>bad gateway</html>", "not an event stream"),
    ("error_event", sse(delta(content="a"), {"error": {"message": "no memory", "code": 500}}), "no memory"),
    ("error_event", sse({"object": "error", "message": "old style"}), "old style"),
    ("error_event", b'event: error\ndata: {"detail": "named"}\n\n', "named"),
    ("error_event", b'{"error": "whole body"}', "whole body"),
    ("error_event", sse(delta(content="a"), delta("abort"), "[DONE]"), "abort"),
    ("empty", sse(delta(role="assistant"), delta("stop"), USAGE, "[DONE]"), "no content"),
]


@pytest.mark.parametrize(("kind", "body", "says"), FAULTS)
def test_every_fault_has_its_kind(kind: str, body: bytes, says: str) -> None:
    heard = events.listen([(1, body)])
    assert kind in FAILURES
    assert heard.failure == kind
    assert says in (heard.failure_detail or "")


def test_the_first_fault_is_the_failure() -> None:
    heard = heard_of({"error": "first"}, "{", "[DONE]")
    assert (heard.failure, heard.failure_detail) == ("error_event", "first")


def test_an_answer_after_the_fault_is_kept() -> None:
    assert heard_of(delta(content="a"), "{", delta(content="b")).content == "ab"


def test_a_missing_blank_line_after_done_is_no_fault() -> None:
    assert events.listen([(1, BODIES["no end"])]).failure is None


def test_usage_in_every_event_counts_the_last() -> None:
    two = {"usage": {"prompt_tokens": 9, "completion_tokens": 2}}
    heard = heard_of(
        delta(content="a") | {"usage": {"prompt_tokens": 9, "completion_tokens": 1}}, delta("stop") | two, "[DONE]"
    )
    assert (heard.output_tokens, heard.cached_input_tokens, heard.failure) == (2, None, None)


def test_usage_null_and_counts_of_another_type_are_no_numbers() -> None:
    usage = {"usage": {"prompt_tokens": "9", "completion_tokens": True}}
    heard = heard_of(delta(content="a") | {"usage": None}, delta("stop") | usage, "[DONE]")
    assert (heard.input_tokens, heard.output_tokens, heard.failure) == (None, None, None)


def test_two_calls_with_and_without_an_index() -> None:
    one, two = part(None, id="a", name="f", arguments="{"), part(None, id="b", name="g", arguments="[")
    heard = heard_of(
        delta(tool_calls=[one]), delta(tool_calls=[part(None, arguments="}")]), delta(tool_calls=[two]), delta("stop")
    )
    assert [(c["id"], c["name"], c["arguments"]) for c in heard.tool_calls] == [("a", "f", "{}"), ("b", "g", "[")]
    assert heard_of(delta(tool_calls=[part(10**12, name="f"), part(3, name="g")])).tool_calls == [
        {"id": "call_0", "name": "g", "arguments": ""},
        {"id": "call_1", "name": "f", "arguments": ""},
    ]


def test_a_very_long_line_in_small_pieces() -> None:
    body = sse(delta(content="x" * 2_000_000), delta("stop"), "[DONE]")
    heard = events.listen([(i, body[i : i + 1000]) for i in range(0, len(body), 1000)])
    assert (len(heard.content), heard.failure) == (2_000_000, None)
