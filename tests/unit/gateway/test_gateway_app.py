"""Routing, errors in words, and the admin calls."""

import contextlib
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from scripted_upstream import answers, connect, dead_url, gateway, get, lines, metric, plain, post, upstream

from tasks.artifact import BrokenArtifact
from tasks.document import InvalidDocument
from tasks.gateway.app import create
from tasks.gateway.client import Gateway, register
from tasks.gateway.registry import Backend, Registry, shared_number

pytestmark = pytest.mark.services  # a gateway

BACKEND = {"technique": "a", "url": "http://127.0.0.1:9", "model": "m", "run_id": "run-1"}


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "gateway"


def admin(to: Gateway, method: str, path: str = "", content: object = None, **headers: str) -> tuple[int, dict]:
    sent = {"Authorization": f"Bearer {to.token}"} | headers
    body = content if isinstance(content, bytes) else json.dumps(content)
    connection = connect(to)
    connection.request(method, f"/admin/backends{path}", body, sent)
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


def message(document: dict) -> str:
    return document["error"]["message"]


def test_without_arms_it_is_healthy_and_says_that_none_is_registered(state: Path) -> None:
    with gateway(state) as to:
        assert json.loads(get(to, "/healthz")[1]) == {"status": "ok", "service": "armwise-gateway", "techniques": []}
        answer = post(to)
        assert answer.status == 400
        assert json.loads(answer.read())["error"] == {
            "message": "X-Technique: no 'a'; known: none is registered",
            "type": "unknown_technique",
            "code": 400,
        }


@pytest.mark.parametrize(("technique", "says"), [(None, "is missing"), ("c", "no 'c'"), ("A", "no 'A'")])
def test_a_missing_or_unknown_technique_is_a_400_that_lists_the_known_ones(
    state: Path, technique: str | None, says: str
) -> None:
    with gateway(state) as to:
        for name in ("b", "a"):
            register(to, name, "http://127.0.0.1:9", "m", None, "run-1")
        answer = post(to, technique=technique)
        assert answer.status == 400
        assert message(json.loads(answer.read())) == f"X-Technique: {says}; known: a, b"
        assert get(to, "/v1/models", X_Technique="c")[0] == 400
        assert lines(state)[0]["status"] == 400
        labels = {"technique": "unknown", "backend": "none", "status": "400"}
        assert metric(to, "armwise_gateway_requests_total", **labels) == 1


def test_each_technique_goes_to_its_own_backend(state: Path) -> None:
    script_a, script_b = (answers(plain(b'{"i":"%s"}' % name)) for name in (b"a", b"b"))
    with upstream(script_a) as one, upstream(script_b) as two, gateway(state) as to:
        register(to, "a", one.url, "m", None, "run-1")
        register(to, "b", two.url + "/v1", "m", None, "run-2")
        assert post(to, technique="b").read() == b'{"i":"b"}'
        assert post(to, technique="a").read() == b'{"i":"a"}'
        assert two.calls[0].head.startswith(b"POST /v1/chat/completions HTTP/1.1\r\n")
        registered = {line["technique"]: line["run_id"] for line in lines(state, count=2)}
        assert registered == {"a": "run-1", "b": "run-2"}


def test_models_tells_what_is_served(state: Path) -> None:
    with gateway(state) as to:
        register(to, "a", "http://127.0.0.1:9", "model-a", "key", "run-1")
        register(to, "b", "http://127.0.0.1:9", "model-b", None, "run-2")
        everything = json.loads(get(to, "/v1/models")[1])
        assert [(m["id"], m["owned_by"]) for m in everything["data"]] == [("model-a", "a"), ("model-b", "b")]
        assert [m["id"] for m in json.loads(get(to, "/v1/models", X_Technique="b")[1])["data"]] == ["model-b"]


def test_a_backend_that_is_gone_is_a_502_in_words(state: Path) -> None:
    with gateway(state) as to:
        url = dead_url()
        register(to, "a", url, "m", None, "run-1")
        answer = post(to)
        error = json.loads(answer.read())["error"]
        assert (answer.status, error["type"]) == (502, "upstream_refused")
        assert error["message"] == f"{url.removeprefix('http://')} refuses connections: is its server up?"
        labels = {"technique": "a", "backend": "openai"}
        assert metric(to, "armwise_gateway_upstream_errors_total", **labels, kind="refused") == 1


def test_a_host_that_no_name_server_knows_is_a_502(state: Path) -> None:
    with gateway(state) as to:
        register(to, "a", "http://no-such-host.invalid", "m", None, "run-1")
        answer = post(to)
        assert (answer.status, json.loads(answer.read())["error"]["type"]) == (502, "upstream_unreachable")


