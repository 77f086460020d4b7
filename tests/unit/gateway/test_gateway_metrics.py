"""Metrics as Prometheus would read them, and that the documentation knows each of them and each route."""

import re
import threading
from pathlib import Path

from scripted_upstream import EVENTS, Call, gateway, get, lines, metric, post, streams, upstream

from tasks.gateway import account, app
from tasks.gateway.client import register

DOCS = Path(__file__).resolve().parents[3] / "docs" / "gateway.md"
ROUTE = {"technique": "a", "backend": "openai"}


def test_a_request_is_counted_once_with_its_times_and_tokens(tmp_path: Path) -> None:
    with upstream(streams(EVENTS)) as server, gateway(tmp_path) as to:
        register(to, "a", server.url, "m", None, "run-1")
        for _ in range(3):
            post(to).read()
        lines(tmp_path, count=3)
        outcome = ROUTE | {"status": "200"}
        assert metric(to, "armwise_gateway_requests_total", **outcome) == 3
        assert metric(to, "armwise_gateway_request_seconds_count", **outcome) == 3
        assert metric(to, "armwise_gateway_ttfb_seconds_count", **outcome) == 3
        assert metric(to, "armwise_gateway_input_tokens_total", **ROUTE) == 33
        assert metric(to, "armwise_gateway_output_tokens_total", **ROUTE) == 9
        assert metric(to, "armwise_gateway_in_flight", **ROUTE) == 0


def test_seconds_add_up_to_what_the_log_says(tmp_path: Path) -> None:
    with upstream(streams(EVENTS, size=100, pause_s=0.05)) as server, gateway(tmp_path) as to:
        register(to, "a", server.url, "m", None, "run-1")
        post(to).read()
        line = lines(tmp_path)[0]
        total = metric(to, "armwise_gateway_request_seconds_sum", **ROUTE, status="200")
        first = metric(to, "armwise_gateway_ttfb_seconds_sum", **ROUTE, status="200")
    assert abs(total - line["total_ms"] / 1000) < 1e-6
    assert abs(first - line["ttfb_ms"] / 1000) < 1e-6
    assert 0.1 < total < 5


def test_the_gauge_shows_what_is_in_flight(tmp_path: Path) -> None:
    go = threading.Event()

    def script(call: Call) -> None:
        assert go.wait(10)
        streams(EVENTS)(call)

    with upstream(script) as server, gateway(tmp_path) as to:
        register(to, "a", server.url, "m", None, "run-1")
        asking = threading.Thread(target=lambda: post(to).read())
        asking.start()
        assert server.called.wait(10)
        assert metric(to, "armwise_gateway_in_flight", **ROUTE) == 1
        go.set()
        asking.join(10)


def test_two_gateways_in_one_process_do_not_share_counts(tmp_path: Path) -> None:
    with upstream(streams(EVENTS)) as server, gateway(tmp_path / "1") as one, gateway(tmp_path / "2") as two:
        register(one, "a", server.url, "m", None, "run-1")
        post(one).read()
        lines(tmp_path / "1")
        assert metric(one, "armwise_gateway_requests_total", **ROUTE, status="200") == 1
        assert metric(two, "armwise_gateway_requests_total", **ROUTE, status="200") is None


def test_every_metric_route_ending_and_log_field_is_documented(tmp_path: Path) -> None:
    docs = DOCS.read_text()
    with upstream(streams(EVENTS)) as server, gateway(tmp_path) as to:
        register(to, "a", server.url, "m", None, "run-1")
        post(to).read()
        fields = set(lines(tmp_path)[0])
        exposed = set(re.findall(r"^# TYPE (\w+)", get(to, "/metrics")[1], re.MULTILINE))
    routes = {route.path for route in app.create(tmp_path).app.routes}
    assert len(exposed) >= 12 and len(routes) >= 6
    named = {word for quoted in re.findall(r"`([^`]+)`", docs) for word in quoted.split()}
    missing = (exposed | routes | fields | set(account.ENDED)) - named
    assert not missing, f"docs/gateway.md: does not mention {sorted(missing)}"
