"""What the sim says: golden cases played right, filler that depends on the prompt alone, and bytes that carry it."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.agent import golden
from tasks.engines.sim import answers, deltas
from tasks.engines.sim.answers import Asked

TOOLS = [{"type": "function"}]
CASES = golden.load("v1")


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


@given(st.text(max_size=60))
def test_tokens_joined_are_the_text_again(text: str) -> None:
    assert "".join(answers.tokens(text)) == text


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_a_golden_case_is_played_to_its_end(case: golden.Case) -> None:
    messages = [user(case.query)]
    for call in case.expected_calls:
        found = answers.answer(Asked(messages, TOOLS))
        assert found.finish_reason == "tool_calls"
        said = deltas.message(found.pieces, "call_1")
        assert said["tool_calls"][0]["function"]["name"] == call.name
        assert json.loads(said["tool_calls"][0]["function"]["arguments"]) == call.arguments
        messages += [said, {"role": "tool", "content": "{}", "tool_call_id": "call_1"}]
    last = answers.answer(Asked(messages, TOOLS))
    assert (last.finish_reason, deltas.message(last.pieces, "c")["content"]) == ("stop", case.reference_answer)


@pytest.mark.parametrize("tools", [TOOLS, []])
def test_an_answer_comes_back_as_the_same_tokens(tools: list) -> None:
    asked = [user(CASES[0].query)]
    found = answers.answer(Asked(asked, tools))
    before = [*answers.prompt(asked, tools), *answers.spoken(found.pieces)]
    after = answers.prompt([*asked, deltas.message(found.pieces, "c")], tools)
    assert after[: len(before)] == before


def test_without_a_parser_a_call_is_text() -> None:
    found = answers.answer(Asked([user(CASES[0].query)], TOOLS, parses_calls=False))
    text = deltas.message(found.pieces, "c")["content"]
    call = json.loads(text.split("<tool_call>\n")[1].split("\n</tool_call>")[0])
    assert call == {"name": CASES[0].expected_calls[0].name, "arguments": CASES[0].expected_calls[0].arguments}
    assert found.finish_reason == "stop"


@given(st.text(max_size=40), st.integers(0, 5))
def test_filler_depends_on_prompt_and_seed_alone(text: str, seed: int) -> None:
    first, again = (answers.answer(Asked([user(text)], seed=seed)).pieces for _ in range(2))
    assert first == again
    assert answers.SHORTEST <= len(first) < answers.SHORTEST + answers.SPREAD


@pytest.mark.parametrize(
    ("limit", "is_fixed", "reason", "count"), [(5, False, "length", 5), (300, True, "length", 300)]
)
def test_limits_hold(limit: int, is_fixed: bool, reason: str, count: int) -> None:
    found = answers.answer(Asked([user("x")], limit=limit, is_fixed=is_fixed))
    assert (found.finish_reason, len(found.pieces)) == (reason, count)


def test_hashes_of_blocks_chain_and_are_salted() -> None:
    words = [str(number) for number in range(50)]
    whole = answers.block_hashes(words, 16, "")
    assert len(whole) == 3
    assert answers.block_hashes(words[:40], 16, "") == whole[:2]
    changed = answers.block_hashes(["other", *words[1:]], 16, "")
    assert not set(changed) & set(whole)
    assert not set(answers.block_hashes(words, 16, "salt")) & set(whole)


PIECES = st.lists(st.tuples(st.just("content"), st.text(min_size=1, max_size=8)), min_size=1, max_size=6)


@given(PIECES)
def test_one_event_carries_all_tokens_of_a_step(pieces: list[answers.Piece]) -> None:
    opening = deltas.opening("chatcmpl-1", 7, 'a "model"')
    data = deltas.framed(deltas.event(opening, deltas.delta(pieces, "c")))
    size, _, rest = data.partition(b"\r\n")
    assert rest[int(size, 16) :] == b"\r\n" and b"\n\n" not in rest[: int(size, 16) - 2]
    told = json.loads(rest[: int(size, 16)].removeprefix(b"data: "))
    assert told["choices"][0]["delta"] == {"content": "".join(text for _, text in pieces)}
    assert (told["model"], told["choices"][0]["finish_reason"]) == ('a "model"', None)


def test_a_step_may_end_the_text_and_begin_the_call() -> None:
    pieces = [("content", " end"), ("name", "find"), ("arguments", '{"a"'), ("arguments", ":")]
    told = json.loads(deltas.delta(pieces, "call_7"))
    function = {"name": "find", "arguments": '{"a":'}
    assert told["content"] == " end"
    assert told["tool_calls"] == [{"id": "call_7", "type": "function", "index": 0, "function": function}]
    assert json.loads(deltas.delta([("arguments", "1}")], "call_7")) == {
        "tool_calls": [{"index": 0, "function": {"arguments": "1}"}}]
    }
