"""One suite over every tool in tasks/agent/tools: its examples run, its schema derives, its call is bounded."""

import json
import time
from typing import Any

import pytest

from tasks import catalog
from tasks.agent import golden, toolbox, tools
from tasks.agent.desk import Desk

NAMES = catalog.module_names(tools)
SAMPLE = {"string": "x" * 100_000, "integer": 10**9, "number": 1.5, "boolean": True}


@pytest.fixture
def desk() -> Desk:
    return Desk(golden.material("v1").index)


def test_there_are_tools() -> None:
    assert {"web_search", "manage_tasks"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_examples_run(name: str) -> None:
    examples = catalog.module_of(tools, name).EXAMPLES
    assert examples
    for arguments, expected in examples:
        parsed = toolbox.parse(name, json.dumps(arguments))
        output = toolbox.call(name, parsed, Desk(golden.material("v1").index))
        assert json.loads(output) == expected


@pytest.mark.parametrize("name", NAMES)
def test_schema_derives(name: str) -> None:
    schema = toolbox.schema(name)
    function = schema["function"]
    assert (schema["type"], function["name"]) == ("function", name)
    assert len(function["description"]) >= 20, "the docstring is what the model reads"
    parameters = function["parameters"]
    assert parameters["type"] == "object" and set(parameters["required"]) <= set(parameters["properties"])
    assert "desk" not in parameters["properties"]
    json.dumps(schema)


@pytest.mark.parametrize("name", NAMES)
def test_call_is_bounded_in_time_and_size(name: str, desk: Desk) -> None:
    for arguments in _extremes(toolbox.schema(name)["function"]["parameters"]):
        began = time.monotonic()
        for _ in range(20):
            output = toolbox.call(name, arguments, desk)
        assert time.monotonic() - began < 5
        assert len(output) <= toolbox.MOST_CHARS + len(" ... (cut)")


@pytest.mark.parametrize("name", NAMES)
def test_wrong_arguments_are_refused(name: str) -> None:
    for arguments in ("", "[]", '{"no_such_parameter": 1}'):
        with pytest.raises(toolbox.BadCall):
            toolbox.parse(name, arguments)


def _extremes(parameters: dict[str, Any]) -> list[dict[str, Any]]:
    """Calls with the longest of everything, one for each value of an enum."""
    full = {key: SAMPLE[kind["type"]] for key, kind in parameters["properties"].items()}
    enums = [(key, value) for key, kind in parameters["properties"].items() for value in kind.get("enum", [])]
    return [full | {key: value} for key, value in enums] or [full]


@pytest.mark.parametrize("measured", [True, False])
def test_web_search_is_live_only_in_a_task_that_is_not_measured(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, measured: bool
) -> None:
    from tasks.agent.tools import web_search

    monkeypatch.setenv("TAVILY_API_KEY", "none")
    monkeypatch.setattr(web_search, "_live", lambda query, _key: [{"title": "live", "snippet": query}])
    desk.measured = measured
    found = json.loads(toolbox.call("web_search", {"query": "Himfu Zoo"}, desk))["results"]
    assert (found[0]["title"] == "live") is not measured


def test_web_search_without_a_key_is_frozen(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TAVILY_API_KEY", raising=False)
    desk.measured = False
    found = json.loads(toolbox.call("web_search", {"query": "Himfu Zoo ticket price"}, desk))["results"]
    assert found[0]["title"] == "Himfu Zoo" and len(found) == 3


def test_live_search_speaks_tavily(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against a server of our own: what is sent, and what is made of its answer."""
    import threading
    from http.server import BaseHTTPRequestHandler, HTTPServer

    from tasks.agent.tools import web_search

    heard: list[Any] = []

    class Tavily(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            heard.append((self.headers["Authorization"], json.loads(body)))
            results = [{"title": f"t{n}", "url": "u", "content": "c" * 5000, "score": 1} for n in range(5)]
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"results": results}).encode())

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Tavily) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        monkeypatch.setattr(web_search, "TAVILY_URL", f"http://127.0.0.1:{server.server_port}/search")
        found = web_search._live("who", "secret")
    assert heard == [("Bearer secret", {"query": "who", "max_results": 3, "search_depth": "basic"})]
    assert [hit["title"] for hit in found] == ["t0", "t1", "t2"]
    assert all(set(hit) == {"title", "snippet"} and len(hit["snippet"]) == 600 for hit in found)


def step(desk: Desk, **arguments: Any) -> dict[str, Any]:
    return json.loads(toolbox.call("manage_tasks", arguments, desk))


def test_manage_tasks_from_add_to_remove(desk: Desk) -> None:
    assert step(desk, action="add", title="a")["id"] == 1
    assert step(desk, action="add", title="b")["id"] == 2
    assert step(desk, action="complete", id=1) == {
        "ok": True,
        "tasks": [{"id": 1, "title": "a", "done": True}, {"id": 2, "title": "b", "done": False}],
    }
    assert step(desk, action="remove", id=2)["tasks"] == [{"id": 1, "title": "a", "done": True}]
    assert step(desk, action="remove", id=2) == {
        "ok": False,
        "error": "no task with id 2",
        "tasks": [{"id": 1, "title": "a", "done": True}],
    }
    assert step(desk, action="add", title="c")["id"] == 3, "an id is never used twice"


def test_manage_tasks_is_bounded(desk: Desk) -> None:
    from tasks.agent.tools.manage_tasks import LONGEST_TITLE, MOST_TASKS

    assert step(desk, action="add") == {"ok": False, "error": "add needs a title", "tasks": []}
    assert not step(desk, action="add", title="x" * (LONGEST_TITLE + 1))["ok"]
    for number in range(MOST_TASKS):
        assert step(desk, action="add", title=f"t{number}")["ok"]
    assert step(desk, action="add", title="one more")["error"] == f"the list is full: {MOST_TASKS} tasks"
