"""An endpoint that is not there, not ours to enter, or not what it should be: each in words."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import lifecycle
import pytest

from tasks import run as runs
from tasks.document import InvalidDocument
from tasks.drivers import _port, endpoint
from tasks.stage import StageFailed
from tasks.stages.claim import claim

ARM = {
    "engine": "openai",
    "question": "Does a server that is not ours keep up?",
    "price": "endpoint",
    "url": "env:SERVER_URL",
    "model": {"repo": "some/model", "revision": "a", "served_as": "tiny"},
}
GOOD = {"object": "list", "data": [{"id": "tiny"}]}


@pytest.fixture
def serve(monkeypatch):
    """A server that gives one answer to everything, and its address in SERVER_URL."""
    servers = []

    def begin(status, body):
        class Once(BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(status)
                self.end_headers()
                self.wfile.write(body if isinstance(body, bytes) else json.dumps(body).encode())

            def log_message(self, *_):
                pass

        servers.append(HTTPServer(("127.0.0.1", 0), Once))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        monkeypatch.setenv("SERVER_URL", f"http://127.0.0.1:{servers[-1].server_address[1]}/v1")

    yield begin
    for server in servers:
        server.shutdown()
        server.server_close()


def claimed(sandbox, **changed):
    lifecycle.write_yaml(sandbox / "deploy" / "arms" / "theirs.yaml", ARM | changed)
    return runs.read(claim(arm="theirs", target="endpoint", plan=lifecycle.plan(sandbox, grace_s=30)))


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (401, {}, "answered 401 Unauthorized; check the key"),
        (500, {}, "answered 500 Internal Server Error"),
        (200, b"<html>", "is not an OpenAI-compatible list of models"),
        (200, {"models": []}, "is not an OpenAI-compatible list of models"),
        (200, {"data": [{"id": "a"}, {"id": "b"}]}, "serves no 'tiny'; it serves: a, b"),
    ],
)
def test_a_server_that_will_not_do_is_said(sandbox, serve, status, body, words):
    serve(status, body)
    with pytest.raises(StageFailed, match=words):
        endpoint.up(claimed(sandbox))


def test_a_server_that_is_not_there_is_said(sandbox, monkeypatch):
    monkeypatch.setenv("SERVER_URL", f"http://127.0.0.1:{_port.free()}")
    run = claimed(sandbox)
    with pytest.raises(StageFailed, match=r"/v1/models: does not answer: .*refused"):
        endpoint.up(run)
    assert not endpoint.alive({"url": endpoint._address(run.arm)})


def test_a_server_that_answers_is_a_deployment_of_which_nothing_is_ours(sandbox, serve):
    serve(200, GOOD)
    run = claimed(sandbox)
    deployment = endpoint.up(run)
    assert (deployment["engine_pid"], deployment["argv"], deployment["dev_endpoints"]) == (None, [], False)
    assert "not ours" in endpoint.down(deployment, run.folder, reason="done")["says"]


def test_what_the_environment_lacks_is_said_at_claim(sandbox, monkeypatch):
    monkeypatch.delenv("SERVER_URL", raising=False)
    with pytest.raises(InvalidDocument) as refused:
        claimed(sandbox, key_env="NO_SUCH_KEY")
    assert "url: environment variable SERVER_URL is not set" in str(refused.value)
    assert "key_env: environment variable NO_SUCH_KEY is not set" in str(refused.value)


def test_an_address_that_is_none_is_said_at_claim(sandbox):
    with pytest.raises(InvalidDocument, match=r"must begin with http:// or https://, found 'localhost:8000'"):
        claimed(sandbox, url="localhost:8000/v1")
