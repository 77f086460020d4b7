"""armwise pin, against a hub and a registry of our own on loopback."""

import json
import threading
from collections.abc import Iterator
from datetime import date
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from typer.testing import CliRunner

from tasks import arm, cli, pin, price
from tasks.document import UNRESOLVED

SHA = {"Qwen/Qwen3-4B": "a" * 40, "Qwen/Qwen3-0.6B": "b" * 40}
DIGEST = "sha256:" + "c" * 64
TODAY = date(2026, 11, 30)
FAMILY = ["qwen3-4b-bf16", "qwen3-4b-draft", "qwen3-4b-fp8", "qwen3-4b-max-num-seqs-128"]


class Answers(BaseHTTPRequestHandler):
    """A hub that knows two models, and a registry that wants a token first."""

    asked: ClassVar[list[str]] = []
    revisions: ClassVar[dict[str, str]] = {}

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.asked.append(self.path)
        repo = self.path.removeprefix("/api/models/").removesuffix("/revision/main")
        if self.path.startswith("/token?"):
            self.say(200, {"token": "t" if "scope=repository%3Avllm/vllm-openai%3Apull" in self.path else "no"})
        elif repo in self.revisions:
            self.say(200, {"id": repo, "sha": self.revisions[repo]})
        else:
            self.say(404, {"error": "Repository not found"})

    def do_HEAD(self) -> None:
        self.asked.append(self.path)
        if self.headers.get("Authorization") != "Bearer t":
            realm = f"http://{self.headers['Host']}/token"
            challenge = f'Bearer realm="{realm}",service="registry",scope="repository:vllm/vllm-openai:pull"'
            self.say(401, None, {"WWW-Authenticate": challenge})
        elif self.path == "/v2/vllm/vllm-openai/manifests/v0.25.1" and "index" in self.headers["Accept"]:
            self.say(200, None, {"Docker-Content-Digest": DIGEST})
        else:
            self.say(404, None)

    def say(self, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
        data = b"" if body is None else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def sources() -> Iterator[pin.Sources]:
    Answers.asked.clear()
    Answers.revisions = dict(SHA)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}"
    yield pin.Sources(hub=url, registry=url)
    server.shutdown()
    thread.join()
    server.server_close()


def texts(root: Path) -> dict[str, str]:
    return {path.stem: path.read_text() for path in (root / "deploy" / "arms").glob("*.yaml")}


def test_a_family_is_pinned_alike_and_nothing_else_changes(sandbox: Path, sources: pin.Sources) -> None:
    before = texts(sandbox)
    written = pin.pin("qwen3-4b-draft", sources=sources)
    image = f"vllm/vllm-openai:v0.25.1@{DIGEST}"
    assert set(written) == {f"{name}.yaml" for name in FAMILY}
    assert written["qwen3-4b-draft.yaml"] == {
        "model.revision": "a" * 40,
        "flags.speculative-config.revision": "b" * 40,
        "image": image,
    }
    after = texts(sandbox)
    for name, text in before.items():
        pinned = text.replace("image: unresolved", f"image: {image}")
        pinned = pinned.replace("    revision: unresolved", f"    revision: {'b' * 40}")
        pinned = pinned.replace("  revision: unresolved", f"  revision: {'a' * 40}")
        assert after[name] == (pinned if name in FAMILY else text)
    for name in FAMILY:
        assert arm.unresolved(arm.load(name)) == []  # and it still differs from its control in one thing
    assert len(Answers.asked) == len(set(Answers.asked)) + 1  # the manifest, before and after the token


def test_what_one_arm_has_is_given_to_the_others_and_never_looked_up_anew(sandbox: Path, sources: pin.Sources) -> None:
    path = sandbox / "deploy" / "arms" / "qwen3-4b-bf16.yaml"
    path.write_text(path.read_text().replace("  revision: unresolved", f"  revision: {'d' * 40}"))
    pin.pin("qwen3-4b-fp8", sources=sources)
    assert {arm.load(name).model.revision for name in FAMILY} == {"d" * 40}
    assert not any("Qwen3-4B/" in path for path in Answers.asked)


