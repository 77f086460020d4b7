"""The client against a scripted server: logins, and faults in words."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from tasks.stack.api import Airflow, ApiFault


@pytest.fixture
def server():
    """Answers with what the test put in `answers` [(status, body)], login included; notes what it was asked."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            size = int(self.headers.get("Content-Length") or 0)
            said = json.loads(self.rfile.read(size)) if size else None
            asked.append((self.command, self.path, self.headers.get("Authorization"), said))
            status, body = answers.pop(0)
            content = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_PATCH = do_GET

        def log_message(self, *args):
            pass

    answers, asked = [], []
    with HTTPServer(("127.0.0.1", 0), Handler) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        yield Airflow(f"http://127.0.0.1:{http.server_port}", "admin", "secret"), answers, asked
        http.shutdown()


def test_one_login_serves_many_calls_and_an_expired_one_is_renewed(server):
    client, answers, asked = server
    answers += [(201, {"access_token": "one"}), (200, {"state": "running"}), (401, {}), (201, {"access_token": "two"})]
    answers += [(200, {"state": "success"})]
    assert client.state("d", "r") == "running"
    assert client.state("d", "r") == "success"
    assert asked[0] == ("POST", "/auth/token", None, {"username": "admin", "password": "secret"})
    assert [call[2] for call in asked if call[1] != "/auth/token"] == ["Bearer one", "Bearer one", "Bearer two"]


def test_a_trigger_sends_the_form(server):
    client, answers, asked = server
    answers += [(201, {"access_token": "t"}), (200, {"dag_run_id": "manual__1"})]
    assert client.trigger("run_arm", {"arm": "a"}) == "manual__1"
    assert asked[-1][:2] == ("POST", "/api/v2/dags/run_arm/dagRuns")
    assert asked[-1][3] == {"logical_date": None, "conf": {"arm": "a"}}


def test_a_refusal_is_told_with_airflows_own_detail(server):
    client, answers, _ = server
    answers += [(201, {"access_token": "t"}), (400, {"detail": "Invalid input for param arm: 'x' is not one of ['a']"})]
    with pytest.raises(
        ApiFault, match=r"POST /dags/run_arm/dagRuns: 400: Invalid input for param arm: 'x' is not one of"
    ):
        client.trigger("run_arm", {"arm": "x"})


def test_a_server_that_is_gone_is_told_and_the_password_is_not():
    client = Airflow("http://127.0.0.1:9", "admin", "secret")
    with pytest.raises(ApiFault, match="no answer to the login") as fault:
        client.state("d", "r")
    assert "secret" not in str(fault.value)