@pytest.mark.parametrize("authorization", ["", "Bearer", "Bearer ", "Bearer wrong", "Basic abc", "Bearer café"])
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_admin_calls_need_the_token(state: Path, method: str, authorization: str) -> None:
    with gateway(state) as to:
        path = "/a" if method == "DELETE" else ""
        status, document = admin(to, method, path, BACKEND, Authorization=authorization)
        assert status == 401
        assert "token" in message(document)
        assert to.token not in message(document)
        assert json.loads(get(to, "/healthz")[1])["techniques"] == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"url": "ftp://host"}, "backend: url: must be http://HOST"),
        ({"url": "http://user:pw@host"}, "backend: url: must be http://HOST"),
        ({"url": "http://host:99999"}, "backend: url: Port out of range"),
        ({"url": "http://host/a b"}, "backend: url: must be http://HOST"),
        ({"technique": "a b"}, "backend: technique: "),
        ({"technique": ""}, "backend: technique: "),
        ({"kind": "smoke-signals"}, "backend: kind: no 'smoke-signals'; known: openai"),
        ({"key": "line\nbreak"}, "backend: key: must be printable ASCII"),
        ({"model": 7}, "backend: model: "),
        ({"colour": "red"}, "backend: colour: not a known field; known: "),
        ({"run_id": None}, "backend: run_id: "),
    ],
)
def test_a_bad_registration_is_a_400_that_names_the_field(state: Path, change: dict, says: str) -> None:
    with gateway(state) as to:
        status, document = admin(to, "POST", content=BACKEND | change)
        assert status == 400
        assert says in message(document)


@pytest.mark.parametrize("body", [b"{", b"[]", b"", b"7"])
def test_a_registration_that_is_no_object_is_a_400(state: Path, body: bytes) -> None:
    with gateway(state) as to:
        assert admin(to, "POST", content=body)[0] == 400


def test_every_fault_is_named_at_once(state: Path) -> None:
    with gateway(state) as to:
        _, document = admin(to, "POST", content={"technique": "a b"})
        assert {line.split(":")[1] for line in message(document).splitlines()} == {
            " technique",
            " url",
            " model",
            " run_id",
        }


def test_keys_are_told_to_nobody(state: Path) -> None:
    with gateway(state) as to:
        _, answer = admin(to, "POST", content=BACKEND | {"key": "key-of-the-arm"})
        _, listing = admin(to, "GET")
        assert (answer["has_key"], listing["backends"][0]["has_key"]) == (True, True)
        told = json.dumps([answer, listing]) + get(to, "/v1/models")[1] + (state / "requests.log").read_text()
        assert "key-of-the-arm" not in told
    assert "key-of-the-arm" in (state / "backends.json").read_text()
    for name in ("backends.json", "token"):
        assert (state / name).stat().st_mode & 0o777 == 0o600


@contextlib.contextmanager
def two_runs(state: Path) -> Iterator[Gateway]:
    """Technique `a`, served by two runs that live, each at a server of its own that says which it is."""
    script_1, script_2 = (answers(plain(b'{"i":"%s"}' % name)) for name in (b"1", b"2"))
    with upstream(script_1) as one, upstream(script_2) as two, gateway(state) as to:
        register(to, "a", one.url, "m", None, "run-1/1")
        assert post(to).read() == b'{"i":"1"}', "the technique alone names its only run"
        register(to, "a", two.url, "m", None, "run-2/1")
        yield to


def test_two_living_runs_of_one_technique_are_told_apart_by_the_run(state: Path) -> None:
    with two_runs(state) as to:
        assert [post(to, X_Run=run).read() for run in ("run-2/1", "run-1/1")] == [b'{"i":"2"}', b'{"i":"1"}']
        assert [line["run_id"] for line in lines(state, count=3)] == ["run-1/1", "run-2/1", "run-1/1"]
        assert json.loads(get(to, "/healthz")[1])["techniques"] == ["a"]
        shown = json.loads(get(to, "/v1/models", X_Technique="a", X_Run="run-2/1")[1])["data"]
        assert [model["run_id"] for model in shown] == ["run-2/1"]


def test_a_technique_that_means_two_runs_is_a_409_that_names_them(state: Path) -> None:
    with two_runs(state) as to:
        answer = post(to)
        error = json.loads(answer.read())["error"]
        assert (answer.status, error["type"]) == (409, "ambiguous_technique")
        assert error["message"] == ("X-Technique: 'a' is served by 2 runs: name one in X-Run; known: run-1/1, run-2/1")
        assert get(to, "/v1/models", X_Technique="a")[0] == 409
        admin(to, "DELETE", "/a?run_id=run-1/1")
        assert post(to).read() == b'{"i":"2"}', "one is left, so the technique alone names it again"


def test_a_run_that_does_not_serve_the_technique_is_a_400_that_names_those_that_do(state: Path) -> None:
    with two_runs(state) as to:
        answer = post(to, X_Run="run-3/1")
        error = json.loads(answer.read())["error"]
        assert (answer.status, error["type"]) == (400, "unknown_run")
        assert error["message"] == "X-Run: no 'run-3/1' serves technique 'a'; known: run-1/1, run-2/1"