def test_a_pinned_arm_has_nothing_left(sandbox: Path, sources: pin.Sources) -> None:
    pin.pin("qwen3-4b-bf16", sources=sources)
    assert pin.pin("qwen3-4b-bf16", sources=sources) == {}
    assert pin.pin("cpu-draft", sources=sources) == {}


def test_without_a_network_it_says_so_and_no_file_is_touched(
    sandbox: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = texts(sandbox)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("sys.argv", ["armwise", "pin", "qwen3-4b-bf16"])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("armwise: http://127.0.0.1:9/api/models/Qwen/Qwen3-4B/revision/main: cannot be reached")
    assert said.count("\n") == 1
    assert texts(sandbox) == before


@pytest.mark.parametrize(
    ("revisions", "words"),
    [
        ({}, "answered 404"),
        ({"Qwen/Qwen3-4B": "main"}, "sha: must be 40 hex digits, found 'main'"),
        ({"Qwen/Qwen3-4B": "a" * 40}, "Qwen3-0.6B/revision/main: answered 404"),  # the second of two look-ups
    ],
)
def test_half_a_family_is_never_written(
    sandbox: Path, sources: pin.Sources, revisions: dict[str, str], words: str
) -> None:
    before = texts(sandbox)
    Answers.revisions = revisions
    with pytest.raises(pin.NotPinned, match=words):
        pin.pin("qwen3-4b-bf16", sources=sources)
    assert texts(sandbox) == before


def test_a_tag_that_the_registry_has_not(sandbox: Path, sources: pin.Sources) -> None:
    with pytest.raises(pin.NotPinned, match="manifests/v9: answered 404"):
        pin.pin("qwen3-4b-bf16", image="vllm/vllm-openai:v9", sources=sources)
    with pytest.raises(pin.NotPinned, match="must be REPOSITORY:TAG"):
        pin.digest("vllm/vllm-openai", sources.registry)


def test_a_price_gets_its_page_and_day_and_keeps_its_comments(sandbox: Path) -> None:
    path = sandbox / "deploy" / "prices" / "h200.yaml"
    before = path.read_text()
    pin.pin_price("h200", 3.8, source="https://example.com/list", today=TODAY)
    found = price.load("h200")
    assert (found.usd_per_hour, found.source, found.read_on) == (3.8, "https://example.com/list", TODAY)
    assert path.read_text().startswith(before.replace("usd_per_hour: unresolved\n", "usd_per_hour: 3.8\n"))
    pin.pin_price("h200", 4.0, source="https://example.com/new", today=TODAY)
    assert (price.load("h200").usd_per_hour, path.read_text().count("source:")) == (4.0, 1)


def test_a_read_price_is_no_longer_nominal(sandbox: Path) -> None:
    pin.pin_price("local-cpu", 0.2, source="https://example.com/list", today=TODAY)
    assert not price.load("local-cpu").is_nominal


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--price", "h200=3.8"], "--source: must be the address of the page"),
        (["--price", "h200=3.8", "--source", "a friend"], "found 'a friend'"),
        (["--price", "h200", "--source", "https://a.b"], "--price: must be KEY=USD_PER_HOUR, found 'h200'"),
        (["--price", "h200=-1", "--source", "https://a.b"], "--price: must be greater than 0, got -1"),
        (["--price", "h300=1", "--source", "https://a.b"], "no 'h300'; known: a10g"),
        ([], "say either which ARM"),
        (["cpu-draft", "--price", "h200=1"], "say either which ARM"),
        (["cpu-drafd"], "no 'cpu-drafd'; known: "),
    ],
)
def test_a_bad_request_changes_nothing(sandbox: Path, options: list[str], words: str) -> None:
    result = CliRunner().invoke(cli.app(), ["pin", *options])
    assert words in str(result.exception)
    assert price.load("h200").usd_per_hour == UNRESOLVED
