"""Samples of real engines and of a real failure become rows."""

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tasks import artifact
from tasks.drivers import _gpu
from tasks.engines import vllm
from tasks.traffic import scrape

SAMPLES = Path(__file__).resolve().parents[2] / "goldens"
OURS = """# TYPE armwise_gateway_requests counter
armwise_gateway_requests_total{technique="a b",status="200"} 3.0
armwise_gateway_requests_created{technique="a b",status="200"} 1.7e9
armwise_gateway_request_seconds_bucket{le="0.1"} 2.0
armwise_gateway_request_seconds_count 3.0
python_info{version="3"} 1.0
"""


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    """Serves `server.text` at every path, with `server.status`; `server.asked` collects the Authorization headers."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            this.asked.append(self.headers.get("Authorization"))
            self.send_response(this.status)
            self.end_headers()
            self.wfile.write(this.text.encode())

        def log_message(self, *_: object) -> None:
            pass

    this = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    this.text, this.status, this.asked = "", 200, []
    thread = threading.Thread(target=this.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield this
    this.shutdown()
    thread.join()
    this.server_close()


def url(server: ThreadingHTTPServer) -> str:
    return f"http://127.0.0.1:{server.server_port}"


def test_a_real_engines_metrics(server: ThreadingHTTPServer) -> None:
    found = sorted(SAMPLES.glob("*/metrics_*.txt"))
    assert found, f"{SAMPLES}: no sample to test against"
    for sample in found:
        server.text = sample.read_text()
        engine = scrape.Source("engine", url(server), "key", vllm.METRICS)
        rows = scrape.once(engine)
        line = next(line for line in server.text.splitlines() if line.startswith("vllm:generation_tokens_total{"))
        assert scrape.value(rows, engine, "generation_tokens_total") == float(line.split()[-1]), sample
        assert scrape.value(rows, engine, "process_start_time") is not None
        assert {row["name"] for row in rows} <= set(vllm.METRICS.values())
        assert scrape.value(rows, engine, "no such metric") is None
    assert set(server.asked) == {"Bearer key"}


def test_the_gateways_own_names_without_buckets(server: ThreadingHTTPServer) -> None:
    server.text = OURS
    rows = scrape.once(scrape.Source("gateway", url(server)))
    assert [row["name"] for row in rows] == ["armwise_gateway_requests_total", "armwise_gateway_request_seconds_count"]
    assert json.loads(rows[0]["labels"]) == {"technique": "a b", "status": "200"}
    assert rows[0]["value"] == 3.0


@pytest.mark.parametrize(("status", "text"), [(500, ""), (200, 'armwise_gateway_x{a="b" 1')])
def test_a_failed_scrape_is_a_row(server: ThreadingHTTPServer, status: int, text: str) -> None:
    server.status, server.text = status, text
    (row,) = scrape.once(scrape.Source("gateway", url(server)))
    assert (row["source"], row["name"]) == ("gateway", "scrape_failed")
    assert json.loads(row["labels"])["error"]


def test_nobody_there_is_a_row() -> None:
    (row,) = scrape.once(scrape.Source("engine", "http://127.0.0.1:9/metrics", None, vllm.METRICS))
    assert row["name"] == "scrape_failed"


def test_the_slots_gpus_are_a_source_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    told = [{"gpu": 3, "power_w": 310.5, "energy_j_total": 7000.25}]
    monkeypatch.setattr(_gpu, "readings", lambda slot: told if slot == "gpu3" else None)
    (source,) = scrape.gpus("gpu3")
    rows = scrape.once(source)
    assert [(r["source"], r["name"], r["value"], json.loads(r["labels"])) for r in rows] == [
        ("gpu", "power_w", 310.5, {"gpu": 3}),
        ("gpu", "energy_j_total", 7000.25, {"gpu": 3}),
    ]
    assert scrape.gpus("cpu0") == [] and scrape.gpus("gpu4") == []
    told.clear()
    (lost,) = scrape.once(source)
    assert (lost["source"], lost["name"]) == ("gpu", "scrape_failed")


def test_it_scrapes_before_during_and_after(server: ThreadingHTTPServer, tmp_path: Path) -> None:
    server.text = "process_start_time_seconds 5\nvllm:generation_tokens_total 1\n"
    path = tmp_path / "engine.jsonl"
    began = time.time()
    with scrape.running(path, [scrape.Source("engine", url(server), None, vllm.METRICS)]) as scraped:
        assert len(artifact.read_rows(path)) == 2
        time.sleep(1.3)
        server.text = "process_start_time_seconds 6\nvllm:generation_tokens_total 7\n"
    rows = artifact.read_rows(path)
    assert [row["value"] for row in rows if row["name"] == "vllm:generation_tokens_total"] == [1, 1, 7]
    assert rows[2]["at"] - began == pytest.approx(1, abs=0.25)
    assert (scraped.samples, scraped.failed, scraped.start_times) == (3, 0, {5.0, 6.0})