def test_a_run_that_was_replaced_is_refused_though_only_one_is_left(state: Path) -> None:
    with two_runs(state) as to:
        admin(to, "DELETE", "/a?run_id=run-1/1")
        answer = post(to, X_Run="run-1/1")
        error = json.loads(answer.read())["error"]
        assert (answer.status, error["type"]) == (400, "unknown_run")
        assert error["message"] == "X-Run: no 'run-1/1' serves technique 'a'; known: run-2/1"


def test_without_a_run_all_of_a_technique_are_deregistered(state: Path) -> None:
    with two_runs(state) as to:
        assert admin(to, "DELETE", "/a")[1]["result"] == "removed"
        assert admin(to, "GET")[1]["backends"] == []


def test_a_change_by_one_worker_is_met_by_the_next_request_of_another(tmp_path: Path) -> None:
    changes, path = shared_number(), tmp_path / "backends.json"
    one, two = Registry(path, changes), Registry(path, changes)
    first, second = (Backend(**BACKEND | {"run_id": run}) for run in ("run-1", "run-2"))
    one.put(first)
    assert two.route("a").run_id == "run-1"
    two.put(second)
    assert one.route("a", "run-2").run_id == "run-2"
    assert one.remove("a", "run-1") == "removed"
    assert two.route("a").run_id == "run-2"
    assert [row["run_id"] for row in json.loads(path.read_text())["backends"]] == ["run-2"]


def test_workers_that_register_at_once_forget_nobody(tmp_path: Path) -> None:
    changes, path = shared_number(), tmp_path / "backends.json"
    registries = [Registry(path, changes) for _ in range(4)]

    def put(number: int) -> None:
        registries[number % 4].put(Backend(**BACKEND | {"run_id": f"run-{number}"}))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(put, range(20)))
    assert {backend.run_id for backend in registries[0].all()} == {f"run-{number}" for number in range(20)}


def test_the_same_run_may_register_again(state: Path) -> None:
    with upstream(answers(plain(b"{}"))) as server, gateway(state) as to:
        register(to, "a", server.url, "m", None, "run-1")
        assert admin(to, "POST", content=BACKEND)[0] == 200
        assert [b["url"] for b in admin(to, "GET")[1]["backends"]] == [BACKEND["url"]]


def test_a_technique_whose_upstream_is_dead_may_be_taken(state: Path) -> None:
    with upstream(answers(plain(b"{}"))) as server, gateway(state) as to:
        register(to, "a", dead_url(), "m", None, "run-1")
        register(to, "a", server.url, "m", None, "run-2")
        assert post(to).status == 200
        assert lines(state)[0]["run_id"] == "run-2"


def test_deregistering_is_idempotent_and_touches_no_other_run(state: Path) -> None:
    with gateway(state) as to:
        admin(to, "POST", content=BACKEND)
        results = [admin(to, "DELETE", f"/a?run_id={run}")[1]["result"] for run in ("run-2", "run-1", "run-1")]
        assert results == ["held by another run", "removed", "not registered"]
        assert post(to).status == 400
        admin(to, "POST", content=BACKEND)
        assert admin(to, "DELETE", "/a")[1]["result"] == "removed"


def test_a_restarted_gateway_knows_its_arms_and_its_token(state: Path) -> None:
    with upstream(answers(plain(b'{"i":"a"}'))) as server:
        with gateway(state) as to:
            register(to, "a", server.url, "m", "key-of-the-arm", "run-1")
            token = to.token
        with gateway(state) as to:
            assert to.token == token
            assert post(to).read() == b'{"i":"a"}'
        assert server.calls[0].header("authorization") == "Bearer key-of-the-arm"


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ("{", BrokenArtifact),
        ("[]", BrokenArtifact),
        ('{"format": 2, "backends": []}', BrokenArtifact),
        ('{"format": 1}', BrokenArtifact),
        ('{"format": 1, "backends": [{"technique": "a"}]}', InvalidDocument),
    ],
)
def test_a_broken_backends_file_is_named_not_overwritten(tmp_path: Path, content: str, error: type) -> None:
    path = tmp_path / "backends.json"
    path.write_text(content)
    with pytest.raises(error, match=r"backends\.json"):
        create(tmp_path)
    assert path.read_text() == content


def test_an_empty_token_file_is_no_token(tmp_path: Path) -> None:
    (tmp_path / "token").touch()
    with pytest.raises(BrokenArtifact, match="token: is empty"):
        create(tmp_path)


def test_a_token_that_others_can_read_is_closed(state: Path) -> None:
    state.mkdir()
    (state / "token").write_text("mine\n")
    (state / "token").chmod(0o644)
    with gateway(state) as to:
        assert to.token == "mine"
    assert (state / "token").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/nowhere", 404), ("GET", "/v1/chat/completions", 405), ("POST", "/v1/completions", 404)],
)
def test_a_route_that_does_not_exist_is_told_in_json(state: Path, method: str, path: str, status: int) -> None:
    with gateway(state) as to:
        connection = connect(to)
        connection.request(method, path)
        answer = connection.getresponse()
        assert answer.status == status
        assert message(json.loads(answer.read())).startswith(f"{method} {path}: ")
