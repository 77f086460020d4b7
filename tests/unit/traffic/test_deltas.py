"""What each delta counts as, and what the gaps between chunks say."""

import json
from typing import Any

import pytest

from tasks.traffic import events

ZERO = dict.fromkeys(events.KINDS, 0)
CALL = [{"index": 0, "id": "a", "function": {"name": "f", "arguments": "{}"}}]


def sse(content: Any) -> bytes:
    return b"data: " + (content if isinstance(content, bytes) else json.dumps(content).encode()) + b"\n\n"


def delta(finish: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}


def heard(*timed: tuple[int, Any]) -> events.Heard:
    return events.listen([(at_ms * 1_000_000, sse(content)) for at_ms, content in timed])


@pytest.mark.parametrize(
    ("content", "counts", "chunks"),
    [
        (delta(role="assistant", content=""), {"role": 1}, 0),
        (delta(content="a"), {"content": 1}, 1),
        (delta(role="assistant", content="a"), {"content": 1}, 1),
        (delta(refusal="no"), {"content": 1}, 1),
        (delta(reasoning="hm"), {"reasoning": 1}, 1),
        (delta(reasoning_content="hm"), {"reasoning": 1}, 1),
        (delta(reasoning="hm", content="a"), {"reasoning": 1, "content": 1}, 1),
        (delta(tool_calls=CALL), {"tool_call": 1}, 1),
        (delta(tool_calls=[{"index": 0, "id": "a"}]), {"end": 1}, 0),
        (delta("stop"), {"end": 1}, 0),
        ({"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}, {"usage": 1}, 0),
        ({"error": {"message": "no memory"}}, {"error": 1}, 0),
    ],
)
def test_a_delta_counts_for_what_it_carries(content: Any, counts: dict[str, int], chunks: int) -> None:
    found = heard((1, content))
    assert found.kinds == ZERO | counts
    assert len(found.chunks_ns) == chunks


def test_a_comment_is_counted_and_no_fault() -> None:
    found = events.listen([(1, b": ping\n\n" + sse(delta(content="a")) + sse(delta("stop")) + sse(b"[DONE]"))])
    assert (found.kinds["comment"], found.failure) == (1, None)


def test_reasoning_is_counted_and_is_no_answer() -> None:
    thought = [(10, delta(reasoning="hm")), (20, delta(reasoning="ah"))]
    row = events.fields(heard(*thought, (30, delta(content="a")), (40, delta("stop")), (40, b"[DONE]")))
    assert (row["chunks"], row["reasoning_chunks"]) == (3, 2)
    assert (row["t_first_token_ns"], row["t_first_answer_ns"]) == (10_000_000, 30_000_000)


def test_gaps_longer_than_a_quarter_of_a_second_are_stalls() -> None:
    times_ms = (0, 20, 270, 521, 541, 2541)  # gaps of 20, 250, 251, 20 and 2000 ms
    row = events.fields(heard(*((at, delta(content="a")) for at in times_ms)))
    assert (row["stalls"], row["icl_ms_max"]) == (2, 2000.0)


def test_one_chunk_has_no_gap_and_no_stalls() -> None:
    row = events.fields(heard((1, delta(content="a"))))
    assert (row["chunks"], row["stalls"], row["icl_ms_max"]) == (1, None, None)


def test_events_of_one_piece_share_its_stamp_and_a_split_one_has_that_of_its_end() -> None:
    a, b = sse(delta(content="a")), sse(delta(content="b"))
    assert events.listen([(7, a + b)]).chunks_ns == [7, 7]
    assert events.listen([(7, a + b[:5]), (9, b[5:])]).chunks_ns == [7, 9]
    assert events.listen([(7, a[:-1]), (9, a[-1:] + b)]).chunks_ns == [9, 9]
