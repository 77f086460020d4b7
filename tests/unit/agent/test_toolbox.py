"""Calls as a model may write them: right, nearly right, and rubbish."""

import json

import pytest

from tasks.agent import toolbox
from tasks.agent.desk import Desk, index_of

RUBBISH = [
    ("manage_tasks", "", "not JSON"),
    ("manage_tasks", '{"action": "add"', "not JSON"),
    ("manage_tasks", "[" * 100_000, "not JSON"),
    ("manage_tasks", '{"id": ' + "1" * 10_000 + "}", "not JSON"),
    ("manage_tasks", '["list"]', "must be an object, found list"),
    ("manage_tasks", "null", "must be an object, found NoneType"),
    ("manage_tasks", "{}", "action: is missing"),
    ("manage_tasks", '{"action": null}', "action: must be string, found NoneType"),
    ("manage_tasks", '{"action": "drop"}', "must be one of add, list, complete, remove, found 'drop'"),
    ("manage_tasks", '{"action": "complete", "id": "3"}', "id: must be integer, found str"),
    ("manage_tasks", '{"action": "complete", "id": true}', "id: must be integer, found bool"),
    ("manage_tasks", '{"action": "complete", "id": 3.0}', "id: must be integer, found float"),
    ("manage_tasks", '{"action": "list", "all": 1}', "all: not a parameter; known: action, title, id"),
    ("manage_tasks", '{"action": "add", "title": "\\ud800"}', "title: must be text that can be encoded"),
    ("web_search", '{"query": ["a"]}', "query: must be string, found list"),
    ("web_search", '{"query": "a", "desk": 1}', "desk: not a parameter"),
    ("shell", "{}", "no tool 'shell'; known: manage_tasks, web_search"),
    ("", "{}", "no tool ''"),
    ("../tools/web_search", "{}", "no tool"),
]


@pytest.mark.parametrize(("name", "arguments", "words"), RUBBISH)
def test_rubbish_is_a_bad_call_in_words(name: str, arguments: str, words: str) -> None:
    with pytest.raises(toolbox.BadCall) as caught:
        toolbox.parse(name, arguments)
    assert words in str(caught.value)


def test_an_optional_argument_may_be_null() -> None:
    assert toolbox.parse("manage_tasks", '{"action": "list", "title": null, "id": null}') == {"action": "list"}


def test_output_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolbox, "MOST_CHARS", 50)
    desk = Desk(index_of([{"title": "long", "snippet": "word " * 100}]))
    output = toolbox.call("web_search", {"query": "long"}, desk)
    assert output.endswith(" ... (cut)") and len(output) == 50 + len(" ... (cut)")


def test_a_tool_that_fails_tells_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(query: str, *, desk: Desk) -> str:
        raise OSError("no route to host")

    monkeypatch.setattr(toolbox, "function", lambda _name: broken)
    output = toolbox.call("web_search", {"query": "x"}, Desk(index_of([{"title": "a", "snippet": "b"}])))
    assert json.loads(output) == {"error": "web_search failed: no route to host"}
